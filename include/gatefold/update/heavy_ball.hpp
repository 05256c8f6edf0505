#pragma once

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/policy.hpp"

namespace gatefold {

namespace fn {

/// p ← μ p + u,   y = x + γ p
template <class T>
struct HeavyBallStep {
  T mu, gamma;
  const T *x, *u;
  T *p, *y;
  GATEFOLD_HD void operator()(Index i) const {
    p[i] = mu * p[i] + u[i];
    y[i] = x[i] + gamma * p[i];
  }
};
/// du = γ dy + dp,   dp ← μ du
template <class T>
struct HeavyBallBackward {
  T mu, gamma;
  const T* dy;
  T *dp, *du;
  GATEFOLD_HD void operator()(Index i) const {
    du[i] = gamma * dy[i] + dp[i];
    dp[i] = mu * du[i];
  }
};

}  // namespace fn

namespace update {

/// Heavy-ball momentum through depth.
///
///     p ← μ p + u(x),   y = x + γ p,   p = 0 before the first layer                                     (1)
///
/// Source: paper 001 (MomentumSMoE), eq. (10), with u = −f; Polyak 1964. The reference code keeps −γ p instead and
/// subtracts; for constant γ the two are the same update. μ = 0.7, γ = 1 are its published settings; μ = 0, γ = 1 is
/// Plain, bit for bit for finite values, up to the sign of zero; μ < 0 is allowed.
/// @param carry  p [N, D]
/// @cost  2·N·D multiply-adds, N·D carried values; stable while |μ| < 1 and 0 < γσ < 2 + 2μ (paper 001, Lemma 1)
struct HeavyBall {
  double mu = 0.7, gamma = 1;

  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> p;  // [N, D]
    template <class F, class... C>
    static void each(F&& f, C&... c) {
      f("p", c.p...);
    }
  };
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    carry.p.resize(items, dim);
    fill(ctx, carry.p.view(), 0);
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    expect_shape("HeavyBall", "carry.p", carry.p, {items, dim});
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
               Out<T, 2, B> y, Nothing<T, B>&) const {
    auto mark = ctx.mark();
    auto u = ctx.template scratch<T>(x.extent(0), x.extent(1));
    f(x, u, 0);
    B::for_each(ctx, x.size(), fn::HeavyBallStep<T>{T(mu), T(gamma), x.data(), u.data(), carry.p.data(), y.data()});
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Nothing<T, B>&, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    B::for_each(ctx, x.size(), fn::HeavyBallBackward<T>{T(mu), T(gamma), dy.data(), dcarry.p.data(), du.data()});
    add(ctx, dy, dx);
    df(x, du, dx, 0);
  }
};

}  // namespace update
}  // namespace gatefold
