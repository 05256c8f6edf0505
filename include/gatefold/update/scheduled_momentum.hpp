#pragma once

#include "gatefold/update/momentum.hpp"

namespace gatefold::update {

/// An update rule with heavy-ball momentum over the layers and a coefficient μ_t that depends on the number t of the
/// layer. A layer with input x and branch output u(x) returns y, and passes the momentum p to the next layer.
///
///     p ← μ_t p + u(x),   y = x + γ p,   p = 0 before the first layer, t = 1 in it                      (1)
///
/// A schedule has `double mu(Index t) const`, and may have `void validate() const`. t counts the layers with this rule.
/// Source: paper 001, App. E.1 and E.4, whose f is −u.
/// @param carry  p [N, D] and the number of completed layers
/// @throws ArgumentError unless γ is finite; also the errors of the schedule's `validate`
/// @cost  as HeavyBall
template <class ScheduleT>
struct ScheduledMomentum {
  ScheduleT schedule{};
  double gamma = 1;

  template <class T, class B>
  using Carry = Momentum<ScheduledMomentum, T, B>;
  template <class T, class B>
  struct Saved {
    Index layer = 0;  // number t of the layer, from 1
  };
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    carry.begin(ctx, items, dim);
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    if constexpr (detail_::hook::schedule::validate<ScheduleT>()) schedule.validate();
    expect_finite("ScheduledMomentum", "gamma", gamma);
    carry.validate("ScheduledMomentum", items, dim);
  }

  template <class T, class B, class F>
  void forward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    saved.layer = ++carry.layer;
    momentum_forward(schedule.mu(saved.layer), gamma, x, x, f, carry.p.view(), y);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    expect(saved.layer >= 1, "ScheduledMomentum.backward", "saved.layer", "at least 1", saved.layer);
    momentum_backward(ctx, schedule.mu(saved.layer), gamma, x, df, dy, dcarry.p.view(), dx, dx);
  }
};

}  // namespace gatefold::update
