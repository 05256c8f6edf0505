#pragma once

#include "gatefold/core/types.hpp"

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

}  // namespace gatefold
