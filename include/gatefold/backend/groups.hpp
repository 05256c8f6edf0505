#pragma once

#include <type_traits>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// Whether a grouped product transposes its weights, as a constant. If it is known at compile time, a device compiles
/// the kernels of only one case.
inline constexpr std::true_type as_transposed{};
inline constexpr std::false_type as_stored{};

/// Slots sorted by expert: slot s of expert e lies in [offsets[e], offsets[e + 1]) and reads row rows[s] of the items.
/// If `rows` is empty, slot s reads row s. The offsets are in memory of the backend; `slots` is an upper bound that the
/// host has without reading them. Rows of slot-ordered tensors past offsets[E] are never read or written.
template <class B>
struct Groups {
  View<const Index, 1, B> offsets{};  // [E + 1]
  View<const Index, 1, B> rows{};     // [S] or empty
  Index slots = 0;
  View<const Index, 1, B> numbers{};  // [S], or empty with one process: see number

  GATEFOLD_HD Index experts() const { return offsets.extent(0) - 1; }
  GATEFOLD_HD Index row(Index slot) const { return rows.data() ? rows(slot) : slot; }

  /// The expert of a slot, by bisection; -1 past the last slot, and before the first slot of a part of the experts.
  GATEFOLD_HD Index expert(Index slot) const {
    Index low = 0, high = experts();
    if (high == 0 || slot < offsets(0) || slot >= offsets(high)) return -1;
    while (high - low > 1) {
      const Index middle = low + (high - low) / 2;
      (offsets(middle) <= slot ? low : high) = middle;
    }
    return low;
  }

  /// The number by which a slot draws random numbers: item · E + expert. If these are only part of all items and
  /// experts, `numbers` holds it, counted over all.
  GATEFOLD_HD Index number(Index slot, Index expert) const {
    return numbers.empty() ? row(slot) * experts() + expert : numbers(slot);
  }

  /// The same slots, for tensors that are already in slot order.
  Groups in_slot_order() const { return {offsets, {}, slots}; }

  /// Experts [first, first + count).
  Groups experts(Index first, Index count) const {
    return {View<const Index, 1, B>(offsets.data() + first, count + 1), rows, slots, numbers};
  }
};

}  // namespace gatefold
