#pragma once

#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/order.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/hooks.hpp"
#include "gatefold/tensor/pack.hpp"

/// Defines what an optimizer is: a struct that updates parameters from their gradients. It has a learning rate `lr`, or
/// a member `optimizer` that has a learning rate, and these members:
///
///     template <class Pack> struct State;                          // a pack, with Index step
///     State<Pack> begin(ctx, params) const;
///     step(ctx, params, grads, state) const;                       // may overwrite grads
///     validate() const;                                            // optional: throws if an option is invalid
///     expect_step(params, grads, state) const;                     // optional: throws the errors that step throws
///
/// and the member type IsOptimizer (`using IsOptimizer = void;`). With this type, the library can report that an
/// optimizer is used as an update rule. Wrappers, for example Clipped and Scheduled, are optimizers too.
///
/// Some optimizers read all gradients before they write the first parameter, for example for a norm. Such an optimizer
/// has a separate function `measure` for this, and the caller passes its result to `step`:
///
///     auto measure(ctx, grads) const;                              // has `const double* total`: see Measured
///     step(ctx, params, grads, state, measured) const;
///
/// An optimizer for several processes has `reduce(ctx, grads) const`, which adds up the gradients of all processes.
/// `reduce` is called before `measure`.
namespace gatefold {

GATEFOLD_FUNCTORS((class T), FiniteSum);

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
/// True for a type that declares itself an optimizer, with the member type IsOptimizer, and has a learning rate.
template <class O>
concept Optimizer = requires {
  typename O::IsOptimizer;
}
&&has_rate<O>();

/// True for an optimizer with a member template State<Pack> whose member `step` counts the steps.
template <class O, class Pack>
concept KeepsState = requires(typename O::template State<Pack> state) {
  { state.step } -> std::convertible_to<Index>;
};
/// True for an optimizer with a function `begin` that returns the initial State for given parameters.
template <class O, class C, class Pack>
concept BeginsState = requires(const O optimizer, C& ctx, const Pack& params) {
  { optimizer.begin(ctx, params) } -> std::convertible_to<typename O::template State<Pack>>;
};
/// True for an optimizer with a function step(ctx, params, grads, state). The result of its function `measure` may be a
/// fifth argument.
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

/// The state of an optimizer without moments: only the number of steps.
template <class Pack>
struct StepCount {
  Index step = 0;
  static void each(auto&&, auto&...) {}
};

/// Returns true if a wrapper, for example Clipped, can contain the optimizer O. An optimizer that sums the gradients of
/// several processes cannot be inside a wrapper; a static_assert reports this mistake.
template <class O>
constexpr bool check_inside() {
  GATEFOLD_REQUIRE(!detail_::named::reduce<O>(),
                   "gatefold: the optimizer that sums the gradients of several processes must be the outermost one: "
                   "dist::DataParallel{Clipped{…}, &shard}; see docs/how-to/distributed.md");
  return true;
}

/// The type that a wrapper, for example Clipped, deduces if its argument is not an optimizer or has no learning rate. A
/// static_assert in this type describes the mistake.
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

/// Returns the learning rate of an optimizer: its member `lr`, or the learning rate of its member `optimizer`. Because
/// the rate is stored in only one place, a change during training takes effect in the next step.
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

/// Runs the optimizer step of a tensor with the same learning rate for all elements. `step` of AdamW and Sgd passes
/// OneRate to step_parts as the argument `each`; the wrapper ExpertRates passes EachExpert instead.
struct OneRate {
  template <class C, class G, class StepT>
  void operator()(C& ctx, const Name&, const G& grad, const StepT& step) const {
    for_each_touched(ctx, grad, step);
  }
};

/// Checks an option that must be finite and at least 0, for example a learning rate.
/// @throws ArgumentError unless `rate` is finite and at least 0
inline void expect_rate(const char* where, const char* name, double rate) {
  expect(rate >= 0 && rate <= std::numeric_limits<double>::max(), where, name, "a finite number, at least 0", rate);
}
/// Checks the options of an optimizer with its function `validate`, if it has one.
/// @throws ArgumentError if `validate` throws it, because an option is invalid
template <class O>
void validate_options(const O& optimizer) {
  if constexpr (detail_::hook::optimizer::validate<O>()) optimizer.validate();
}

/// Checks the arguments of an optimizer step in advance: throws the errors that the step would throw, and changes
/// nothing. If the optimizer has no function `expect_step`, only its options are checked.
template <class O, class Pack, class StateT>
void expect_step(const O& optimizer, Pack& params, Pack& grads, StateT& state) {
  if constexpr (detail_::hook::optimizer::expect_step<const O, Pack, Pack, StateT>()) {
    optimizer.expect_step(params, grads, state);
  } else {
    validate_options(optimizer);
  }
}

/// Sums over the elements of a gradient are computed in parts of this many elements. If the gradient is a Table that
/// records its written rows, a part is one row. The sums of the parts are then added in a fixed order.
inline constexpr Index summed_at_once = 4096;

/// The result of a pass over all gradients before a step, in scratch memory of the backend. `total` is finite if all
/// gradients are finite, and not finite otherwise. Exception: for T = double, a sum of squares can overflow although
/// the gradients are finite.
struct Measured {
  const double* total = nullptr;
};

/// Checks whether all learned tensors of a pack, for example gradients, are finite. The `total` of the result is 0 if
/// all values are finite, otherwise NaN. `total` is in scratch memory of the backend.
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

/// Adds up the gradients of several processes with the optimizer's function `reduce`. Does nothing if the optimizer has
/// no such function.
template <class O, class C, class Pack>
void reduce_gradients(const O& optimizer, C& ctx, Pack& grads) {
  if constexpr (detail_::hook::optimizer::reduce<const O, C, Pack>()) optimizer.reduce(ctx, grads);
}
/// Reads all gradients before a step, to check that they are finite. Calls the optimizer's function `measure`, which
/// also computes, for example, a norm. If the optimizer has no such function, calls measure_finite. The result is in
/// scratch memory, and is valid until the caller's mark releases this memory.
template <class O, class C, class Pack>
auto measure_gradients(const O& optimizer, C& ctx, const Pack& grads) {
  if constexpr (detail_::hook::optimizer::measure<const O, C, const Pack>()) {
    return optimizer.measure(ctx, grads);
  } else {
    return measure_finite(ctx, grads);
  }
}
/// Makes an optimizer step after measure_gradients. Passes the result `measured` to the optimizer if it has a function
/// `measure`.
template <class O, class C, class Pack, class StateT, class MeasuredT>
void measured_step(const O& optimizer, C& ctx, Pack& params, Pack& grads, StateT& state, const MeasuredT& measured) {
  if constexpr (detail_::hook::optimizer::measure<const O, C, const Pack>()) {
    optimizer.step(ctx, params, grads, state, measured);
  } else {
    optimizer.step(ctx, params, grads, state);
  }
}

}  // namespace optim

namespace functor {

/// Checks whether part r of a tensor x has only finite values: sums[r] = Σ 0 · x, which is 0 if all values are finite,
/// otherwise NaN.
template <class T>
struct FiniteSum {
  Parts parts;
  const T* x;
  T zero;  // always 0; the compiler must not know this (unknown_zero)
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

}  // namespace gatefold
