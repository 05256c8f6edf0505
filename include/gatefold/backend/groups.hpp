#pragma once

#include <type_traits>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// How a grouped product takes its weights, where that is known before it runs: a device then compiles the kernels of
/// one way alone.
inline constexpr std::true_type as_transposed{};
inline constexpr std::false_type as_stored{};

/// Slots sorted by expert: slot s of expert e lies in [offsets[e], offsets[e + 1]) and reads row rows[s] of the items.
/// Without rows, slot s reads row s. Offsets live on the backend; `slots` is what the host knows: an upper bound.
/// Rows of slot-ordered tensors past offsets[E] are never read or written.
template <class B>
struct Groups {
  View<const Index, 1, B> offsets{};  // [E + 1]
  View<const Index, 1, B> rows{};     // [S] or empty
  Index slots = 0;
  View<const Index, 1, B> numbers{};  // [S] or empty, as on one process: see number

  GATEFOLD_HD Index experts() const { return offsets.extent(0) - 1; }
  GATEFOLD_HD Index row(Index slot) const { return rows.data() ? rows(slot) : slot; }

  /// The expert of a slot, by bisection; -1 past the last one, and before the first one of a part of the experts.
  GATEFOLD_HD Index expert(Index slot) const {
    Index low = 0, high = experts();
    if (high == 0 || slot < offsets(0) || slot >= offsets(high)) return -1;
    while (high - low > 1) {
      const Index middle = low + (high - low) / 2;
      (offsets(middle) <= slot ? low : high) = middle;
    }
    return low;
  }

  /// What a slot of an expert draws by: item · E + expert, of all items and experts where these are some.
  GATEFOLD_HD Index number(Index slot, Index expert) const {
    return numbers.empty() ? row(slot) * experts() + expert : numbers(slot);
  }

  /// The same slots for tensors that are in slot order already.
  Groups in_slot_order() const { return {offsets, {}, slots}; }

  /// Experts [first, first + count).
  Groups experts(Index first, Index count) const {
    return {View<const Index, 1, B>(offsets.data() + first, count + 1), rows, slots, numbers};
  }
};

}  // namespace gatefold
