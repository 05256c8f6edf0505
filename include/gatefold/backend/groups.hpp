#pragma once

#include <type_traits>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// Tells a grouped product at compile time to transpose its weights. A device then compiles only the kernels of this
/// case.
inline constexpr std::true_type as_transposed{};
/// Tells a grouped product at compile time not to transpose its weights.
inline constexpr std::false_type as_stored{};

/// Slots sorted by expert: slot s of expert e lies in [offsets[e], offsets[e + 1]) and reads row rows[s] of the items.
/// If `rows` is empty, slot s reads row s. The offsets are in memory of the backend; `slots` is an upper bound of the
/// number of slots, which the host has without reading the offsets. Rows of slot-ordered tensors past offsets[E] are
/// never read or written.
template <class B>
struct Groups {
  View<const Index, 1, B> offsets{};  // [E + 1]
  View<const Index, 1, B> rows{};     // [S]; if empty, slot s reads row s
  Index slots = 0;
  View<const Index, 1, B> numbers{};  // [S]; empty if there is only one process: see number()

  GATEFOLD_HD Index experts() const { return offsets.extent(0) - 1; }
  GATEFOLD_HD Index row(Index slot) const { return rows.data() ? rows(slot) : slot; }

  /// Returns the expert of a slot, found by bisection. Returns -1 if the slot is outside [offsets[0], offsets[E]).
  /// offsets[0] can be greater than 0 if these groups have only a part of the experts.
  GATEFOLD_HD Index expert(Index slot) const {
    Index low = 0, high = experts();
    if (high == 0 || slot < offsets(0) || slot >= offsets(high)) return -1;
    while (high - low > 1) {
      const Index middle = low + (high - low) / 2;
      (offsets(middle) <= slot ? low : high) = middle;
    }
    return low;
  }

  /// Returns the position of a slot in a random stream: item · E + expert. If these groups have only a part of all
  /// items or experts, the position is counted over all of them and read from `numbers`.
  GATEFOLD_HD Index number(Index slot, Index expert) const {
    return numbers.empty() ? row(slot) * experts() + expert : numbers(slot);
  }

  /// Returns these groups for tensors that are already in slot order: slot s reads row s.
  Groups in_slot_order() const { return {offsets, {}, slots}; }

  /// Returns the groups of the experts [first, first + count).
  Groups experts(Index first, Index count) const {
    return {View<const Index, 1, B>(offsets.data() + first, count + 1), rows, slots, numbers};
  }
};

}  // namespace gatefold
