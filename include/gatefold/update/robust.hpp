#pragma once

#include "gatefold/update/momentum.hpp"

namespace gatefold::update {

/// An update rule with robust heavy-ball momentum over the layers. A layer with input x evaluates its branch u at a
/// look-ahead point z, returns y, and passes the momentum q to the next layer.
///
///     z = x + α γ q,   q ← μ q + u(z),   y = x + γ q,   q = 0 before the first layer                    (1)
///     γ = k (1−p)² (1+p) / L,   μ = k p³ / (k−1),   α = p³ / ((k−1) (1−p)² (1+p))                       (2)
///
/// Source: paper 001, eq. (17), (18), whose f is −u; Cyrus et al. 2018, arXiv:1710.04753. From (2), α γ = μ / L. The
/// defaults are the values of the paper's code: γ = 0.96, μ = 0.04, α = 1/24. The momentum is called q because p, k and
/// L are options (`p`, `k`, `l`).
/// @param carry  q [N, D], under the name p as in the other rules
/// @throws ArgumentError unless 1 < k < ∞ (k is the condition number; (2) divides by zero at k = 1), 0 <= p < 1 and
///         0 < l < ∞
/// @cost   3·N·D multiply-adds, N·D carried and N·D kept values
struct Robust {
  double p = 0.2, k = 1.25, l = 1;

  double gamma() const { return k * (1 - p) * (1 - p) * (1 + p) / l; }
  double mu() const { return k * p * p * p / (k - 1); }
  double alpha() const { return p * p * p / ((k - 1) * (1 - p) * (1 - p) * (1 + p)); }

  GATEFOLD_MOMENTUM(Robust)
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> point;  // [N, D] z
  };
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    expect(k > 1, "Robust", "k", "more than 1", k);
    expect(p >= 0 && p < 1, "Robust", "p", "0 <= p < 1", p);
    expect(l > 0, "Robust", "l", "more than 0", l);
    expect_finite("Robust", "k", k);
    expect_finite("Robust", "l", l);
    carry.validate("Robust", items, dim);
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    saved.point.resize(x.extent(0), x.extent(1));
    look_ahead(ctx, mu(), gamma(), alpha() * gamma(), x, f, carry.p.view(), y, saved.point.view());
  }
  template <class T, class B, class F>
  void infer(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    auto mark = ctx.mark();
    look_ahead(ctx, mu(), gamma(), alpha() * gamma(), x, f, carry.p.view(), y,
               ctx.template scratch<T>(x.extent(0), x.extent(1)));
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    expect_shape("Robust.backward", "saved.point", saved.point, {dy.extent(0), dy.extent(1)});
    look_ahead_backward(ctx, mu(), gamma(), alpha() * gamma(), saved.point, df, dy, dcarry.p.view(), dx);
  }
};

/// The ordinary residual connection as an update rule, for a layer with input x and output y. The branch u is evaluated
/// at the look-ahead point z of the rule Robust. q is the momentum of Robust. The vision code of paper 001 uses this
/// rule in the dense layers between mixtures of experts.
///
///     z = x + α γ q,   y = x + u(z),   q unchanged                                                      (1)
///
/// Source: paper 001's code (vmoe), whose dense layers read the look-ahead point and do not change the momentum.
/// @param robust  the rule that gives α and γ; in a Chain, q is the state of the layers with that rule
/// @param carry   q [N, D] of Robust, read and not changed
/// @throws ArgumentError under the same conditions as Robust
/// @cost   2·N·D multiply-adds, N·D kept values
struct PlainAhead {
  Robust robust{};

  template <class T, class B>
  using Carry = Robust::Carry<T, B>;
  template <class T, class B>
  using Saved = Robust::Saved<T, B>;
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    carry.begin(ctx, items, dim);
  }
  template <class T, class B>
  void validate(const Nothing<T, B>& p, Index items, Index dim, const Carry<T, B>& carry) const {
    robust.validate(p, items, dim, carry);
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    saved.point.resize(x.extent(0), x.extent(1));
    step(ctx, x, carry.p.view(), f, y, saved.point.view());
  }
  template <class T, class B, class F>
  void infer(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    auto mark = ctx.mark();
    step(ctx, x, carry.p.view(), f, y, ctx.template scratch<T>(x.extent(0), x.extent(1)));
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    expect_shape("PlainAhead.backward", "saved.point", saved.point, {dy.extent(0), dy.extent(1)});
    auto mark = ctx.mark();
    auto dpoint = ctx.template scratch<T>(dy.extent(0), dy.extent(1));
    fill(ctx, dpoint, 0);
    df(saved.point.view(), dy, dpoint, 0);
    add(ctx, dy, dx);
    B::for_each(ctx, dy.size(), functor::LookAheadBackward<T>{T(ahead()), dpoint.data(), dcarry.p.data(), dx.data()});
  }

 private:
  double ahead() const { return robust.alpha() * robust.gamma(); }

  template <class C, class T, class B, class F>
  void step(C& ctx, View<const T, 2, B> x, View<T, 2, B> q, F&& f, View<T, 2, B> y, View<T, 2, B> point) const {
    B::for_each(ctx, x.size(), functor::ScaledSum<T>{x.data(), T(ahead()), q.data(), point.data()});
    f(point, y, 0, functor::AddScaled<T>{T(1), x.data(), y.data()});
  }
};

}  // namespace gatefold::update
