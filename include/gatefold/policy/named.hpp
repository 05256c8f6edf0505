#pragma once

#include <type_traits>

#include "gatefold/core/config.hpp"

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
// The names of all data members of extra inputs that the library sets (extra_parts.hpp).
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
}  // namespace gatefold
