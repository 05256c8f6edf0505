#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/order.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/hooks.hpp"
#include "gatefold/tensor/pack.hpp"

/// The family of optimizers: how parameters follow their gradients. An optimizer is an aggregate with a learning rate
/// `lr`, or a member `optimizer` that has one, and
///
///     template <class Pack> struct State;                          // a pack, with Index step
///     State<Pack> begin(ctx, params) const;
///     step(ctx, params, grads, state) const;                       // may overwrite grads
///     validate() const;                                            // optional: throws on options that do not fit
///     expect_step(params, grads, state) const;                     // optional: throws what step would throw
///
/// and the tag IsOptimizer, so that one in the place of an update rule gets a clear message. Wrappers such as Clipped
/// and Scheduled are optimizers too. One that reads all gradients before it writes the first parameter, for their norm,
/// has this reading as a function of its own, whose result it takes:
///
///     auto measure(ctx, grads) const;                              // has `const double* total`: see Measured
///     step(ctx, params, grads, state, measured) const;
///
/// and one of several processes adds theirs up before that: reduce(ctx, grads) const.
namespace gatefold {

namespace functor {

/// sums[r] = Σ 0 · x over part r: 0 where all are finite, else NaN
template <class T>
struct FiniteSum {
  Parts parts;
  const T* x;
  T zero;  // unknown_zero
  double* sums;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index r) const {
    const T* from = x + parts.begin(r);
    const T sum =
        sum_columns<T>(lanes, parts.elements(r), [&](const auto& at, Index j) { return at.load(from + j) * zero; });
    if (lanes.lane == 0) sums[r] = static_cast<double>(sum);
  }
};

}  // namespace functor

