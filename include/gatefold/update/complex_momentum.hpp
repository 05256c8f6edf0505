#pragma once

#include <cmath>
#include <numbers>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/policy.hpp"
#include "gatefold/update/momentum.hpp"

namespace gatefold {

namespace fn {

/// p ← μ p + u,   y = x + γ Re p,   p = re + i im
template <class T>
struct ComplexStep {
  T mu_re, mu_im, gamma;
  const T *x, *u;
  T *re, *im, *y;
  GATEFOLD_HD void operator()(Index i) const {
    const T a = re[i], b = im[i];
    re[i] = mu_re * a - mu_im * b + u[i];
    im[i] = mu_im * a + mu_re * b;
    y[i] = x[i] + gamma * re[i];
  }
};
/// du = γ dy + dre,   (dre, dim) ← μ̄ (du, dim)
template <class T>
struct ComplexBackward {
  T mu_re, mu_im, gamma;
  const T* dy;
  T *dre, *dim, *du;
  GATEFOLD_HD void operator()(Index i) const {
    du[i] = gamma * dy[i] + dre[i];
    const T b = dim[i];
    dre[i] = mu_re * du[i] + mu_im * b;
    dim[i] = mu_re * b - mu_im * du[i];
  }
};

}  // namespace fn

namespace update {

/// Heavy-ball momentum that turns in the complex plane: it adds and subtracts in turn, with a frequency of its own.
///
///     p ← μ p + u(x),   y = x + γ Re p,   μ = modulus · exp(i phase),   p = 0 before the first layer    (1)
///
/// Source: paper 001, eq. (21), with u = −f; Lorraine et al. 2021, arXiv:2102.08431. The paper does not give its μ; the
/// modulus here is that of its heavy ball, the phase π/8. Phase 0 is HeavyBall, phase π its negative momentum.
/// @param carry  re, im [N, D], the parts of p
/// @throws ArgumentError unless modulus, phase and γ are finite
/// @cost  5·N·D multiply-adds, 2·N·D carried values
struct ComplexMomentum {
  double modulus = 0.7, phase = std::numbers::pi / 8, gamma = 1;

  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> re, im;  // [N, D]
    template <class F, class... C>
    static void each(F&& f, C&... c) {
      f("re", c.re...);
      f("im", c.im...);
    }
  };
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    for (auto* part : {&carry.re, &carry.im}) {
      part->resize(items, dim);
      fill(ctx, part->view(), 0);
    }
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    expect_finite("ComplexMomentum", "modulus", modulus);
    expect_finite("ComplexMomentum", "phase", phase);
    expect_finite("ComplexMomentum", "gamma", gamma);
    expect_shape("ComplexMomentum", "carry.re", carry.re, {items, dim});
    expect_shape("ComplexMomentum", "carry.im", carry.im, {items, dim});
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
               Out<T, 2, B> y, Nothing<T, B>&) const {
    auto mark = ctx.mark();
    auto u = ctx.template scratch<T>(x.extent(0), x.extent(1));
    f(x, u, 0);
    B::for_each(ctx, x.size(), fn::ComplexStep<T>{T(mu_re()), T(mu_im()), T(gamma), x.data(), u.data(),
                                                  carry.re.data(), carry.im.data(), y.data()});
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Nothing<T, B>&, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    B::for_each(ctx, x.size(), fn::ComplexBackward<T>{T(mu_re()), T(mu_im()), T(gamma), dy.data(), dcarry.re.data(),
                                                      dcarry.im.data(), du.data()});
    add(ctx, dy, dx);
    df(x, du, dx, 0);
  }

 private:
  double mu_re() const { return modulus * std::cos(phase); }
  double mu_im() const { return modulus * std::sin(phase); }
};

}  // namespace update
}  // namespace gatefold
