#pragma once

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/update/pass.hpp"
#include "gatefold/update/update.hpp"

/// The update rules HeavyBall and Nesterov, and functions that all rules with momentum use. They compute one step over
/// a layer with input x, branch output u and result y, and its backward pass. The momentum p is passed from layer to
/// layer. The branch is evaluated at x, or at a look-ahead point z. Each rule passes its own coefficients a, μ and γ.
///
///     z = x + a p,   p ← μ p + u(z),   y = x + γ p                                                      (1)
namespace gatefold {

GATEFOLD_FUNCTORS((class T), HeavyBallStep, HeavyBallBackward, LookAheadBackward);
GATEFOLD_FUNCTORS((class T, class B, class Sum = T), RowInnerProduct);

namespace update {

/// The state of an update rule with momentum, which is passed from layer to layer. The momentum p is 0 before the first
/// layer. RuleT is the rule. With it, the states of different rules have different types, so that a Chain keeps one
/// state for each rule.
template <class RuleT, class T, class B>
struct Momentum {
  Tensor<T, 2, B> p;  // [N, D]
  Index layer = 0;    // number of layers of this rule that have run; only ScheduledMomentum counts them
  Pass pass{};
  GATEFOLD_PACK(p)
  void begin(typename B::Context& ctx, Index items, Index dim) {
    layer = 0;
    p.resize(items, dim);
    fill(ctx, p.view(), 0);
  }
  void validate(const char* rule, Index items, Index dim) const { expect_shape(rule, "carry.p", p, {items, dim}); }
};

// Defines Carry and begin of an update rule whose state between layers is a Momentum.
#define GATEFOLD_MOMENTUM(Rule)                                                                                    \
  template <class T, class B>                                                                                      \
  using Carry = ::gatefold::update::Momentum<Rule, T, B>;                                                          \
  template <class T, class B>                                                                                      \
  void begin(typename B::Context& ctx, ::gatefold::Index items, ::gatefold::Index dim, Carry<T, B>& carry) const { \
    carry.begin(ctx, items, dim);                                                                                  \
  }

/// Computes one momentum step over a layer: p ← μ p + u(z),   y = x + γ p, with the branch u evaluated at z = `point`.
/// The branch output is first written to the memory of y.
template <class T, class B, class F>
void momentum_forward(double mu, double gamma, View<const T, 2, B> x, NonDeduced<View<const T, 2, B>> point, F&& f,
                      View<T, 2, B> p, View<T, 2, B> y) {
  f(point, y, 0, functor::HeavyBallStep<T>{T(mu), T(gamma), x.data(), y.data(), p.data(), y.data()});
}
/// Computes the backward pass of momentum_forward. Replaces dp, the gradient of the momentum after the layer, by the
/// gradient of the momentum before it. Adds to dx and dpoint, which may be the same memory.
template <class C, class T, class B, class F>
void momentum_backward(C& ctx, double mu, double gamma, View<const T, 2, B> point, F&& df, View<const T, 2, B> dy,
                       View<T, 2, B> dp, View<T, 2, B> dx, View<T, 2, B> dpoint) {
  auto mark = ctx.mark();
  auto du = ctx.template scratch<T>(dy.extent(0), dy.extent(1));
  B::for_each(ctx, dy.size(),
              functor::HeavyBallBackward<T>{T(mu), T(gamma), dy.data(), dp.data(), du.data(), dx.data()});
  df(point, du, dpoint, 0);
}

/// Computes one momentum step with look-ahead over a layer: z = x + `ahead` · p,   p ← μ p + u(z),   y = x + γ p.
/// Writes z to `point`, because backward needs it.
template <class C, class T, class B, class F>
void look_ahead(C& ctx, double mu, double gamma, double ahead, View<const T, 2, B> x, F&& f, View<T, 2, B> p,
                View<T, 2, B> y, View<T, 2, B> point) {
  B::for_each(ctx, x.size(), functor::ScaledSum<T>{x.data(), T(ahead), p.data(), point.data()});
  momentum_forward(mu, gamma, x, point, f, p, y);
}
/// Computes the backward pass of look_ahead. First calls momentum_backward, in which df computes dz, the gradient with
/// respect to the point z = x + `ahead` · p. Then adds dz to dx, and `ahead` · dz to dp.
template <class C, class T, class B, class F>
void look_ahead_backward(C& ctx, double mu, double gamma, double ahead, const Tensor<T, 2, B>& point, F&& df,
                         View<const T, 2, B> dy, View<T, 2, B> dp, View<T, 2, B> dx) {
  auto mark = ctx.mark();
  auto dpoint = ctx.template scratch<T>(dy.extent(0), dy.extent(1));
  fill(ctx, dpoint, 0);
  momentum_backward(ctx, mu, gamma, point.view(), df, dy, dp, dx, dpoint);
  B::for_each(ctx, dy.size(), functor::LookAheadBackward<T>{T(ahead), dpoint.data(), dp.data(), dx.data()});
}

/// The default of the argument `sum` of SharpnessAware, a function that sums values over all parts of a batch, for
/// example over processes. WholeBatch is for a batch with one part and does nothing.
struct WholeBatch {
  template <class C, class T>
  void operator()(C&, T*, Index) const {}
};

/// Adds the inner product of two matrices, Σ_n ⟨a[n], b[n]⟩, to *out. The sum has the type `Sum`.
/// @order  the terms of each row are summed first, then the sums of the rows in a fixed order
template <class C, class T, class Sum, class B>
void add_inner_product(C& ctx, View<const T, 2, B> a, NonDeduced<View<const T, 2, B>> b, Sum* out) {
  auto mark = ctx.mark();
  auto rows = ctx.template scratch<Sum>(a.extent(0));
  B::for_rows(ctx, a.extent(0), functor::RowInnerProduct<T, B, Sum>{a, b, rows});
  B::template reduce<Sum>(ctx, a.extent(0), functor::Term<Sum>{rows.data()}, out);
}

}  // namespace update

namespace functor {

/// Computes a heavy-ball step for one element: p ← μ p + u,   y = x + γ p.   u and y may be the same memory.
template <class T>
struct HeavyBallStep {
  using Element = T;
  T mu, gamma;
  const T *x, *u;
  T *p, *y;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto now = mu * at.load(p + i) + at.load(u + i);
    at.store(p + i, now);
    at.store(y + i, at.load(x + i) + gamma * now);
  }
};
/// Backward pass of HeavyBallStep for one element. dy, dp, du and dx are the gradients of y, p, u and x: du = γ dy +
/// dp,   dp ← μ du,   dx += dy.
template <class T>
struct HeavyBallBackward {
  using Element = T;
  T mu, gamma;
  const T* dy;
  T *dp, *du, *dx;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto out = at.load(dy + i), in = gamma * out + at.load(dp + i);
    at.store(du + i, in);
    at.store(dp + i, mu * in);
    at.store(dx + i, at.load(dx + i) + out);
  }
};
/// Backward pass of the momentum update p ← μ p + u for one element, with dp the gradient of p after the update and du
/// the gradient of u from other uses of u: total = du + dp,   dp ← μ dp. `total` is the whole gradient of u.
template <class T>
struct MomentumBackward {
  using Element = T;
  T mu;
  const T* du;
  T *dp, *total;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto of_p = at.load(dp + i);
    at.store(total + i, at.load(du + i) + of_p);
    at.store(dp + i, mu * of_p);
  }
};
/// Backward pass of the look-ahead z = x + a p for one element, with dz the gradient of z: dx += dz,   dp += a dz.
template <class T>
struct LookAheadBackward {
  using Element = T;
  T ahead;
  const T* dz;
  T *dp, *dx;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto back = at.load(dz + i);
    at.store(dx + i, at.load(dx + i) + back);
    at.store(dp + i, at.load(dp + i) + ahead * back);
  }
};

