#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/policy/options.hpp"

/// Functions that fill tensors with random numbers, and initial values of parameters. Element i of a tensor gets number
/// i of the random stream of a seed, on every backend and with any number of threads.
namespace gatefold {

namespace functor {

template <class T>
struct Uniform {
  Seed seed;
  T low, width;
  T* x;
  GATEFOLD_HD void operator()(Index i) const {
    x[i] = low + width * uniform<T>(seed, 0, static_cast<std::uint64_t>(i));
  }
};
template <class T>
struct Normal {
  Seed seed;
  T scale;
  T* x;
  GATEFOLD_HD void operator()(Index i) const { x[i] = scale * normal<T>(seed, 0, static_cast<std::uint64_t>(i)); }
};

}  // namespace functor

/// Fills x with uniformly distributed random numbers from [low, high). Because of rounding, `high` itself can also
/// occur.
/// @param x  a Tensor or Table
template <class C, class X>
void fill_uniform(C& ctx, Seed seed, double low, double high, X& x) {
  using T = std::remove_cvref_t<decltype(*x.data())>;
  C::Backend::for_each(ctx, x.size(), functor::Uniform<T>{seed, T(low), T(high - low), x.data()});
}
/// Fills x with random numbers from the normal distribution N(0, scale²).
template <class C, class X>
void fill_normal(C& ctx, Seed seed, double scale, X& x) {
  using T = std::remove_cvref_t<decltype(*x.data())>;
  C::Backend::for_each(ctx, x.size(), functor::Normal<T>{seed, T(scale), x.data()});
}

/// Returns a new tensor of the given extents with uniformly distributed numbers from [-bound, bound).
template <class T, class C, class... Extent>
Tensor<T, sizeof...(Extent), typename C::Backend> uniform_tensor(C& ctx, Seed seed, double bound, Extent... extents) {
  const auto here = ctx.here();
  Tensor<T, sizeof...(Extent), typename C::Backend> x(extents...);
  fill_uniform(ctx, seed, -bound, bound, x);
  return x;
}
/// Returns a new tensor of the given extents, with every element equal to `value`.
template <class T, class C, class... Extent>
Tensor<T, sizeof...(Extent), typename C::Backend> constant_tensor(C& ctx, double value, Extent... extents) {
  const auto here = ctx.here();
  Tensor<T, sizeof...(Extent), typename C::Backend> x(extents...);
  fill(ctx, x.view(), static_cast<T>(value));
  return x;
}

namespace functor {

/// Makes all parts of a block equal to its first part: x[b, r, :] = x[b, 0, :]. The array x consists of blocks of
/// `repeats` parts, and each part has `size` values.
template <class T>
struct RepeatFirst {
  Index repeats, size;
  T* x;
  GATEFOLD_HD void operator()(Index i) const {
    const Index r = i / size % repeats;
    if (r > 0) x[i] = x[i - r * size];
  }
};

}  // namespace functor

/// Divides x into blocks of `repeats` parts, each of `size` values, and copies the first part of each block to the
/// other parts of this block.
template <class C, class T, int R, class B>
void repeat_first(C& ctx, Index repeats, Index size, View<T, R, B> x) {
  if (repeats > 1) B::for_each(ctx, x.size(), functor::RepeatFirst<T>{repeats, size, x.data()});
}

namespace detail_::initial {

template <class C, class T, int R, class B>
void draw(C& ctx, const Initial& of, Seed seed, Index fan, Tensor<T, R, B>& x) {
  expect(of.scale >= 0 && of.scale <= std::numeric_limits<double>::max(), "Initial", "scale",
         "a finite number, at least 0", of.scale);
  const double spread = of.scale / std::sqrt(static_cast<double>(std::max<Index>(fan, 1)));
  switch (of.law) {
    case Initial::Law::fan_in:
    case Initial::Law::reference:
      return fill_uniform(ctx, seed, -spread, spread, x);
    case Initial::Law::normal:
      return fill_normal(ctx, seed, of.scale, x);
    case Initial::Law::normal_fan_in:
      return fill_normal(ctx, seed, spread, x);
    case Initial::Law::zero:
      return fill(ctx, x.view(), T(0));
  }
}
/// Copies the initial weights or biases of the first expert to all other experts. The first dimension of x is the
/// expert.
template <class C, class T, int R, class B>
void share(C& ctx, Tensor<T, R, B>& x) {
  repeat_first(ctx, x.extent(0), x.size() / std::max<Index>(x.extent(0), 1), x.view());
}

}  // namespace detail_::initial

/// Returns a new tensor of the given extents with random initial weights, drawn by the equations (1) to (5) of
/// policy/options.hpp. The last two extents are the numbers of inputs and outputs.
template <class T, class C, class... Extent>
Tensor<T, sizeof...(Extent), typename C::Backend> initial_weights(C& ctx, const Initial& of, Seed seed,
                                                                  Extent... extents) {
  static_assert(Element<T>::fits);
  GATEFOLD_REQUIRE(sizeof...(Extent) >= 2, "gatefold: weights need at least two extents: inputs and outputs");
  const auto here = ctx.here();
  Tensor<T, sizeof...(Extent), typename C::Backend> w(extents...);
  const Index in = w.extent(int(sizeof...(Extent)) - 2), out = w.extent(int(sizeof...(Extent)) - 1);
  detail_::initial::draw(ctx, of, seed, of.law == Initial::Law::reference ? in * out : in, w);
  if constexpr (sizeof...(Extent) == 2) {
    expect(!of.shared, "Initial", "shared", "false for weights of rank 2, which have no extent of experts", "true");
  } else if (of.shared) {
    detail_::initial::share(ctx, w);
  }
  return w;
}
/// Returns a new tensor of the given extents with initial biases: random values if of.law is Initial::Law::fan_in,
/// otherwise zeros.
/// @param in  the number of inputs of the linear map to whose outputs the biases are added
template <class T, class C, class... Extent>
Tensor<T, sizeof...(Extent), typename C::Backend> initial_biases(C& ctx, const Initial& of, Seed seed, Index in,
                                                                 Extent... extents) {
  const auto here = ctx.here();
  Tensor<T, sizeof...(Extent), typename C::Backend> b(extents...);
  if (of.law == Initial::Law::fan_in) {
    detail_::initial::draw(ctx, of, seed, in, b);
  } else {
    fill(ctx, b.view(), T(0));
  }
  if constexpr (sizeof...(Extent) > 1) {
    if (of.shared) detail_::initial::share(ctx, b);
  }
  return b;
}

}  // namespace gatefold
