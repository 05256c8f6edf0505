#pragma once

#include <concepts>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "gatefold/policy/misuse.hpp"
#include "gatefold/policy/named.hpp"

/// Looks up optional members of policies (gates, experts, layers, …). This header and named.hpp contain the functions
/// that do this.
///
///     detail_::hook::rule::validate<HeavyBall, T, B>()   // true if HeavyBall has validate and it can be called
///
/// If a policy does not have a member, the library uses a default: its own code for a function, a default value for a
/// constant, and `Nothing` for a nested type. The default of the nested type `Items` is a view of rows. If a policy has
/// a member of that name with a different signature, a static_assert quotes the expected signature. The function `all`
/// of a family looks up each member of the family, so that a wrong signature is reported even if no code calls the
/// member. tests/structure/hooks.sh makes the table of docs/reference/optional_members.md from the macro calls in this
/// header and in named.hpp.
namespace gatefold::detail_::hook {

// GATEFOLD_FLAG(owner, type, name, default, description) defines a function name<P>(). It returns the static constexpr
// member `name` of the policy P, or the default if P does not have the member.
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
// GATEFOLD_MEMBER(owner, name, signature, description, call) defines a function name<P, T, B>(). It returns true if the
// policy P has a member function `name` that can be called with this signature.
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
// GATEFOLD_PLAIN_MEMBER takes the arguments of GATEFOLD_MEMBER and defines name<P>(), which returns true if the policy
// P has the member function `name`. Use it for functions that depend on neither the element type T nor the backend B.
#define GATEFOLD_PLAIN_MEMBER(whose, member, signature, what, ...)                 \
  template <class P>                                                               \
  constexpr bool member() {                                                        \
    GATEFOLD_FITS(                                                                 \
        whose, member, signature, (const P& policy, Index count) { __VA_ARGS__; }) \
  }
// GATEFOLD_ALL defines all<P, T, B>() of a family (for example all gates). The function looks up in the policy P every
// optional member that the arguments of the macro name, so that a wrong signature is reported. It always returns true.
#define GATEFOLD_ALL(...)                                      \
  template <class P, class T, class B>                         \
  constexpr bool all() {                                       \
    return std::initializer_list<int>{__VA_ARGS__}.size() > 0; \
  }
// GATEFOLD_MEMBER_OF_NESTED takes the arguments of GATEFOLD_MEMBER and defines name<P, V...>(). It returns true if P, a
// nested type of a policy, has the member function `name` for arguments of types V. To look up a const function, pass
// `const P`.
#define GATEFOLD_MEMBER_OF_NESTED(whose, member, signature, what, ...)         \
  template <class P, class... V>                                               \
  constexpr bool member() {                                                    \
    GATEFOLD_FITS(                                                             \
        whose, member, signature, (P & nested, V & ... with) { __VA_ARGS__; }) \
  }
/// Declares a value of type V for unevaluated calls, like std::declval.
template <class V>
V& some();

namespace any {

GATEFOLD_PLAIN_MEMBER("a policy", with_model_dim, "with_model_dim(model_dim) const, which returns its own type",
                      "returns the policy with its model dimension set, if it was 0",
                      { policy.with_model_dim(count) } -> std::same_as<P>)
GATEFOLD_PLAIN_MEMBER(
    "a policy", with_experts, "with_experts(experts) const, which returns its own type",
    "returns the policy with its number of experts set, if it was 0 (default: sets the option `experts`)",
    { policy.with_experts(count) } -> std::same_as<P>)
GATEFOLD_PLAIN_MEMBER(
    "a policy", experts, "experts() const", "returns the number of experts; an option `experts` serves as well",
    requires detail_::policy::CountsExperts<P> || requires {
      { policy.experts } -> std::convertible_to<Index>;
    })
GATEFOLD_FLAG(
    "a policy", bool, items_adjoint_is_optional, false,
    "allows an empty dx in backward (for an expert: empty dslots), which then skips the gradient of the items")

GATEFOLD_ALL(with_model_dim<P>(), with_experts<P>(), experts<P>(), items_adjoint_is_optional<P>())

}  // namespace any

namespace rule {

GATEFOLD_MEMBER("an update rule", begin, "begin(ctx, items, dim, carry) const",
                "sets the initial value of the carry for a pass", policy.begin(ctx, count, count, carry))
GATEFOLD_MEMBER("an update rule", validate, "validate(params, items, dim, carry) const",
                "throws if options, shapes or the carry do not fit, before anything is written",
                policy.validate(params, count, count, std::as_const(carry)))
GATEFOLD_MEMBER("an update rule", infer, "infer(ctx, params, x, carry, f, y) const",
                "runs forward without keeping values for backward; returns the same bits",
                policy.infer(ctx, params, in, carry, f, out))
GATEFOLD_MEMBER("an update rule", advance, "advance(carry, u) const, which returns a functor of elements",
                "returns an elementwise step that updates the carry with u and has no other effect",
                { policy.advance(carry, some<const T*>()) } -> detail_::policy::OfElements<T>)
GATEFOLD_MEMBER(
    "an update rule", advance_backward,
    "advance_backward(dcarry, du, total) const, which returns a functor of elements",
    "returns the backward of advance: writes du plus the gradient of u through the carry to total, and updates dcarry",
    { policy.advance_backward(carry, some<const T*>(), some<T*>()) } -> detail_::policy::OfElements<T>)
GATEFOLD_FLAG("an update rule", int, evaluations, 1, "states how often forward evaluates the branch")

GATEFOLD_ALL(begin<P, T, B>(), validate<P, T, B>(), infer<P, T, B>(), advance<P, T, B>(), advance_backward<P, T, B>(),
             evaluations<P>(), any::all<P, T, B>())

}  // namespace rule

namespace gate {

GATEFOLD_MEMBER("a gate", validate, "validate(params, items, extra) const",
                "throws if options, shapes or extra inputs do not fit, before anything is written",
                policy.validate(params, count, extra))
GATEFOLD_MEMBER("a gate", infer, "infer(ctx, params, x, plan, extra) const",
                "runs forward without keeping values for backward; writes the same plan",
                policy.infer(ctx, params, in, plan, extra))

GATEFOLD_ALL(validate<P, T, B>(), infer<P, T, B>(), any::all<P, T, B>())

}  // namespace gate

namespace scores {

GATEFOLD_MEMBER("scores", validate, "validate(params) const", "throws if parameters do not fit the options",
                policy.validate(params))
GATEFOLD_MEMBER(
    "scores", forward_rows, "forward_rows(ctx, params, x, z, f) const",
    "computes z and calls f(lanes, n, row) for each row; stores z only if the view z has memory (only without Extra)",
    policy.forward_rows(ctx, params, in, out, some<detail_::backend::AnyFunctor>()))

GATEFOLD_ALL(validate<P, T, B>(), forward_rows<P, T, B>(), any::all<P, T, B>())

}  // namespace scores

namespace mixing {

GATEFOLD_MEMBER("a mixing", validate, "validate(params, items, extra) const",
                "throws if options or extra inputs do not fit", policy.validate(params, count, extra))
GATEFOLD_MEMBER("a mixing", rows, "rows(z, q) const, which returns f(lanes, n)",
                "returns f, which writes q[n,:]; q can have the same memory as z",
                { policy.rows(in, out) } -> detail_::policy::OfRows)
GATEFOLD_MEMBER("a mixing", rows_backward, "rows_backward(q, dq, dz) const, which returns f(lanes, n)",
                "returns f, which writes dz[n,:]", { policy.rows_backward(in, in, out) } -> detail_::policy::OfRows)
GATEFOLD_FLAG("a mixing", bool, ranks_are_logits, false, "states that rank returns the logits")

GATEFOLD_ALL(validate<P, T, B>(), rows<P, T, B>(), rows_backward<P, T, B>(), ranks_are_logits<P>(), any::all<P, T, B>())

}  // namespace mixing

namespace selection {

GATEFOLD_PLAIN_MEMBER("a selection", validate_options, "validate_options(experts) const",
                      "throws if options do not fit the number of experts", policy.validate_options(count))
GATEFOLD_MEMBER("a selection", validate,
                "validate(params, items, extra) const (checks of options only: validate_options(experts) const)",
                "throws if parameters or extra inputs do not fit", policy.validate(params, count, extra))
GATEFOLD_MEMBER("a selection", noisy, "noisy(saved) const, which returns NoisyRank<const T, B>",
                "returns the noisy values by which experts were ranked, and the deviation of the noise",
                { policy.noisy(saved) } -> std::convertible_to<NoisyRank<const T, B>>)
GATEFOLD_MEMBER(
    "a selection", rows,
    "rows(candidates, plan, extra) const, which returns f(lanes, n) with choose(lanes, n) and weigh(lanes, n)",
    "resizes the plan and returns f; choose writes item and expert from rank, weigh writes the weights from q, and f "
    "does both",
    { policy.rows(some<const Candidates<T, B>>(), some<SparsePlan<T, B>>(), extra) } -> detail_::policy::OfRowsInTwo)
GATEFOLD_MEMBER("a selection", rows_backward,
                "rows_backward(candidates, plan, dplan, dq, extra) const, which returns f(lanes, n)",
                "returns f, which adds to dq[n,:]", {
                  policy.rows_backward(some<const Candidates<T, B>>(), some<const SparsePlan<T, B>>(),
                                       some<const typename SparsePlan<T, B>::Grad>(), out, extra)
                } -> detail_::policy::OfRows)
GATEFOLD_MEMBER(
    "a selection", auxiliary_loss, "auxiliary_loss(ctx, params, candidates, plan, saved, value) const",
    "writes its own auxiliary loss to value [1], the last of the gate's auxiliary losses; backward adds the "
    "gradient if candidates.first_evaluation",
    policy.auxiliary_loss(ctx, params, some<const Candidates<T, B>>(), some<const SparsePlan<T, B>>(), saved,
                          some<View<T, 1, B>>()))
GATEFOLD_FLAG("a selection", bool, complete_picks, false,
              "states that rows uses every place of the plan: each item has the same number of picks, and each pick "
              "has an expert")
GATEFOLD_FLAG("a selection", bool, picks_by_item, true, "states that pick j of item n is stored at n·K + j, best first")
GATEFOLD_FLAG("a selection", bool, needs_logits, false,
              "requires a mixing with ranks_are_logits; a gate with another mixing does not compile")
GATEFOLD_FLAG("a selection", bool, shows_noise, false, "states that auxiliary losses with needs_noise can read noisy")

GATEFOLD_ALL(validate_options<P>(), validate<P, T, B>(), noisy<P, T, B>(), rows<P, T, B>(), rows_backward<P, T, B>(),
             auxiliary_loss<P, T, B>(), complete_picks<P>(), picks_by_item<P>(), needs_logits<P>(), shows_noise<P>(),
             any::all<P, T, B>())

}  // namespace selection

namespace auxiliary {

GATEFOLD_PLAIN_MEMBER("an auxiliary loss", validate, "validate(experts) const", "throws if options do not fit",
                      policy.validate(count))
GATEFOLD_FLAG("an auxiliary loss", bool, needs_picks_by_item, false,
              "requires a selection with picks_by_item; a gate with another selection does not compile")
GATEFOLD_FLAG("an auxiliary loss", bool, needs_noise, false,
              "requires a selection with shows_noise; a gate with another selection does not compile")

GATEFOLD_ALL(validate<P>(), needs_picks_by_item<P>(), needs_noise<P>())

}  // namespace auxiliary

namespace expert {

GATEFOLD_MEMBER("an expert", validate, "validate(params, experts) const", "throws if parameters do not fit the options",
                policy.validate(params, count))
GATEFOLD_MEMBER("an expert", infer, "infer(ctx, params, groups, x, z) const",
                "runs forward without keeping values for backward; returns the same bits",
                policy.infer(ctx, params, groups, in, out))
GATEFOLD_MEMBER(
    "an expert", weighted_backward,
    "weighted_backward(ctx, params, groups, x, saved, du, weights, dslots, grads) const",
    "runs backward of u[n] = Σ w[s] z[s] from du [N, out_dim]: reads w[s] from weights (SlotWeights) and writes its "
    "gradient ⟨du[row(s)], z[s]⟩ there, so that a mixture does not keep z",
    policy.weighted_backward(ctx, params, groups, in, saved, in, some<const SlotWeights<T, B>>(), out,
                             some<Params<P, T, B>>()))

GATEFOLD_FLAG("an expert", bool, stores_slots, false,
              "allows another element type Z for z (forward, infer) and dslots (weighted_backward), as a third "
              "template parameter: forward<T, B, Z>; a mixture uses SlotValue<T, B>")

GATEFOLD_PLAIN_MEMBER(
    "an expert", with_noise, "with_noise(noise) const, which returns its own type",
    "returns an expert that draws its random numbers from noise; the branch that runs it has noise in its Extra",
    { policy.with_noise(some<const Noise>()) } -> std::same_as<P>)

GATEFOLD_ALL(validate<P, T, B>(), infer<P, T, B>(), weighted_backward<P, T, B>(), stores_slots<P>(), with_noise<P>(),
             any::all<P, T, B>())

}  // namespace expert

namespace plan {

GATEFOLD_MEMBER(
    "a Plan", slot_weights, "slot_weights(dplan) const, which returns SlotWeights<T, B>",
    "returns the weights w and the memory for their gradients, if an item receives Σ w[s] z[s] over its slots",
    { policy.slot_weights(some<const typename P::Grad>()) } -> std::convertible_to<SlotWeights<T, B>>)
GATEFOLD_FLAG("a Plan", bool, weights_inputs, false,
              "states that dispatch multiplies the inputs of the experts by the weights and combine does not multiply; "
              "a mixture then does not call slot_weights")

GATEFOLD_ALL(slot_weights<P, T, B>(), weights_inputs<P>())

}  // namespace plan

namespace activation {

GATEFOLD_FLAG("an activation", bool, scalar_only, false,
              "states that the activation takes one value at a time, not a SIMD register")

}  // namespace activation

namespace branch {

GATEFOLD_MEMBER("a branch", validate, "validate(params, items, extra) const",
                "throws if options, shapes or extra inputs do not fit, before anything is written",
                policy.validate(params, count, extra))
GATEFOLD_MEMBER("a branch", infer, "infer(ctx, params, x, u, extra, step) const",
                "runs forward without keeping values for backward; returns the same bits",
                policy.infer(ctx, params, items, out, extra, some<const functor::NoStep<T>>()))
GATEFOLD_MEMBER(
    "a branch", forward_overlapping, "forward_overlapping(ctx, params, x, u, saved, extra, step, work) const",
    "runs forward and calls work() once, while forward waits for other processes; work accesses no data of the branch",
    policy.forward_overlapping(ctx, params, items, out, some<Saved<P, T, B>>(), extra, some<const functor::NoStep<T>>(),
                               some<void()>()))
GATEFOLD_MEMBER("a branch", backward_overlapping,
                "backward_overlapping(ctx, params, x, saved, du, dx, grads, extra, dextra, work) const",
                "runs backward and calls work() once, before anything is added to dx and dextra",
                policy.backward_overlapping(ctx, params, items, saved, in, some<ItemsGrad<P, T, B>>(),
                                            some<Params<P, T, B>>(), extra, some<ExtraGrad<P, T, B>>(), some<void()>()))

GATEFOLD_ALL(validate<P, T, B>(), infer<P, T, B>(), forward_overlapping<P, T, B>(), backward_overlapping<P, T, B>())

}  // namespace branch

namespace layer {

GATEFOLD_MEMBER("a layer", validate, "validate(params, items, carry, extra) const",
                "throws if options, shapes, the carry or extra inputs do not fit, before anything is written",
                policy.validate(params, count, std::as_const(carry), extra))
GATEFOLD_MEMBER("a layer", infer, "infer(ctx, params, x, carry, y, extra) const",
                "runs forward without keeping values for backward; returns the same bits",
                policy.infer(ctx, params, items, carry, out, extra))

GATEFOLD_ALL(validate<P, T, B>(), infer<P, T, B>())

}  // namespace layer

namespace extra {

GATEFOLD_MEMBER_OF_NESTED(
    "an Extra", at, "at(layer) const, which returns its own type",
    "returns the inputs of one layer of a stack, with separate noise (default: applied to each part)",
    { nested.at(Index()) } -> std::same_as<std::remove_const_t<P>>)
GATEFOLD_MEMBER_OF_NESTED(
    "an Extra", without_auxiliary, "without_auxiliary() const, which returns its own type",
    "returns the inputs of a further evaluation of a layer, without auxiliary losses (default: applied to each part)",
    { nested.without_auxiliary() } -> std::same_as<std::remove_const_t<P>>)
GATEFOLD_MEMBER_OF_NESTED("an Extra", with_valid, "with_valid(mask) const, which returns its own type",
                          "returns the inputs with the padding mask of the gate, unless they already have a mask",
                          { nested.with_valid(with...) } -> std::same_as<std::remove_const_t<P>>)
GATEFOLD_MEMBER_OF_NESTED("an ExtraGrad", set_trace, "set_trace(trace)",
                          "sets the views to which the gradient of the attention trace is added",
                          nested.set_trace(with...))

}  // namespace extra

namespace saved {

GATEFOLD_MEMBER_OF_NESTED("a Saved", mixtures, "mixtures(f) const",
                          "calls f(saved) for every mixture inside, in depth order", nested.mixtures(with...))
GATEFOLD_MEMBER_OF_NESTED("a Saved", choices, "choices(f) const",
                          "calls f(index) for every discrete choice that a mixing made", nested.choices(with...))

}  // namespace saved

namespace params {

GATEFOLD_MEMBER_OF_NESTED(
    "Params", adapt, "adapt(ctx, grads)",
    "updates parameters by a rule that is not a gradient step, after each step of a Trainer, from the values in grads",
    nested.adapt(with...))

}  // namespace params

namespace optimizer {

GATEFOLD_PLAIN_MEMBER("an optimizer", validate, "validate() const", "throws if options do not fit", policy.validate())
GATEFOLD_MEMBER_OF_NESTED("an optimizer", expect_step, "expect_step(params, grads, state) const",
                          "throws the errors of step; called before the step of another optimizer (InGroups, InStages)",
                          nested.expect_step(with...))
GATEFOLD_MEMBER_OF_NESTED(
    "an optimizer", measure, "measure(ctx, grads) const, whose result has a const double* total",
    "reads all gradients before the first parameter is written; step takes the result (Measured) as last argument",
    { nested.measure(with...).total } -> std::convertible_to<const double*>)
GATEFOLD_MEMBER_OF_NESTED("an optimizer", reduce, "reduce(ctx, grads) const",
                          "adds up the gradients of several processes, before measure", nested.reduce(with...))
GATEFOLD_MEMBER_OF_NESTED("a State", counters, "static counters(f, state)",
                          "calls f(name, number) for every number of the State that is not a tensor",
                          P::counters(with..., nested))

}  // namespace optimizer

namespace loss {

GATEFOLD_MEMBER_OF_NESTED(
    "a loss", counted, "counted(ctx, target) const, which returns an Index",
    "returns the number of targets in the mean of the loss, if it differs from the number of items",
    { nested.counted(with...) } -> std::convertible_to<Index>)
GATEFOLD_PLAIN_MEMBER(
    "a loss", no_batch, "no_batch(items) const, which returns a bool",
    "returns whether the batch is empty, if this process has `items` of its items (default: items == 0)",
    { policy.no_batch(count) } -> std::same_as<bool>)

}  // namespace loss

namespace schedule {

GATEFOLD_PLAIN_MEMBER("a schedule of momentum", validate, "validate() const", "throws if options do not fit",
                      policy.validate())

}  // namespace schedule

#undef GATEFOLD_ALL
#undef GATEFOLD_MEMBER_OF_NESTED
#undef GATEFOLD_PLAIN_MEMBER
#undef GATEFOLD_MEMBER
#undef GATEFOLD_FITS
#undef GATEFOLD_FLAG

}  // namespace gatefold::detail_::hook