/// Returns the product a[i] · b[i] in the type `Sum`: term i of an inner product that the primitive `reduce` sums.
template <class T, class Sum = T>
struct InnerProduct {
  const T *a, *b;
  GATEFOLD_HD Sum operator()(Index i) const { return Sum(a[i]) * Sum(b[i]); }
};
/// Writes the inner product of row n of two matrices: out[n] = ⟨a[n], b[n]⟩, summed in the type `Sum`.
template <class T, class B, class Sum>
struct RowInnerProduct {
  View<const T, 2, B> a, b;
  View<Sum, 1, B> out;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Sum v = inner_product<Sum>(lanes, a.extent(1), &a(n, 0), &b(n, 0));
    if (lanes.lane == 0) out(n) = v;
  }
};

}  // namespace functor

namespace update {

/// An update rule with heavy-ball momentum over the layers of a model. A layer with input x and branch output u(x)
/// returns y, and passes the momentum p to the next layer.
///
///     p ← μ p + u(x),   y = x + γ p,   p = 0 before the first layer                                     (1)
///
/// Source: paper 001 (MomentumSMoE), eq. (10), whose f is −u; Polyak 1964. The paper's code stores −γ p instead of p
/// and subtracts it; for constant γ the result y is the same. The defaults μ = 0.7, γ = 1 are the published settings.
/// With μ = 0, γ = 1 the rule equals Plain, bit for bit for finite values, except for the sign of zero. μ < 0 is the
/// negative momentum of App. E.4. The rule is stable while |μ| < 1 and 0 < γσ < 2 + 2μ for all eigenvalues σ of −∂u/∂x,
/// if they are real (metric::stability, papers/jacobian.hpp).
/// @param carry  p [N, D]
/// @throws ArgumentError unless μ and γ are finite
/// @cost  2·N·D multiply-adds, N·D carried values
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

/// An update rule with Nesterov's accelerated gradient over the layers of a model. A layer with input x evaluates its
/// branch u at a point z, returns y, and passes the momentum p to the next layer.
///
///     z = x ∓ μ γ p,   p ← μ p + u(z),   y = x + γ p,   p = 0 before the first layer                    (1)
/// Source: paper 001, App. E.4 (NAG-SMoE), whose f is −u; Nesterov 1983. The paper's momentum is γ p, which includes
/// the step size; the residual stream is the same. The paper prints the point as x − μ γ p. With the paper's sign of p,
/// the momentum moves x in the direction of γ p, so this point is behind x. Nesterov's point x + μ γ p is ahead of x:
/// use `classical()`.
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

}  // namespace update

}  // namespace gatefold
