#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "gatefold/update/momentum.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), ScaledSumBackward);
GATEFOLD_FUNCTORS((class T, class B), Sharpen, SharpenBackward);

namespace functor {

/// Replaces s, the square of a norm, by 1/√s, or by 0 if s < least. NaN remains NaN.
struct InverseRoot {
  double least;
  double* s;
  GATEFOLD_HD void operator()(Index i) const { s[i] = s[i] < least ? 0 : 1 / std::sqrt(s[i]); }
};

}  // namespace functor

namespace update {

/// Selects how the rule SharpnessAware normalises the branch output: each item is divided by its own norm, or all items
/// of a batch by the norm of the whole batch.
enum class Norm { item, batch };

/// An update rule with sharpness-aware minimisation (SAM) over the layers of a model. A layer with input x evaluates
/// its branch u first at x, and then at a point z at the distance ρ from x in the direction of −u(x). It returns y.
///
///     z = x − ρ u(x) / ‖u(x)‖,   y = x + γ u(z)                                                         (1)
///
/// Source: paper 001, App. E.4 (SAM-SMoE), whose f is −u; Foret et al. 2020, arXiv:2010.01412.
///
/// By default each item has its own norm, so that an item does not depend on its batch. The paper's code has one norm
/// over all items: `Norm::batch`. If ‖u(x)‖ is below 1.2e-38 in float or 1.5e-154 in double, the norm counts as 0. Then
/// the point is x, and the gradient of u(x) through the point is 0.
/// @param sum  a function that replaces a sum over the items of this call by the sum over the whole batch, for example
///             over all shards (dist::SyncNorm). With Norm::batch, each of forward, infer and backward calls it once
/// @throws ArgumentError unless ρ >= 0, and ρ and γ are finite
/// @cost   two evaluations of the branch, 2·N·D kept values
/// @order  norms are summed in double, because the square of a float could under- or overflow. With Norm::batch, the
///         order is the fixed order of the backend
struct SharpnessAware {
  double rho = 0.05, gamma = 1;
  Norm norm = Norm::item;