namespace optim {

/// Whether an optimizer has a member `double lr`.
template <class O>
concept OwnsRate = requires(const O optimizer) {
  { optimizer.lr } -> std::convertible_to<double>;
};
/// Whether an optimizer has a rate: its own, or that of its member `optimizer`.
template <class O>
constexpr bool has_rate() {
  if constexpr (requires { requires OwnsRate<O>; }) {
    return true;
  } else if constexpr (requires(const O wrapper) { wrapper.optimizer; }) {
    return has_rate<decltype(O::optimizer)>();
  } else {
    return false;
  }
}
/// A type that declares itself an optimizer by IsOptimizer, and has a rate.
template <class O>
concept Optimizer = requires {
  typename O::IsOptimizer;
}
&&has_rate<O>();

/// What an optimizer keeps of parameters.
template <class O, class Pack>
concept KeepsState = requires(typename O::template State<Pack> state) {
  { state.step } -> std::convertible_to<Index>;
};
/// How it begins with them.
template <class O, class C, class Pack>
concept BeginsState = requires(const O optimizer, C& ctx, const Pack& params) {
  { optimizer.begin(ctx, params) } -> std::convertible_to<typename O::template State<Pack>>;
};
/// How it steps them, with what it measured of their gradients or without.
template <class O, class C, class Pack>
concept StepsParameters = requires(const O optimizer, C& ctx, Pack& pack, typename O::template State<Pack>& state) {
  requires requires { optimizer.step(ctx, pack, pack, state); } || requires {
    optimizer.step(ctx, pack, pack, state, optimizer.measure(ctx, std::as_const(pack)));
  };
};

/// True for an optimizer of such parameters; otherwise one sentence says what it lacks.
template <class O, class C, class Pack>
constexpr bool check() {
  GATEFOLD_EXPECT((requires { typename O::IsOptimizer; }),
                  "gatefold: a Trainer needs an optimizer (gatefold::optim) that steps parameters; update rules "
                  "(gatefold::update) belong into a Residual, and an optimizer of your own says using IsOptimizer = "
                  "void; see docs/how-to/extending_parts.md#optimizer")
  GATEFOLD_EXPECT((KeepsState<O, Pack>),
                  "gatefold: an optimizer has template <class Pack> struct State, a pack with a member Index step; see "
                  "docs/how-to/extending_parts.md#optimizer")
  GATEFOLD_EXPECT((BeginsState<O, C, Pack>),
                  "gatefold: an optimizer has State<Pack> begin(ctx, params) const, with params const Pack&; see "
                  "docs/how-to/extending_parts.md#optimizer")
  GATEFOLD_EXPECT((StepsParameters<O, C, Pack>),
                  "gatefold: an optimizer has step(ctx, params, grads, state) const, with both packs Pack& and state "
                  "State<Pack>&; see docs/how-to/extending_parts.md#optimizer")
  return detail_::pack::check<typename O::template State<Pack>>();
}

/// The number of steps taken, and nothing else.
template <class Pack>
struct StepCount {
  Index step = 0;
  static void each(auto&&, auto&...) {}
};

/// True for what may stand inside another optimizer; otherwise one sentence says so.
template <class O>
constexpr bool check_inside() {
  GATEFOLD_REQUIRE(!detail_::named::reduce<O>(),
                   "gatefold: what adds up the gradients of several processes is the outermost optimizer: "
                   "dist::DataParallel{Clipped{…}, &shard}; see docs/how-to/distributed.md");
  return true;
}

/// What stands where an optimizer belongs, for a sentence.
template <class P>
struct NoOptimizer {
  static constexpr bool is_without_rate = requires { typename P::IsOptimizer; };
  GATEFOLD_REQUIRE(!is_without_rate,
                   "gatefold: this wrapper needs an optimizer with a rate, .lr, and this one has none (the parts of an "
                   "InStages have: wrap those, InStages{1, 2, optim::Clipped{ffn, 1.0}, attention, fine}); see "
                   "docs/how-to/extending_parts.md#optimizer");
  GATEFOLD_REQUIRE(std::is_void_v<P> || is_without_rate,
                   "gatefold: this wrapper is around an optimizer (gatefold::optim), which comes first: "
                   "optim::Clipped{optim::AdamW{}, 1.0}, optim::Scheduled{optim::AdamW{}, schedule}; see "
                   "docs/how-to/extending_parts.md#optimizer");
  using IsOptimizer = void;
  double lr = 0;
  template <class Pack>
  using State = StepCount<Pack>;
};
template <class O>
using OrNoOptimizer = std::conditional_t<Optimizer<O>, O, NoOptimizer<O>>;

/// Returns the learning rate of an optimizer. A wrapper without an `lr` has that of the optimizer inside it: the rate
/// stands in one place, so that a change of it in the middle of a run takes effect in the next step.
template <class O>
double rate_of(const O& optimizer) {
  if constexpr (OwnsRate<O>) {
    return optimizer.lr;
  } else {
    return rate_of(optimizer.optimizer);
  }
}
template <class O>
void set_rate(O& optimizer, double lr) {
  if constexpr (OwnsRate<O>) {
    optimizer.lr = lr;
  } else {
    set_rate(optimizer.optimizer, lr);
  }
}
/// Returns the optimizer with another learning rate.
template <class O>
O with_rate(O optimizer, double lr) {
  set_rate(optimizer, lr);
  return optimizer;
}

/// How a step goes over a tensor: all elements at the rate of the optimizer. ExpertRates has another way.
struct OneRate {
  template <class C, class G, class StepT>
  void operator()(C& ctx, const Name&, const G& grad, const StepT& step) const {
    for_each_touched(ctx, grad, step);
  }
};

/// Require a rate, of learning or decay.
/// @throws ArgumentError unless it is finite and at least 0
inline void expect_rate(const char* where, const char* name, double rate) {
  expect(rate >= 0 && rate <= std::numeric_limits<double>::max(), where, name, "a finite number, at least 0", rate);
}
/// @throws ArgumentError where an optimizer says that its options do not fit
template <class O>
void validate_options(const O& optimizer) {
  if constexpr (detail_::hook::optimizer::validate<O>()) optimizer.validate();
}

/// Throw what a step of these would throw; nothing is changed. An optimizer that does not say has its options asked.
template <class O, class Pack, class StateT>
void expect_step(const O& optimizer, Pack& params, Pack& grads, StateT& state) {
  if constexpr (detail_::hook::optimizer::expect_step<const O, Pack, Pack, StateT>()) {
    optimizer.expect_step(params, grads, state);
  } else {
    validate_options(optimizer);
  }
}

/// Elements that one sum over a gradient takes.
inline constexpr Index summed_at_once = 4096;

/// What was found in all gradients before a step, in scratch memory of the backend.
struct Measured {
  const double* total =
      nullptr;  // finite unless a gradient is not (or the sum of their squares overflows, in double alone)
};

/// A number that is 0 when every value of a pack is finite, else NaN.
/// @cost  one reading of the pack, and one small launch a tensor; nothing is waited for
template <class C, class Pack>
Measured measure_finite(C& ctx, const Pack& pack) {
  using B = typename C::Backend;
  Index count = 0;
  for_each_learned([&](const Name&, const auto& t) { count += parts_of(t, summed_at_once).count(); }, pack);
  double* total = ctx.template scratch<double>(1).data();
  B::for_each(ctx, 1, functor::Fill<double>{0, total});
  auto mark = ctx.mark();
  double* sums = ctx.template scratch<double>(count).data();
  Index done = 0;
  for_each_learned(
      [&](const Name&, const auto& t) {
        using T = std::remove_cvref_t<decltype(*t.data())>;
        const Parts parts = parts_of(t, summed_at_once);
        B::for_rows(ctx, parts.count(),
                    functor::FiniteSum<T>{parts, t.data(), functor::unknown_zero<T>(), sums + done});
        done += parts.count();
      },
      pack);
  B::template reduce<double>(ctx, count, functor::Term<double>{sums}, total);
  return {total};
}

/// Bring the gradients of several processes together, where the optimizer says how.
template <class O, class C, class Pack>
void reduce_gradients(const O& optimizer, C& ctx, Pack& grads) {
  if constexpr (detail_::hook::optimizer::reduce<const O, C, Pack>()) optimizer.reduce(ctx, grads);
}
/// Read what there is to know of all gradients before a step: by the pass that the optimizer makes over them anyway,
/// where it makes one, else by measure_finite. The result lives as long as the caller's mark.
template <class O, class C, class Pack>
auto measure_gradients(const O& optimizer, C& ctx, const Pack& grads) {
  if constexpr (detail_::hook::optimizer::measure<const O, C, const Pack>()) {
    return optimizer.measure(ctx, grads);
  } else {
    return measure_finite(ctx, grads);
  }
}
/// The step after measure_gradients.
template <class O, class C, class Pack, class StateT, class MeasuredT>
void measured_step(const O& optimizer, C& ctx, Pack& params, Pack& grads, StateT& state, const MeasuredT& measured) {
  if constexpr (detail_::hook::optimizer::measure<const O, C, const Pack>()) {
    optimizer.step(ctx, params, grads, state, measured);
  } else {
    optimizer.step(ctx, params, grads, state);
  }
}

}  // namespace optim
}  // namespace gatefold
