#pragma once

#include "gatefold/update/momentum.hpp"

namespace gatefold::update {

/// An update rule with Nesterov's accelerated gradient over the layers of a model. A layer with input x evaluates its
/// branch u at a point z, returns y, and passes the momentum p to the next layer.
///
///     z = x ∓ μ γ p,   p ← μ p + u(z),   y = x + γ p,   p = 0 before the first layer                    (1)
/// Source: paper 001, App. E.4 (NAG-SMoE), whose f is −u; Nesterov 1983. The paper's momentum is γ p, which includes
/// the step size; the residual stream is the same. The paper prints the point as x − μ γ p. With the paper's sign of p,
/// this point is behind the stream. Nesterov's point x + μ γ p is ahead, in the direction in which the momentum moves
/// the stream: use `classical()`.
/// @param carry  p [N, D]
/// @throws ArgumentError unless μ and γ are finite
/// @cost  3·N·D multiply-adds, N·D carried and N·D kept values
struct Nesterov {
  double mu = 0.7, gamma = 1;
  // Selects the point at which the branch is evaluated: z = x + μ γ p if true, or z = x − μ γ p, as in the paper, if
  // false.
  bool ahead = false;

  static Nesterov classical(double mu = 0.7, double gamma = 1) { return {mu, gamma, true}; }

  GATEFOLD_MOMENTUM(Nesterov)
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> point;  // [N, D] z
  };
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    expect_finite("Nesterov", "mu", mu);
    expect_finite("Nesterov", "gamma", gamma);
    carry.validate("Nesterov", items, dim);
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    saved.point.resize(x.extent(0), x.extent(1));
    look_ahead(ctx, mu, gamma, distance(), x, f, carry.p.view(), y, saved.point.view());
  }
  template <class T, class B, class F>
  void infer(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    auto mark = ctx.mark();
    look_ahead(ctx, mu, gamma, distance(), x, f, carry.p.view(), y, ctx.template scratch<T>(x.extent(0), x.extent(1)));
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    expect_shape("Nesterov.backward", "saved.point", saved.point, {dy.extent(0), dy.extent(1)});
    look_ahead_backward(ctx, mu, gamma, distance(), saved.point, df, dy, dcarry.p.view(), dx);
  }

 private:
  double distance() const { return ahead ? mu * gamma : -mu * gamma; }
};

}  // namespace gatefold::update
