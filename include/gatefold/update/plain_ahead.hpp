#pragma once

#include "gatefold/update/robust.hpp"

namespace gatefold::update {

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
