#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>

#include "gatefold/backend/shapes.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// Returns the number of experts that compute for an item, before a capacity drops picks:
/// - `k` of a gate or of its selection, or the constant `picks` of a selection without `k`;
/// - `factor` of ExpertChoice, rounded up (the mean over items);
/// - all experts for any other gate (Dense, SoftMoe).
/// @param part  a gate or a selection
template <class P>
Index active_experts(const P& part, Index experts) {
  if constexpr (requires { part.selection; }) {
    return active_experts(part.selection, experts);
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

/// Holds active_experts of a gate in parameters that have only shapes (backend Shapes). For other backends it is empty.
template <class B>
struct ActiveExperts {
  constexpr explicit ActiveExperts(Index = 0, Index = 0) {}
};
template <>
struct ActiveExperts<Shapes> {
  Index count = 0, experts = 1;
};

}  // namespace gatefold
