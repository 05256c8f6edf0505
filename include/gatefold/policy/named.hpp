#pragma once

#include <type_traits>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/pack.hpp"

/// Tests whether a policy has a member of a given name, with any signature. The test derives a class from the policy
/// and from a Fallback that declares all names. A name that the policy has too is then ambiguous in the derived class.
namespace gatefold {

// The names of all optional members of policies (hooks.hpp).
// clang-format off
#define GATEFOLD_HOOK_NAMES(OF)                                                                                \
  OF(Params) OF(Saved) OF(Carry) OF(Extra) OF(ExtraGrad) OF(Items) OF(Plan) OF(WithoutTrace) OF(begin) OF(validate) \
  OF(validate_options) OF(infer) OF(advance) OF(advance_backward) OF(evaluations) OF(forward_rows) OF(rows)        \
  OF(rows_backward) OF(noisy) OF(picks_by_item) OF(complete_picks) OF(shows_noise) OF(needs_picks_by_item)         \
  OF(needs_logits) OF(ranks_are_logits)                                                                            \
  OF(needs_noise) OF(items_adjoint_is_optional) OF(scalar_only) OF(experts) OF(with_model_dim) OF(with_experts)    \
  OF(at) OF(without_auxiliary) OF(with_valid) OF(with_trace) OF(set_trace) OF(mixtures) OF(choices) OF(adapt)      \
  OF(counters) OF(measure) OF(reduce) OF(counted) OF(no_batch) OF(pass) OF(weighted_backward) OF(slot_weights)     \
  OF(expect_step) OF(auxiliary_loss) OF(stores_slots) OF(with_noise) OF(forward_overlapping)                       \
  OF(backward_overlapping) OF(weights_inputs)
// The names of all data members of extra inputs that the library sets (policy.hpp).
#define GATEFOLD_INPUT_NAMES(OF) OF(length) OF(valid) OF(memory) OF(cache) OF(noise) OF(traced) OF(relative)
// clang-format on

namespace detail_::named {

struct Fallback {
#define GATEFOLD_NAME(member) void member();
  GATEFOLD_HOOK_NAMES(GATEFOLD_NAME)
  GATEFOLD_INPUT_NAMES(GATEFOLD_NAME)
#undef GATEFOLD_NAME
};
template <class P>
struct Beside : P, Fallback {};

#define GATEFOLD_NAME(member)                                                                               \
  template <class P>                                                                                        \
  constexpr bool member() {                                                                                 \
    if constexpr (std::is_final_v<P>) {                                                                     \
      GATEFOLD_REQUIRE(                                                                                     \
          !std::is_final_v<P>,                                                                              \
          "gatefold: a policy must not be final, because the library derives from it to find its members"); \
      return false;                                                                                         \
    } else if constexpr (std::is_class_v<P>) {                                                              \
      return !requires { &Beside<P>::member; };                                                             \
    } else {                                                                                                \
      return false;                                                                                         \
    }                                                                                                       \
  }
GATEFOLD_HOOK_NAMES(GATEFOLD_NAME)
GATEFOLD_INPUT_NAMES(GATEFOLD_NAME)
#undef GATEFOLD_NAME

}  // namespace detail_::named

/// Calls f(name) for the name of every optional member that a policy has, for example f("validate").
template <class P, class F>
constexpr void for_each_hook(F&& f) {
#define GATEFOLD_NAME(member) \
  if (detail_::named::member<P>()) f(#member);
  GATEFOLD_HOOK_NAMES(GATEFOLD_NAME)
#undef GATEFOLD_NAME
}

#undef GATEFOLD_INPUT_NAMES
#undef GATEFOLD_HOOK_NAMES

// GATEFOLD_TYPE(member, description, default) defines a function that looks up a nested template of a policy. A policy
// without the template gets the default. The rows below come first in the table of docs/reference/optional_members.md.
#define GATEFOLD_TYPE(member, what, ...)                                                                         \
  template <class P, class T, class B>                                                                           \
  auto member() {                                                                                                \
    if constexpr (requires { typename P::template member<T, B>; }) {                                             \
      return std::type_identity<typename P::template member<T, B>>{};                                            \
    } else {                                                                                                     \
      if constexpr (detail_::named::member<P>())                                                                 \
        GATEFOLD_REQUIRE(!detail_::named::member<P>(), "gatefold: " #member                                      \
                                                       " of a policy must be a nested template <class T, class " \
                                                       "B>; see docs/reference/optional_members.md");            \
      return std::type_identity<__VA_ARGS__>{};                                                                  \
    }                                                                                                            \
  }
namespace detail_::hook::type {

GATEFOLD_TYPE(Params, "holds the learned tensors; gradients have the same type", Nothing<T, B>)
GATEFOLD_TYPE(Saved, "holds the values that forward keeps for backward", Nothing<T, B>)
GATEFOLD_TYPE(Carry, "holds the state that a rule or layer passes from layer to layer; its gradient has the same type",
              Nothing<T, B>)
GATEFOLD_TYPE(Extra, "holds inputs in addition to the items: sequence length, noise, attention trace", Nothing<T, B>)
GATEFOLD_TYPE(ExtraGrad, "holds the gradients of extra inputs", Nothing<T, B>)
GATEFOLD_TYPE(
    Items,
    "is the input type of a branch or layer: View<const T, 2, B> (rows, the default) or View<const Index, 1, B> (ids)",
    View<const T, 2, B>)
GATEFOLD_TYPE(Plan, "holds the routing that a gate computes: the experts of each item and their weights", Nothing<T, B>)

}  // namespace detail_::hook::type
#undef GATEFOLD_TYPE

/// The type of the learned tensors (parameters) of a policy. Their gradients have the same type.
template <class P, class T, class B>
using Params = typename decltype(detail_::hook::type::Params<P, T, B>())::type;
/// The type of the values that forward of a policy saves for backward.
template <class P, class T, class B>
using Saved = typename decltype(detail_::hook::type::Saved<P, T, B>())::type;
/// The type of the state that an update rule passes from layer to layer, for example momentum. The gradient of the
/// state has the same type.
template <class P, class T, class B>
using Carry = typename decltype(detail_::hook::type::Carry<P, T, B>())::type;
/// The type of the inputs of a policy in addition to the items, for example sequence length, noise or attention trace.
template <class P, class T, class B>
using Extra = typename decltype(detail_::hook::type::Extra<P, T, B>())::type;
/// The type of the gradients of extra inputs.
template <class P, class T, class B>
using ExtraGrad = typename decltype(detail_::hook::type::ExtraGrad<P, T, B>())::type;
/// The type of the items of a branch or layer: rows [N, in_dim], or ids [N] in [0, in_dim).
template <class P, class T, class B>
using Items = typename decltype(detail_::hook::type::Items<P, T, B>())::type;
/// The type of the gradient of the items: a view of the same shape if items are rows, `Nothing` if items are ids.
template <class P, class T, class B>
using ItemsGrad = std::conditional_t<std::is_same_v<Items<P, T, B>, View<const T, 2, B>>, View<T, 2, B>, Nothing<T, B>>;
/// The type of the plan of a gate, which has the experts chosen for each item. It is `Nothing` if the gate has no Plan,
/// so that check_gate can report the mistake.
template <class P, class T, class B>
using Plan = typename decltype(detail_::hook::type::Plan<P, T, B>())::type;

// Forward declarations of types from other folders. hooks.hpp needs them, because optional members of policies (gates,
// experts, …) take or return these types.
struct Noise;
template <class T, class B>
struct Candidates;
template <class T, class B>
struct NoisyRank;
template <class T, class B>
struct SparsePlan;
template <class T, class B>
struct SlotWeights;
template <class B>
struct Groups;
struct OneLane;
template <class T>
struct OneElement;
namespace detail_::backend {
struct AnyFunctor;
}
namespace functor {
template <class T>
struct NoStep;
}
namespace detail_::policy {
template <class T, class B>
struct ProbeCall;

/// True for a functor that is called once for each row n, as f(lanes, n). `lanes` are the threads that compute a row
/// together. Optional members of policies return functors of the three concepts OfRows, OfRowsInTwo and OfElements.
template <class F>
concept OfRows = requires(const F f, const OneLane& lanes, Index n) {
  f(lanes, n);
};
/// True for a functor that is called once for each row (OfRows), and that can also do its work in two calls: `choose`
/// chooses the experts of the row, `weigh` computes their weights.
template <class F>
concept OfRowsInTwo = OfRows<F> && requires(const F f, const OneLane& lanes, Index n) {
  f.choose(lanes, n);
  f.weigh(lanes, n);
};
/// True for a functor that is called once for each element i, as f(i) or as f(at, i). `at` loads and stores one
/// element, or several with SIMD.
template <class F, class T>
concept OfElements = requires(const F f, const OneElement<T>& at, Index i) {
  requires requires { f(i); } || requires {
    f(at, i);
  };
};

}  // namespace detail_::policy

}  // namespace gatefold
