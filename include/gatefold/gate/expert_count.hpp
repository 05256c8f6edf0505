#pragma once

#include "gatefold/core/types.hpp"

namespace gatefold {

/// The number of experts of a scores policy: its function `experts()`, or its option of that name.
template <class S>
Index expert_count(const S& scores) {
  if constexpr (requires { scores.experts(); }) {
    return scores.experts();
  } else {
    return scores.experts;
  }
}

}  // namespace gatefold
