#pragma once

#include "gatefold/update/momentum.hpp"

namespace gatefold::update {

/// An update rule with heavy-ball momentum over the layers of a model. A layer with input x and branch output u(x)
/// returns y, and passes the momentum p to the next layer.
///
///     p ← μ p + u(x),   y = x + γ p,   p = 0 before the first layer                                     (1)
///
/// Source: paper 001 (MomentumSMoE), eq. (10), whose f is −u; Polyak 1964. The paper's code stores −γ p instead and
/// subtracts; for constant γ both are the same update. The defaults μ = 0.7, γ = 1 are the published settings. With μ =
/// 0, γ = 1 the rule equals Plain, bit for bit for finite values, except for the sign of zero. μ < 0 is the negative
/// momentum of App. E.4.
/// @param carry  p [N, D]
/// @throws ArgumentError unless μ and γ are finite
/// @cost  2·N·D multiply-adds, N·D carried values; stable while |μ| < 1 and 0 < γσ < 2 + 2μ, with the σ of paper 001,
///         Lemma 1
struct HeavyBall {
  double mu = 0.7, gamma = 1;

  GATEFOLD_MOMENTUM(HeavyBall)
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    expect_finite("HeavyBall", "mu", mu);
    expect_finite("HeavyBall", "gamma", gamma);
    carry.validate("HeavyBall", items, dim);
  }

  template <class T, class B, class F>
  void forward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f, Out<T, 2, B> y,
               Nothing<T, B>&) const {
    momentum_forward(mu, gamma, x, x, f, carry.p.view(), y);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Nothing<T, B>&, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    momentum_backward(ctx, mu, gamma, x, df, dy, dcarry.p.view(), dx, dx);
  }
  template <class T, class B>
  functor::ScaledSum<T> advance(Momentum<HeavyBall, T, B>& carry, const T* u) const {
    return {u, T(mu), carry.p.data(), carry.p.data()};  // p ← u + μ p
  }
  template <class T, class B>
  functor::MomentumBackward<T> advance_backward(Momentum<HeavyBall, T, B>& dcarry, const T* du, T* total) const {
    return {T(mu), du, dcarry.p.data(), total};
  }
};

}  // namespace gatefold::update