  static constexpr int evaluations = 2;

  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> normalized, point;  // [N, D] u(x)/‖u(x)‖ and the point z
    Tensor<double, 1, B> inverse;       // [N], or [1] for Norm::batch: 1/‖u(x)‖
  };
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index, Index, const Nothing<T, B>&) const {
    expect(rho >= 0, "SharpnessAware", "rho", "at least 0", rho);
    expect_finite("SharpnessAware", "rho", rho);
    expect_finite("SharpnessAware", "gamma", gamma);
  }

  template <class T, class B, class F, class SumT = WholeBatch>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved, const SumT& sum = {}) const {
    for (auto* t : {&saved.normalized, &saved.point}) t->resize(x.extent(0), x.extent(1));
    saved.inverse.resize(norms(x));
    step(ctx, x, f, y, saved.normalized.view(), saved.point.view(), saved.inverse.view(), sum);
  }
  template <class T, class B, class F, class SumT = WholeBatch>
  void infer(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, F&& f, Out<T, 2, B> y,
             const SumT& sum = {}) const {
    auto mark = ctx.mark();
    auto point = ctx.template scratch<T>(x.extent(0), x.extent(1));
    step(ctx, x, f, y, y, point, ctx.template scratch<double>(norms(x)), sum);
  }
  template <class T, class B, class F, class SumT = WholeBatch>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Nothing<T, B>&, Out<T, 2, B> dx, Nothing<T, B>&, const SumT& sum = {}) const {
    expect_shape("SharpnessAware.backward", "saved.normalized", saved.normalized, {x.extent(0), x.extent(1)});
    expect_shape("SharpnessAware.backward", "saved.point", saved.point, {x.extent(0), x.extent(1)});
    expect_shape("SharpnessAware.backward", "saved.inverse", saved.inverse, {norms(x)});
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1)), dz = ctx.template scratch<T>(x.extent(0), x.extent(1));
    auto slope = ctx.template scratch<T>(norms(x));
    fill(ctx, dz, 0);
    B::for_each(ctx, x.size(), functor::ScaledSumBackward<T>{T(gamma), dy.data(), du.data(), dx.data()});
    df(saved.point, du, dz, 1);
    inner_products(ctx, saved.normalized.view(), View<const T, 2, B>(dz), slope, sum);
    B::for_rows(ctx, x.extent(0),
                functor::SharpenBackward<T, B>{T(rho), saved.normalized, dz, slope, saved.inverse, du, dx});
    df(x, du, dx, 0);
  }

 private:
  /// Returns the smallest squared norm that does not count as 0. It is the square of the smallest positive normal
  /// number of type T. For double this square would underflow, so the function returns the smallest normal double.
  template <class T>
  static constexpr double least() {
    if constexpr (std::is_same_v<T, double>) {
      return std::numeric_limits<double>::min();
    } else {
      return double(std::numeric_limits<T>::min()) * double(std::numeric_limits<T>::min());
    }
  }
  /// Computes the forward pass of sharpness-aware minimisation, equation (1), with two evaluations of the branch.
  /// `normalized` and y may be the same memory.
  template <class C, class T, class B, class F, class SumT>
  void step(C& ctx, View<const T, 2, B> x, F& f, View<T, 2, B> y, View<T, 2, B> normalized, View<T, 2, B> point,
            View<double, 1, B> inverse, const SumT& sum) const {
    f(x, normalized, 0);
    inner_products(ctx, normalized, normalized, inverse, sum);
    B::for_each(ctx, inverse.size(), functor::InverseRoot{least<T>(), inverse.data()});
    B::for_rows(ctx, x.extent(0), functor::Sharpen<T, B>{T(rho), x, inverse, normalized, point});
    f(point, y, 1, functor::ScaledSum<T>{x.data(), T(gamma), y.data(), y.data()});
  }
  Index norms(const auto& x) const { return norm == Norm::item ? x.extent(0) : 1; }
  template <class C, class T, class Sum, class B, class SumT>
  void inner_products(C& ctx, View<T, 2, B> a, NonDeduced<View<const std::remove_const_t<T>, 2, B>> b,
                      View<Sum, 1, B> out, const SumT& sum) const {
    using U = std::remove_const_t<T>;
    if (norm == Norm::item) {
      B::for_rows(ctx, a.extent(0), functor::RowInnerProduct<U, B, Sum>{a, b, out});
    } else {
      fill(ctx, out, 0);
      add_inner_product(ctx, View<const U, 2, B>(a), b, out.data());
      sum(ctx, out.data(), out.size());
    }
  }
};

}  // namespace update

namespace functor {

/// Normalises the branch output u in place, n = u/‖u‖, and writes the point z = x − ρ n. `inverse` contains 1/‖u‖, one
/// value for each item, or one for all items.
template <class T, class B>
struct Sharpen {
  T rho;
  View<const T, 2, B> x;
  View<const double, 1, B> inverse;
  View<T, 2, B> normalized, z;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const double scale = inverse(inverse.size() > 1 ? n : 0);
    for (Index d = lanes.lane; d < x.extent(1); d += lanes.size) {
      const T v = T(double(normalized(n, d)) * scale);
      normalized(n, d) = v;
      z(n, d) = x(n, d) - rho * v;
    }
  }
};
/// Backward pass of y = x + γ u for one element: writes du = γ dy, and adds dy to dx.
template <class T>
struct ScaledSumBackward {
  using Element = T;
  T gamma;
  const T* dy;
  T *du, *dx;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto out = at.load(dy + i);
    at.store(du + i, gamma * out);
    at.store(dx + i, at.load(dx + i) + out);
  }
};
/// Backward pass of Sharpen for item n, with n̂ = u/‖u‖: writes du = −ρ (dz − n̂ ⟨n̂, dz⟩) / ‖u‖, and adds dz to dx.
template <class T, class B>
struct SharpenBackward {
  T rho;
  View<const T, 2, B> normalized, dz;
  View<const T, 1, B> slope;  // ⟨n̂, dz⟩, one value for each item, or one for all items
  View<const double, 1, B> inverse;
  View<T, 2, B> du, dx;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index s = inverse.size() > 1 ? n : 0;
    const double scale = double(-rho) * inverse(s);
    const T along = slope(s);
    for (Index d = lanes.lane; d < normalized.extent(1); d += lanes.size) {
      const T v = dz(n, d);
      du(n, d) = T(scale * double(v - normalized(n, d) * along));
      dx(n, d) += v;
    }
  }
};

}  // namespace functor

}  // namespace gatefold
