#pragma once

#include <algorithm>
#include <cmath>

#include "gatefold/backend/random_fill.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold {

namespace fn {

/// x[b, r, :] = x[b, 0, :] for blocks b of `repeats` parts of `size` values each
template <class T>
struct RepeatFirst {
  Index repeats, size;
  T* x;
  GATEFOLD_HD void operator()(Index i) const {
    const Index r = i / size % repeats;
    if (r > 0) x[i] = x[i - r * size];
  }
};

}  // namespace fn

/// Copy the first of every `repeats` consecutive parts of x, each of `size` values, over the others.
template <class C, class T, int R, class B>
void repeat_first(C& ctx, Index repeats, Index size, View<T, R, B> x) {
  if (repeats > 1) B::for_each(ctx, x.size(), fn::RepeatFirst<T>{repeats, size, x.data()});
}

/// How weights [experts, in, out] (or [in, out]) and their biases begin.
///
///     fan_in         W, b ~ U(±scale/√in)                                                               (1)
///     reference      W ~ U(±scale/√(in·out)),  b = 0                                                    (2)
///     normal         W ~ N(0, scale²),         b = 0                                                    (3)
///     normal_fan_in  W ~ N(0, scale²/in),      b = 0                                                    (4)
///     zero           W = 0,                    b = 0                                                    (5)
///
/// Source: (1) torch.nn.Linear; (2) FastMoE, the code of papers 001 and 002, whose Kaiming rule takes the inputs of all
/// three extents for the fan-in: √out times smaller than (1).
/// @param shared  all experts begin as the first one: they differ only through what they are given. Source: V-MoE,
///                Riquelme et al. 2021, arXiv:2106.05974
/// @throws ArgumentError unless scale >= 0, and where `shared` meets weights that are not of experts
struct Initial {
  enum class Law { fan_in, reference, normal, normal_fan_in, zero };

  Law law = Law::fan_in;
  double scale = 1;
  bool shared = false;

  static Initial reference() { return {Law::reference, 1, false}; }
  static Initial normal(double sigma) { return {Law::normal, sigma, false}; }
  static Initial zero() { return {Law::zero, 0, false}; }

  /// A new tensor of these extents, the last two of which are in and out.
  template <class T, class C, class... I>
  auto weights(C& ctx, Seed seed, I... extents) const {
    static_assert(sizeof...(I) >= 2, "gatefold: weights have an extent for inputs and one for outputs");
    const auto here = ctx.here();
    Tensor<T, static_cast<int>(sizeof...(I)), typename C::Backend> w(extents...);
    const Index in = w.extent(int(sizeof...(I)) - 2), out = w.extent(int(sizeof...(I)) - 1);
    draw(ctx, seed, law == Law::reference ? in * out : in, w);
    if constexpr (sizeof...(I) == 2) {
      expect(!shared, "Initial", "shared", "false (these are no weights of experts)", "true");
    } else {
      share(ctx, w);
    }
    return w;
  }
  /// A new tensor of these extents: the biases of outputs of `in` inputs each.
  template <class T, class C, class... I>
  auto biases(C& ctx, Seed seed, Index in, I... extents) const {
    const auto here = ctx.here();
    Tensor<T, static_cast<int>(sizeof...(I)), typename C::Backend> b(extents...);
    if (law == Law::fan_in) {
      draw(ctx, seed, in, b);
    } else {
      fill(ctx, b.view(), T(0));
    }
    if constexpr (sizeof...(I) > 1) share(ctx, b);
    return b;
  }

 private:
  template <class C, class T, int R, class B>
  void draw(C& ctx, Seed seed, Index fan, Tensor<T, R, B>& x) const {
    expect(scale >= 0, "Initial", "scale", "at least 0", scale);
    const double spread = scale / std::sqrt(static_cast<double>(fan));
    switch (law) {
      case Law::fan_in:
      case Law::reference:
        return fill_uniform(ctx, seed, -spread, spread, x);
      case Law::normal:
        return fill_normal(ctx, seed, scale, x);
      case Law::normal_fan_in:
        return fill_normal(ctx, seed, spread, x);
      case Law::zero:
        return fill(ctx, x.view(), T(0));
    }
  }
  template <class C, class T, int R, class B>
  void share(C& ctx, Tensor<T, R, B>& x) const {
    if (shared) repeat_first(ctx, x.extent(0), x.size() / std::max<Index>(x.extent(0), 1), x.view());
  }
};

}  // namespace gatefold
