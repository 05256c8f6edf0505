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

/// The family of optimizers. An optimizer changes parameters by their gradients. It is an aggregate with a learning
/// rate `lr`, or with a member `optimizer` that has a learning rate. It also has these members:
///
///     template <class Pack> struct State;                          // a pack, with Index step
///     State<Pack> begin(ctx, params) const;
///     step(ctx, params, grads, state) const;                       // may overwrite grads
///     validate() const;                                            // optional: throws on options that do not fit
///     expect_step(params, grads, state) const;                     // optional: throws what step would throw
///
/// and the tag IsOptimizer. With this tag, the library can report that an optimizer is used as an update rule.
/// Wrappers, for example Clipped and Scheduled, are optimizers too.
///
/// Some optimizers read all gradients before they write the first parameter, for example for a norm. Such an optimizer
/// has a separate function `measure` for this, and the caller passes its result to `step`:
///
///     auto measure(ctx, grads) const;                              // has `const double* total`: see Measured
///     step(ctx, params, grads, state, measured) const;
///
/// An optimizer for several processes has `reduce(ctx, grads) const`, which adds up the gradients of all processes. It
/// is called before `measure`.
namespace gatefold {

namespace functor {

/// sums[r] = Σ 0 · x over part r: 0 if all values are finite, otherwise NaN
template <class T>
struct FiniteSum {
  Parts parts;
  const T* x;
  T zero;  // 0, but unknown to the compiler (unknown_zero)
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

/// True if an optimizer has a member `double lr`.
template <class O>
concept OwnsRate = requires(const O optimizer) {
  { optimizer.lr } -> std::convertible_to<double>;
};
/// Returns true if an optimizer has a learning rate: its own `lr`, or the rate of its member `optimizer`.
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
/// True for a type that has the tag IsOptimizer and a learning rate.
template <class O>
concept Optimizer = requires {
  typename O::IsOptimizer;
}
&&has_rate<O>();

/// True for an optimizer that has a State<Pack> with a count of steps.
template <class O, class Pack>
concept KeepsState = requires(typename O::template State<Pack> state) {
  { state.step } -> std::convertible_to<Index>;
};
/// True for an optimizer whose `begin` makes its State from parameters.
template <class O, class C, class Pack>
concept BeginsState = requires(const O optimizer, C& ctx, const Pack& params) {
  { optimizer.begin(ctx, params) } -> std::convertible_to<typename O::template State<Pack>>;
};
/// True for an optimizer with a function `step` that changes parameters. The result of `measure` may be its last
/// argument.
template <class O, class C, class Pack>
concept StepsParameters = requires(const O optimizer, C& ctx, Pack& pack, typename O::template State<Pack>& state) {
  requires requires { optimizer.step(ctx, pack, pack, state); } || requires {
    optimizer.step(ctx, pack, pack, state, optimizer.measure(ctx, std::as_const(pack)));
  };
};

/// Returns true if O is an optimizer for parameters of type Pack. If it is not, a static_assert names the missing
/// member.
template <class O, class C, class Pack>
constexpr bool check() {
  GATEFOLD_EXPECT((requires { typename O::IsOptimizer; }),
                  "gatefold: a Trainer needs an optimizer (gatefold::optim), which steps parameters; update rules "
                  "(gatefold::update) belong in a Residual; your own optimizer must declare using IsOptimizer = void; "
                  "see docs/how-to/extending_parts.md#optimizer")
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

/// A state that only has the number of steps.
template <class Pack>
struct StepCount {
  Index step = 0;
  static void each(auto&&, auto&...) {}
};

/// Returns true if O is an optimizer that can be inside another optimizer. If it is not, a static_assert names the
/// mistake.
template <class O>
constexpr bool check_inside() {
  GATEFOLD_REQUIRE(!detail_::named::reduce<O>(),
                   "gatefold: the optimizer that sums the gradients of several processes must be the outermost one: "
                   "dist::DataParallel{Clipped{…}, &shard}; see docs/how-to/distributed.md");
  return true;
}

/// Placeholder for an argument that is not an optimizer. Its static_assert names the mistake.
template <class P>
struct NoOptimizer {
  static constexpr bool is_without_rate = requires { typename P::IsOptimizer; };
  GATEFOLD_REQUIRE(!is_without_rate,
                   "gatefold: this wrapper needs an optimizer with a learning rate .lr (instead of an InStages, wrap "
                   "the optimizers inside it: InStages{1, 2, optim::Clipped{ffn, 1.0}, attention, fine}); see "
                   "docs/how-to/extending_parts.md#optimizer");
  GATEFOLD_REQUIRE(std::is_void_v<P> || is_without_rate,
                   "gatefold: the first argument of this wrapper must be an optimizer (gatefold::optim): "
                   "optim::Clipped{optim::AdamW{}, 1.0}, optim::Scheduled{optim::AdamW{}, schedule}; see "
                   "docs/how-to/extending_parts.md#optimizer");
  using IsOptimizer = void;
  double lr = 0;
  template <class Pack>
  using State = StepCount<Pack>;
};
template <class O>
using OrNoOptimizer = std::conditional_t<Optimizer<O>, O, NoOptimizer<O>>;

/// Returns the learning rate of an optimizer. A wrapper without an `lr` has the rate of the optimizer inside it. The
/// rate is stored in one place only, so a change in the middle of a run takes effect in the next step.
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
/// Returns a copy of the optimizer with learning rate `lr`.
template <class O>
O with_rate(O optimizer, double lr) {
  set_rate(optimizer, lr);
  return optimizer;
}

/// Runs the step of a tensor with the optimizer's own rate for all elements. ExpertRates uses EachExpert instead.
struct OneRate {
  template <class C, class G, class StepT>
  void operator()(C& ctx, const Name&, const G& grad, const StepT& step) const {
    for_each_touched(ctx, grad, step);
  }
};

/// Requires a valid learning rate or decay rate.
/// @throws ArgumentError unless `rate` is finite and at least 0
inline void expect_rate(const char* where, const char* name, double rate) {
  expect(rate >= 0 && rate <= std::numeric_limits<double>::max(), where, name, "a finite number, at least 0", rate);
}
/// Checks the options of an optimizer.
/// @throws ArgumentError if an option does not fit
template <class O>
void validate_options(const O& optimizer) {
  if constexpr (detail_::hook::optimizer::validate<O>()) optimizer.validate();
}

/// Throws the errors that a step with these arguments would throw, and changes nothing. If the optimizer has no
/// expect_step, only its options are checked.
template <class O, class Pack, class StateT>
void expect_step(const O& optimizer, Pack& params, Pack& grads, StateT& state) {
  if constexpr (detail_::hook::optimizer::expect_step<const O, Pack, Pack, StateT>()) {
    optimizer.expect_step(params, grads, state);
  } else {
    validate_options(optimizer);
  }
}

/// The number of elements of a gradient in each part that is summed separately.
inline constexpr Index summed_at_once = 4096;

/// The result of reading all gradients before a step, in scratch memory of the backend. `total` is not finite if a
/// gradient is not finite, or, for T = double, if the sum of squares overflows. Otherwise it is finite.
struct Measured {
  const double* total = nullptr;
};

/// Returns a number that is 0 if every value of a pack is finite, otherwise NaN.
/// @cost  one read of the pack, and one small launch per tensor; does not wait for the backend
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

/// Adds up the gradients of several processes, if the optimizer has `reduce`.
template <class O, class C, class Pack>
void reduce_gradients(const O& optimizer, C& ctx, Pack& grads) {
  if constexpr (detail_::hook::optimizer::reduce<const O, C, Pack>()) optimizer.reduce(ctx, grads);
}
/// Reads all gradients before a step. Calls the optimizer's `measure` if it exists, because the optimizer needs this
/// pass anyway; otherwise calls measure_finite. The result lives as long as the caller's mark.
template <class O, class C, class Pack>
auto measure_gradients(const O& optimizer, C& ctx, const Pack& grads) {
  if constexpr (detail_::hook::optimizer::measure<const O, C, const Pack>()) {
    return optimizer.measure(ctx, grads);
  } else {
    return measure_finite(ctx, grads);
  }
}
/// Makes the step that follows measure_gradients.
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
