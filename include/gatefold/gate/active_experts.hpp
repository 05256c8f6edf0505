#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>

#include "gatefold/backend/shapes.hpp"

namespace gatefold {

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
