#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/families.hpp"
#include "gatefold/policy/misuse.hpp"
#include "gatefold/policy/named.hpp"
#include "gatefold/policy/nested.hpp"
#include "gatefold/tensor/view.hpp"

/// What a policy may have and need not have: the one place where optional members are looked up.
///
///     detail_::hook::rule::validate<HeavyBall, T, B>()   // true: it may be called; false: HeavyBall does not name it
///
/// A member that a policy does not name is replaced: a nested type by `Nothing`, a function by what the library does
/// without it. A member that it names must fit: otherwise the compiler stops with a sentence that quotes what was
/// expected. A family's `all` asks for each of its members, so that none is overlooked because nobody calls it. The
/// tables of docs/how-to/extending.md are made from the rows below and in nested.hpp (tests/structure/hooks.sh).
namespace gatefold::detail_::hook {

// GATEFOLD_FLAG(whose, type, member, without it, what it says): a static constexpr member.
#define GATEFOLD_FLAG(whose, type, member, otherwise, what)                                   \
  template <class P>                                                                          \
  constexpr type member() {                                                                   \
    if constexpr (requires {                                                                  \
                    requires std::same_as<decltype(&P::member), const type*>;                 \
                    typename std::integral_constant<type, P::member>;                         \
                  }) {                                                                        \
      return P::member;                                                                       \
    } else {                                                                                  \
      if constexpr (detail_::named::member<P>())                                              \
        GATEFOLD_REQUIRE(!detail_::named::member<P>(),                                        \
                         "gatefold: " #member " of " whose " must be static constexpr " #type \
                         "; see docs/reference/optional_members.md");                         \
      return otherwise;                                                                       \
    }                                                                                         \
  }
#define GATEFOLD_FITS(whose, member, signature, ...)                                  \
  constexpr bool fits = requires __VA_ARGS__;                                         \
  GATEFOLD_EXPECT(fits || !detail_::named::member<std::remove_const_t<P>>(),          \
                  "gatefold: " #member " of " whose " must be callable as " signature \
                  "; see docs/reference/optional_members.md")                         \
  return fits;
// GATEFOLD_MEMBER(whose, name, signature, what it is for, call): a function, looked up as name<P, T, B>().
#define GATEFOLD_MEMBER(whose, member, signature, what, ...)                                                           \
  template <class P, class T, class B>                                                                                 \
  constexpr bool member() {                                                                                            \
    GATEFOLD_FITS(                                                                                                     \
        whose, member, signature,                                                                                      \
        (const P& policy, typename B::Context& ctx, const Params<P, T, B>& params, Carry<P, T, B>& carry,              \
         const Saved<P, T, B>& saved, const Extra<P, T, B>& extra, Plan<P, T, B>& plan, View<const T, 2, B> in,        \
         const Items<P, T, B>& items, View<T, 2, B> out, const Groups<B>& groups, detail_::policy::ProbeCall<T, B>& f, \
         Index count) { __VA_ARGS__; })                                                                                \
  }
// GATEFOLD_PLAIN_MEMBER: the same, looked up as name<P>(), where neither T nor B is known.
#define GATEFOLD_PLAIN_MEMBER(whose, member, signature, what, ...)                 \
  template <class P>                                                               \
  constexpr bool member() {                                                        \
    GATEFOLD_FITS(                                                                 \
        whose, member, signature, (const P& policy, Index count) { __VA_ARGS__; }) \
  }
// GATEFOLD_MEMBER_OF_NESTED: the same, looked up as name<P, V...>() with the arguments' types; P is const where the
// function is.
#define GATEFOLD_MEMBER_OF_NESTED(whose, member, signature, what, ...)         \
  template <class P, class... V>                                               \
  constexpr bool member() {                                                    \
    GATEFOLD_FITS(                                                             \
        whose, member, signature, (P & nested, V & ... with) { __VA_ARGS__; }) \
  }
/// An argument that is never evaluated.
template <class V>
V& some();
template <class... Found>
constexpr bool look_up(Found...) {
  return true;
}

namespace any {

GATEFOLD_PLAIN_MEMBER("a policy", with_model_dim, "with_model_dim(model_dim) const, which returns its own type",
                      "fills a model dimension that was left 0", { policy.with_model_dim(count) } -> std::same_as<P>)
GATEFOLD_PLAIN_MEMBER("a policy", with_experts, "with_experts(experts) const, which returns its own type",
                      "fills a number of experts that was left 0 (without it, the option `experts`)",
                      { policy.with_experts(count) } -> std::same_as<P>)
GATEFOLD_PLAIN_MEMBER(
    "a policy", experts, "experts() const", "how many experts there are, where it knows",
    requires detail_::policy::CountsExperts<P> || requires {
      { policy.experts } -> std::convertible_to<Index>;
    })
GATEFOLD_FLAG("a policy", bool, items_adjoint_is_optional, false,
              "backward also takes an empty dx (an expert: empty dslots), and then leaves out the adjoint of the items")

template <class P>
constexpr bool all() {
  return look_up(with_model_dim<P>(), with_experts<P>(), experts<P>(), items_adjoint_is_optional<P>());
}

}  // namespace any

namespace rule {

GATEFOLD_MEMBER("an update rule", begin, "begin(ctx, items, dim, carry) const", "how the carry starts a pass",
                policy.begin(ctx, count, count, carry))
GATEFOLD_MEMBER("an update rule", validate, "validate(params, items, dim, carry) const",
                "throws where options, shapes or the carry do not fit, before anything is written",
                policy.validate(params, count, count, std::as_const(carry)))
GATEFOLD_MEMBER("an update rule", infer, "infer(ctx, params, x, carry, f, y) const",
                "forward that keeps nothing; the same bits", policy.infer(ctx, params, in, carry, f, out))
GATEFOLD_MEMBER("an update rule", advance, "advance(carry, u) const, which returns a functor of elements",
                "an elementwise step: the carry takes u, nothing else happens",
                { policy.advance(carry, some<const T*>()) } -> detail_::policy::OfElements<T>)
GATEFOLD_MEMBER("an update rule", advance_backward,
                "advance_backward(dcarry, du, total) const, which returns a functor of elements",
                "its adjoint: total becomes du and what the carry asks of u",
                { policy.advance_backward(carry, some<const T*>(), some<T*>()) } -> detail_::policy::OfElements<T>)
GATEFOLD_FLAG("an update rule", int, evaluations, 1, "how often it evaluates the branch")

template <class P, class T, class B>
constexpr bool all() {
  return look_up(begin<P, T, B>(), validate<P, T, B>(), infer<P, T, B>(), advance<P, T, B>(),
                 advance_backward<P, T, B>(), evaluations<P>(), any::all<P>());
}

}  // namespace rule

namespace gate {

GATEFOLD_MEMBER("a gate", validate, "validate(params, items, extra) const",
                "throws where options, shapes or extra inputs do not fit, before anything is written",
                policy.validate(params, count, extra))
GATEFOLD_MEMBER("a gate", infer, "infer(ctx, params, x, plan, extra) const",
                "forward that keeps nothing; the same plan", policy.infer(ctx, params, in, plan, extra))

template <class P, class T, class B>
constexpr bool all() {
  return look_up(validate<P, T, B>(), infer<P, T, B>(), any::all<P>());
}

}  // namespace gate

namespace scores {

GATEFOLD_MEMBER("scores", validate, "validate(params) const", "throws where parameters do not fit the options",
                policy.validate(params))
GATEFOLD_MEMBER(
    "scores", forward_rows, "forward_rows(ctx, params, x, z, f) const",
    "without Extra: forward, then f(lanes, n, row) for each row of z, which is not kept where it has no memory",
    policy.forward_rows(ctx, params, in, out, some<detail_::backend::AnyFunctor>()))

template <class P, class T, class B>
constexpr bool all() {
  return look_up(validate<P, T, B>(), forward_rows<P, T, B>(), any::all<P>());
}

}  // namespace scores

namespace mixing {

GATEFOLD_MEMBER("a mixing", validate, "validate(params, items, extra) const",
                "throws where options or extra inputs do not fit", policy.validate(params, count, extra))
GATEFOLD_MEMBER("a mixing", rows, "rows(z, q) const, which returns f(lanes, n)",
                "f writes q[n,:], where q may be z itself", { policy.rows(in, out) } -> detail_::policy::OfRows)
GATEFOLD_MEMBER("a mixing", rows_backward, "rows_backward(q, dq, dz) const, which returns f(lanes, n)",
                "f writes dz[n,:]", { policy.rows_backward(in, in, out) } -> detail_::policy::OfRows)

template <class P, class T, class B>
constexpr bool all() {
  return look_up(validate<P, T, B>(), rows<P, T, B>(), rows_backward<P, T, B>(), any::all<P>());
}

}  // namespace mixing

namespace selection {

GATEFOLD_PLAIN_MEMBER("a selection", validate_options, "validate_options(experts) const",
                      "throws where options do not fit the number of experts", policy.validate_options(count))
GATEFOLD_MEMBER("a selection", validate,
                "validate(params, items, extra) const, options alone as validate_options(experts) const",
                "throws where parameters or extra inputs do not fit", policy.validate(params, count, extra))
GATEFOLD_MEMBER("a selection", noisy, "noisy(saved) const, which returns NoisyRank<const T, B>",
                "what it ranked by, and the deviation of its noise",
                { policy.noisy(saved) } -> std::convertible_to<NoisyRank<const T, B>>)
GATEFOLD_MEMBER("a selection", rows,
                "rows(candidates, plan, extra) const, which returns f(lanes, n) with choose(lanes, n) and "
                "weigh(lanes, n)",
                "resizes the plan; choose writes item and expert from rank, weigh the weights from q, f both", {
                  policy.rows(some<const Candidates<T, B>>(), some<SparsePlan<T, B>>(), extra)
                } -> detail_::policy::OfRowsInTwo)
GATEFOLD_MEMBER("a selection", rows_backward,
                "rows_backward(candidates, plan, dplan, dq, extra) const, which returns f(lanes, n)",
                "f adds to dq[n,:]", {
                  policy.rows_backward(some<const Candidates<T, B>>(), some<const SparsePlan<T, B>>(),
                                       some<const typename SparsePlan<T, B>::Grad>(), out, extra)
                } -> detail_::policy::OfRows)
GATEFOLD_FLAG("a selection", bool, complete_picks, false,
              "rows leave no place of the plan unused: as many picks for each item, and an expert for each")
GATEFOLD_FLAG("a selection", bool, picks_by_item, true, "pick j of item n stands at n·K + j, best first")
GATEFOLD_FLAG("a selection", bool, shows_noise, false, "noisy is there, for losses that need it")

template <class P, class T, class B>
constexpr bool all() {
  return look_up(validate_options<P>(), validate<P, T, B>(), noisy<P, T, B>(), rows<P, T, B>(),
                 rows_backward<P, T, B>(), complete_picks<P>(), picks_by_item<P>(), shows_noise<P>(), any::all<P>());
}

}  // namespace selection

namespace auxiliary {

GATEFOLD_PLAIN_MEMBER("an auxiliary loss", validate, "validate(experts) const", "throws where options do not fit",
                      policy.validate(count))
GATEFOLD_FLAG("an auxiliary loss", bool, needs_picks_by_item, false,
              "no gate whose selection has not picks_by_item compiles")
GATEFOLD_FLAG("an auxiliary loss", bool, needs_noise, false, "no gate whose selection has not shows_noise compiles")

template <class P>
constexpr bool all() {
  return look_up(validate<P>(), needs_picks_by_item<P>(), needs_noise<P>());
}

}  // namespace auxiliary

namespace expert {

GATEFOLD_MEMBER("an expert", validate, "validate(params, experts) const",
                "throws where parameters do not fit the options", policy.validate(params, count))
GATEFOLD_MEMBER("an expert", infer, "infer(ctx, params, groups, x, z) const",
                "forward that keeps nothing; the same bits", policy.infer(ctx, params, groups, in, out))
GATEFOLD_MEMBER(
    "an expert", weighted_backward,
    "weighted_backward(ctx, params, groups, x, saved, du, weights, dslots, grads) const",
    "backward where items receive Σ w[s] z[s], from du [N, out_dim] of the items: weights gives w[s] and takes "
    "⟨du[row(s)], z[s]⟩ (SlotWeights), so that a mixture need not keep z",
    policy.weighted_backward(ctx, params, groups, in, saved, in, some<const SlotWeights<T, B>>(), out,
                             some<Params<P, T, B>>()))

GATEFOLD_FLAG(
    "an expert", bool, stores_slots, false,
    "z of forward and infer and dslots of weighted_backward may be of another element, that of a third template "
    "parameter, forward<T, B, Z>: in a mixture SlotValue<T, B>")

GATEFOLD_PLAIN_MEMBER(
    "an expert", with_noise, "with_noise(noise) const, which returns its own type",
    "of one that draws numbers: the same with those of a call; whoever runs it takes the noise as extra "
    "input",
    { policy.with_noise(some<const Noise>()) } -> std::same_as<P>)

template <class P, class T, class B>
constexpr bool all() {
  return look_up(validate<P, T, B>(), infer<P, T, B>(), weighted_backward<P, T, B>(), stores_slots<P>(),
                 with_noise<P>(), any::all<P>());
}

}  // namespace expert

namespace plan {

GATEFOLD_MEMBER("a Plan", slot_weights, "slot_weights(dplan) const, which returns SlotWeights<T, B>",
                "the weights w of slots where an item receives Σ w[s] z[s] over its slots, and where their adjoints go",
                { policy.slot_weights(some<const typename P::Grad>()) } -> std::convertible_to<SlotWeights<T, B>>)

template <class P, class T, class B>
constexpr bool all() {
  return look_up(slot_weights<P, T, B>());
}

}  // namespace plan

namespace activation {

GATEFOLD_FLAG("an activation", bool, scalar_only, false, "it takes one value at a time, not a register of several")

}  // namespace activation

namespace branch {

GATEFOLD_MEMBER("a branch", validate, "validate(params, items, extra) const",
                "throws where options, shapes or extra inputs do not fit, before anything is written",
                policy.validate(params, count, extra))
GATEFOLD_MEMBER("a branch", infer, "infer(ctx, params, x, u, extra, step) const",
                "forward that keeps nothing; the same bits",
                policy.infer(ctx, params, items, out, extra, some<const functor::NoStep<T>>()))
GATEFOLD_MEMBER("a branch", forward_overlapping,
                "forward_overlapping(ctx, params, x, u, saved, extra, step, work) const",
                "forward of one that waits for others, and work() once meanwhile; work touches nothing of the branch",
                policy.forward_overlapping(ctx, params, items, out, some<Saved<P, T, B>>(), extra,
                                           some<const functor::NoStep<T>>(), some<void()>()))
GATEFOLD_MEMBER("a branch", backward_overlapping,
                "backward_overlapping(ctx, params, x, saved, du, dx, grads, extra, dextra, work) const",
                "the same of backward, work() before anything is added to dx and dextra",
                policy.backward_overlapping(ctx, params, items, saved, in, some<ItemsGrad<P, T, B>>(),
                                            some<Params<P, T, B>>(), extra, some<ExtraGrad<P, T, B>>(), some<void()>()))

template <class P, class T, class B>
constexpr bool all() {
  return look_up(validate<P, T, B>(), infer<P, T, B>(), forward_overlapping<P, T, B>(),
                 backward_overlapping<P, T, B>());
}

}  // namespace branch

namespace layer {

GATEFOLD_MEMBER("a layer", validate, "validate(params, items, carry, extra) const",
                "throws where options, shapes, the carry or extra inputs do not fit, before anything is written",
                policy.validate(params, count, std::as_const(carry), extra))
GATEFOLD_MEMBER("a layer", infer, "infer(ctx, params, x, carry, y, extra) const",
                "forward that keeps nothing; the same bits", policy.infer(ctx, params, items, carry, out, extra))

template <class P, class T, class B>
constexpr bool all() {
  return look_up(validate<P, T, B>(), infer<P, T, B>());
}

}  // namespace layer

namespace extra {

GATEFOLD_MEMBER_OF_NESTED("an Extra", at, "at(layer) const, which returns its own type",
                          "the inputs of one layer of a stack: noise is forked (without it, that of its parts)",
                          { nested.at(Index()) } -> std::same_as<std::remove_const_t<P>>)
GATEFOLD_MEMBER_OF_NESTED(
    "an Extra", without_auxiliary, "without_auxiliary() const, which returns its own type",
    "the inputs of a further evaluation of a layer: auxiliary losses count once (without it, those of its parts)",
    { nested.without_auxiliary() } -> std::same_as<std::remove_const_t<P>>)
GATEFOLD_MEMBER_OF_NESTED("an Extra", with_valid, "with_valid(mask) const, which returns its own type",
                          "the gate's padding, where it has none of its own",
                          { nested.with_valid(with...) } -> std::same_as<std::remove_const_t<P>>)
GATEFOLD_MEMBER_OF_NESTED("an ExtraGrad", set_trace, "set_trace(trace)",
                          "where the adjoint of the attention trace goes", nested.set_trace(with...))

}  // namespace extra

namespace saved {

GATEFOLD_MEMBER_OF_NESTED("a Saved", mixtures, "mixtures(f) const", "f(saved) for every mixture within, in depth order",
                          nested.mixtures(with...))
GATEFOLD_MEMBER_OF_NESTED("a Saved", choices, "choices(f) const", "f(index) for every discrete choice of a mixing",
                          nested.choices(with...))

}  // namespace saved

namespace params {

GATEFOLD_MEMBER_OF_NESTED("Params", adapt, "adapt(ctx, grads)",
                          "after each step of a Trainer: a rule of its own, from what backward left in grads",
                          nested.adapt(with...))

}  // namespace params

namespace optimizer {

GATEFOLD_PLAIN_MEMBER("an optimizer", validate, "validate() const", "throws where options do not fit",
                      policy.validate())
GATEFOLD_MEMBER_OF_NESTED("an optimizer", expect_step, "expect_step(params, grads, state) const",
                          "throws what step would throw: asked before another optimizer's step (InGroups, InStages)",
                          nested.expect_step(with...))
GATEFOLD_MEMBER_OF_NESTED(
    "an optimizer", measure, "measure(ctx, grads) const, whose result has a const double* total",
    "reads all gradients before the first parameter is written; its result (Measured) is the last argument of step",
    { nested.measure(with...).total } -> std::convertible_to<const double*>)
GATEFOLD_MEMBER_OF_NESTED("an optimizer", reduce, "reduce(ctx, grads) const",
                          "of several processes: brings their gradients together before they are measured",
                          nested.reduce(with...))
GATEFOLD_MEMBER_OF_NESTED("a State", counters, "static counters(f, state)",
                          "f(name, number) for every number that is no tensor", P::counters(with..., nested))

}  // namespace optimizer

namespace loss {

GATEFOLD_MEMBER_OF_NESTED("a loss", counted, "counted(ctx, target) const, which returns an Index",
                          "the number of targets that it takes its mean over, where that is not the number of items",
                          { nested.counted(with...) } -> std::convertible_to<Index>)
GATEFOLD_PLAIN_MEMBER("a loss", no_batch, "no_batch(items) const, which returns a bool",
                      "whether a batch of so many items is none: not where other processes hold the rest of it",
                      { policy.no_batch(count) } -> std::same_as<bool>)

}  // namespace loss

namespace schedule {

GATEFOLD_PLAIN_MEMBER("a schedule of momentum", validate, "validate() const", "throws where options do not fit",
                      policy.validate())

}  // namespace schedule

#undef GATEFOLD_MEMBER_OF_NESTED
#undef GATEFOLD_PLAIN_MEMBER
#undef GATEFOLD_MEMBER
#undef GATEFOLD_FITS
#undef GATEFOLD_FLAG

}  // namespace gatefold::detail_::hook
