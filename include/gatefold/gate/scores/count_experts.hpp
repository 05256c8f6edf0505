#pragma once

#include "gatefold/core/types.hpp"

namespace gatefold {

/// The number of experts of a gate or a scores policy: its function `experts()`, its option of that name, or that of
/// its scores.
template <class P>
Index count_experts(const P& policy) {
  if constexpr (requires { policy.experts(); }) {
    return policy.experts();
  } else if constexpr (requires { static_cast<Index>(policy.experts); }) {
    return policy.experts;
  } else {
    return count_experts(policy.scores);
  }
}

/// The width of the items a scores policy takes: length · model_dim; 0 where it has not been filled in, or is not
/// known.
template <class S>
Index item_width(const S& scores) {
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
