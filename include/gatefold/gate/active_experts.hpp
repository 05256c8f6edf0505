#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>

#include "gatefold/backend/shapes.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// How many of the experts compute for an item: `k` of a gate or of its selection, the constant `picks` of a selection
/// without `k`, `factor` of ExpertChoice (a mean, rounded up), and all experts of any other (Dense, SoftMoe). A
/// capacity may drop some.
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

/// What parameters that are only shapes keep of their gate; those with elements keep nothing.
template <class B>
struct ActiveExperts {
  constexpr explicit ActiveExperts(Index = 0, Index = 0) {}
};
template <>
struct ActiveExperts<Shapes> {
  Index count = 0, experts = 1;
};

}  // namespace gatefold
