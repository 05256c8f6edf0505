#pragma once

#include "gatefold/update/momentum.hpp"

namespace gatefold::update {

/// An update rule with heavy-ball momentum over the layers and a coefficient μ_t that depends on the number t of the
/// layer. A layer with input x and branch output u(x) returns y, and passes the momentum p to the next layer.
///
///     p ← μ_t p + u(x),   y = x + γ p,   p = 0 before and t = 1 in the first layer                      (1)
///
/// A schedule is a struct with `double mu(Index t) const`. If its options can be wrong, it also has `void validate()
/// const`, which throws ArgumentError. t counts the layers with this rule.
/// Source: paper 001, App. E.1 and E.4, which write f for −u.
/// @param carry  p [N, D] and the number of completed layers
/// @throws ArgumentError unless γ is finite; also the errors of the schedule's `validate`
/// @cost  2·N·D multiply-adds; N·D carried values
template <class ScheduleT>
struct ScheduledMomentum {
  ScheduleT schedule{};
  double gamma = 1;

  GATEFOLD_MOMENTUM(ScheduledMomentum)
  template <class T, class B>
  struct Saved {
    Index layer = 0;  // number t of the layer, from 1
  };
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

/// A schedule for the momentum coefficient μ_t of layer t. It grows from 0 in the first layer towards 1.
///
///     μ_t = (t − 1) / (t + 2),   t = 1 in the first layer                                               (1)
///
/// Source: paper 001, App. E.1 (time-varying momentum). The paper uses γ = 1.
struct GrowingMu {
  double mu(Index t) const { return static_cast<double>(t - 1) / static_cast<double>(t + 2); }
};

/// An update rule with heavy-ball momentum whose coefficient grows from layer to layer (GrowingMu), for example
/// TimeVarying{.gamma = 1}.
using TimeVarying = ScheduledMomentum<GrowingMu>;

/// A schedule for the momentum coefficient μ_t of layer t. The coefficient grows, and returns to 0 every `period`
/// layers.
///
///     μ_t = r / (r + 3),   r = (t + offset) mod period,   t = 1 in the first layer                      (1)
///
/// Source: paper 001, App. E.4 (scheduled restart), with period 3. The paper prints t mod 3 and does not say at which
/// number t begins, but it restarts the schedule "after layer 3" of 6. The default offset −1 matches this: μ_t is 0,
/// 1/4, 2/5, 0, …, and layers 4, 7, … discard the previous momentum. With `.offset = 0`, μ_t is 1/4, 2/5, 0, 1/4, …,
/// and layers 3, 6, … discard the previous momentum.
/// @throws ArgumentError unless period >= 1 and offset >= −1
struct RestartingMu {
  Index period = 3, offset = -1;

  double mu(Index t) const {
    const double r = static_cast<double>((t + offset) % period);
    return r / (r + 3);
  }
  void validate() const {
    expect(period >= 1, "ScheduledRestart", "period", "at least 1", period);
    expect(offset >= -1, "ScheduledRestart", "offset", "at least -1", offset);
  }
};

/// An update rule with heavy-ball momentum whose coefficient grows with the layers and returns to 0 every `period`
/// layers (RestartingMu), for example ScheduledRestart{.schedule = {.period = 3}, .gamma = 1}.
using ScheduledRestart = ScheduledMomentum<RestartingMu>;

}  // namespace gatefold::update
