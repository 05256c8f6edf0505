#pragma once

#include <cmath>
#include <type_traits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/policy.hpp"
#include "gatefold/update/inner_product.hpp"
#include "gatefold/update/momentum.hpp"

namespace gatefold {

namespace fn {

/// s ← 1/√s, and 0 where s = 0
struct InverseRoot {
  double* s;
  GATEFOLD_HD void operator()(Index i) const { s[i] = s[i] > 0 ? 1 / std::sqrt(s[i]) : 0; }
};
/// n = u/‖u‖, in place;   z = x − ρ n.   `width` elements share a norm
template <class T>
struct Sharpen {
  T rho;
  Index width;
  const T* x;
  const double* inverse;
  T *unit, *z;
  GATEFOLD_HD void operator()(Index i) const {
    unit[i] = T(unit[i] * inverse[i / width]);
    z[i] = x[i] - rho * unit[i];
  }
};
/// du = −ρ (dz − n ⟨n, dz⟩) / ‖u‖
template <class T>
struct SharpenBackward {
  T rho;
  Index width;
  const T *unit, *slope, *dz;  // slope = ⟨n, dz⟩
  const double* inverse;
  T* du;
  GATEFOLD_HD void operator()(Index i) const {
    du[i] = T(-rho * inverse[i / width] * (dz[i] - unit[i] * slope[i / width]));
  }
};

}  // namespace fn

namespace update {

/// What shares a norm.
enum class Norm { item, batch };

/// Sharpness-aware minimisation through depth: the step of a point uphill.
///
///     z = x − ρ u(x) / ‖u(x)‖,   y = x + γ u(z)                                                         (1)
///
/// Source: paper 001, App. E.4 (SAM-SMoE), with u = −f; Foret et al. 2020, arXiv:2010.01412. The norm is each item's, so
/// that no item depends on its batch; `Norm::batch` is the reference code's, over all items at once. Where u(x) = 0 the
/// point is x, and what comes back to u(x) is 0.
/// @throws ArgumentError unless ρ >= 0 and γ is finite
/// @cost   two evaluations of the branch, N·D kept values twice
/// @order  norms are summed in double, so that no float's square under- or overflows; Norm::batch in the backend's fixed
///         order
struct SharpnessAware {
  double rho = 0.05, gamma = 1;
  Norm norm = Norm::item;

  static constexpr int evaluations = 2;

  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> unit, point;   // [N, D] u(x)/‖u(x)‖, z
    Tensor<double, 1, B> inverse;  // [N], or [1] of the batch: 1/‖u(x)‖
  };
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index, Index, const Nothing<T, B>&) const {
    expect(rho >= 0, "SharpnessAware", "rho", "at least 0", rho);
    expect_finite("SharpnessAware", "rho", rho);
    expect_finite("SharpnessAware", "gamma", gamma);
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    auto u = ctx.template scratch<T>(x.extent(0), x.extent(1));
    for (auto* t : {&saved.unit, &saved.point}) t->resize(x.extent(0), x.extent(1));
    saved.inverse.resize(norms(x));
    f(x, saved.unit, 0);
    inner_products(ctx, saved.unit.view(), saved.unit.view(), saved.inverse.view());
    B::for_each(ctx, saved.inverse.size(), fn::InverseRoot{saved.inverse.data()});
    B::for_each(ctx, x.size(), fn::Sharpen<T>{T(rho), width(x), x.data(), saved.inverse.data(), saved.unit.data(),
                                              saved.point.data()});
    f(saved.point, u, 1);
    B::for_each(ctx, x.size(), fn::ScaledSum<T>{x.data(), T(gamma), u.data(), y.data()});
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Nothing<T, B>&, Out<T, 2, B> dx, Nothing<T, B>&) const {
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1)), dz = ctx.template scratch<T>(x.extent(0), x.extent(1));
    auto slope = ctx.template scratch<T>(norms(x));
    fill(ctx, dz, 0);
    fill(ctx, du, 0);
    add_scaled(ctx, T(gamma), dy, du);
    df(saved.point, du, dz, 1);
    inner_products(ctx, saved.unit.view(), View<const T, 2, B>(dz), slope);
    B::for_each(ctx, x.size(), fn::SharpenBackward<T>{T(rho), width(x), saved.unit.data(), slope.data(), dz.data(),
                                                      saved.inverse.data(), du.data()});
    add(ctx, dy, dx);
    add(ctx, dz, dx);
    df(x, du, dx, 0);
  }

 private:
  template <class V>
  Index norms(const V& x) const {
    return norm == Norm::item ? x.extent(0) : 1;
  }
  template <class V>
  Index width(const V& x) const {
    return norm == Norm::item ? x.extent(1) : x.size();
  }
  template <class C, class T, class Sum, class B>
  void inner_products(C& ctx, View<T, 2, B> a, Same<View<const std::remove_const_t<T>, 2, B>> b, View<Sum, 1, B> out) const {
    using U = std::remove_const_t<T>;
    if (norm == Norm::item) {
      B::for_rows(ctx, a.extent(0), fn::RowInnerProduct<U, B, Sum>{a, b, out});
    } else {
      fill(ctx, out, 0);
      B::template reduce<Sum>(ctx, a.size(), fn::InnerProduct<U, Sum>{a.data(), b.data()}, out.data());
    }
  }
};

}  // namespace update
}  // namespace gatefold
