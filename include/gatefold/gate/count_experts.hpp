#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>

#include "gatefold/backend/shapes.hpp"

namespace gatefold {

/// Returns the number of experts of a gate or a scores policy: its function `experts()` if it has one, otherwise its
/// option `experts`, otherwise count_experts of its member `scores`.
Index count_experts(const auto& policy) {
  if constexpr (requires { policy.experts(); }) {
    return policy.experts();
  } else if constexpr (requires { static_cast<Index>(policy.experts); }) {
    return policy.experts;
  } else {
    return count_experts(policy.scores);
  }
}

/// Returns the number of values per item that a scores policy expects: length · model_dim, or model_dim if there is no
/// option `length`. For a wrapper with a member `scores`, for example Jitter, returns item_width of this member.
/// Returns 0 if model_dim is 0, or if the policy has neither the option nor the member.
Index item_width(const auto& scores) {
  if constexpr (requires { scores.scores; }) {
    return item_width(scores.scores);
  } else if constexpr (requires { scores.length* scores.model_dim; }) {
    return scores.length * scores.model_dim;
  } else if constexpr (requires { scores.model_dim; }) {
    return scores.model_dim;
  } else {
    return 0;
  }
}

/// Returns the number of experts that compute each item, before a capacity limit drops some of them:
/// - option `k` of the gate, of the gate inside, or of its selection (the part that chooses experts), or the constant
///   `picks` if there is no `k`;
/// - option `factor` of ExpertChoice, rounded up, because an item has `factor` experts on average;
/// - the product of both levels of a gate with groups of experts (HierarchicalGate);
/// - all experts for any other gate (Dense, SoftMoe).
/// @param part  a gate or a selection
template <class P>
Index active_experts(const P& part, Index experts) {
  if constexpr (requires { part.primary, part.secondary; }) {
    return active_experts(part.primary, part.groups()) * active_experts(part.secondary, experts / part.groups());
  } else if constexpr (requires { part.selection; }) {
    return active_experts(part.selection, experts);
  } else if constexpr (requires { part.gate; }) {
    return active_experts(part.gate, experts);
  } else if constexpr (requires {
                         { part.k } -> std::convertible_to<Index>;
                       }) {
    return std::min<Index>(part.k, experts);
  } else if constexpr (requires {
                         { P::picks } -> std::convertible_to<Index>;
                       }) {
    return std::min<Index>(P::picks, experts);
  } else if constexpr (requires {
                         { part.factor } -> std::convertible_to<double>;
                       }) {
    return part.factor < static_cast<double>(experts) ? static_cast<Index>(std::ceil(part.factor)) : experts;
  } else {
    return experts;
  }
}

/// Number of experts that compute each item (see active_experts), which `summary` of a model reads. Only the backend
/// Shapes, whose tensors have shapes but no memory, stores it. For all other backends the struct is empty.
template <class B>
struct ActiveExperts {
  constexpr explicit ActiveExperts(Index = 0, Index = 0) {}
};
template <>
struct ActiveExperts<Shapes> {
  Index count = 0, experts = 1;
};

}  // namespace gatefold
