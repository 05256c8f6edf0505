#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <type_traits>

#include "gatefold/optim/optimizer.hpp"

namespace gatefold::optim {

/// A schedule for the learning rate: the rate is multiplied by a factor that rises linearly to 1 in the first `warmup`
/// steps and then stays 1.
///
///     factor(t) = min(1, t / warmup),   t = 1 in the first step                                         (1)
///
/// Source: the language models of papers 001 and 002.
struct Warmup {
  Index warmup = 0;
  double factor(Index t) const {
    expect(warmup >= 0, "Warmup", "warmup", "at least 0", warmup);
    return t >= warmup ? 1.0 : static_cast<double>(t) / static_cast<double>(warmup);
  }
};

/// A schedule for the learning rate: the rate is multiplied by a factor that rises linearly to 1 in the first `warmup`
/// steps, and then falls along half a cosine to `floor` at step `total`.
///
///     factor(t) = t / warmup                                                for t < warmup              (2)
///               = floor + (1 − floor) (1 + cos(π (t−warmup)/(total−warmup))) / 2   up to total, then floor
///
/// Source: Loshchilov and Hutter 2016, arXiv:1608.03983, eq. (5), without restarts.
struct WarmupCosine {
  Index warmup = 0, total = 0;
  double floor = 0;
  double factor(Index t) const {
    expect(warmup >= 0, "WarmupCosine", "warmup", "at least 0", warmup);
    expect(total > warmup, "WarmupCosine", "total", Joined{"more than warmup = ", warmup}, total);
    expect_rate("WarmupCosine", "floor", floor);
    if (t < warmup) return static_cast<double>(t) / static_cast<double>(warmup);
    const double done = static_cast<double>(std::min(t, total) - warmup) / static_cast<double>(total - warmup);
    // The function calls std::fma, because files that are compiled for different instruction sets can share this
    // function. Otherwise, a compiler could use fma in some files only, and the bits would differ.
    return std::fma((1 - floor) * 0.5, 1 + std::cos(3.14159265358979323846 * done), floor);
  }
};

/// Wraps an optimizer, and multiplies its learning rate lr by the factor of a schedule: lr_t = lr · factor(t) in step
/// t, with t = 1 in the first step.
///
/// The rate of the inner optimizer is read at each step. For example, `trainer.optimizer.optimizer.lr = 1e-4` changes
/// the scale of all later steps.
template <Optimizer OptimizerT, class ScheduleT>
struct Scheduled {
  using IsOptimizer = void;
  static_assert(check_inside<OptimizerT>());
  GATEFOLD_REQUIRE(
      requires(const ScheduleT& of_steps) {
        requires std::floating_point<std::remove_cvref_t<decltype(of_steps.factor(Index{1}))>>;
      },
      "gatefold: Scheduled{optimizer, schedule} takes a schedule, whose factor(step), a double, multiplies the "
      "learning rate: Scheduled{optim::AdamW{}, optim::Warmup{1000}}; see docs/how-to/extending_parts.md#optimizer");
  OptimizerT optimizer;
  ScheduleT schedule;

  template <class Pack>
  using State = typename OptimizerT::template State<Pack>;
  /// Checks the options of the inner optimizer, with the learning rate of the first step.
  void validate() const { validate_options(at(1)); }
  template <class C, class Pack>
  auto begin(C& ctx, const Pack& params) const {
    return at(1).begin(ctx, params);
  }
  template <class Pack, class StateT>
  void expect_step(Pack& params, Pack& grads, StateT& state) const {
    optim::expect_step(at(state.step + 1), params, grads, state);
  }
  template <class C, class Pack>
  auto measure(C& ctx, const Pack& grads) const {
    return measure_gradients(optimizer, ctx, grads);
  }
  template <class C, class Pack, class StateT>
  void step(C& ctx, Pack& params, Pack& grads, StateT& state) const {
    const auto here = ctx.here();
    at(state.step + 1).step(ctx, params, grads, state);
  }
  template <class C, class Pack, class StateT, class MeasuredT>
  void step(C& ctx, Pack& params, Pack& grads, StateT& state, const MeasuredT& measured) const {
    const auto here = ctx.here();
    measured_step(at(state.step + 1), ctx, params, grads, state, measured);
  }

 private:
  OptimizerT at(Index t) const { return with_rate(optimizer, rate_of(optimizer) * schedule.factor(t)); }
};
template <class O, class S>
Scheduled(O, S) -> Scheduled<O, S>;
template <class First, class... Rest, class = std::enable_if_t<!Optimizer<First>>>
Scheduled(First, Rest...) -> Scheduled<NoOptimizer<First>, NoOptimizer<First>>;

}  // namespace gatefold::optim
