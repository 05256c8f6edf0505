#pragma once

#include <type_traits>

#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// A constant to pass to a grouped product (one matrix product per expert) to transpose its weights. The choice is made
/// at compile time, so that for a device only the kernels of this case are compiled.
inline constexpr std::true_type as_transposed{};
/// A constant to pass to a grouped product (one matrix product per expert) to use its weights as they are stored,
/// without transposing them. The choice is made at compile time.
inline constexpr std::false_type as_stored{};

/// The slots of each of E experts. A slot is one row of work of an expert; expert e has the slots offsets[e] to
/// offsets[e + 1] - 1. Slot s reads row rows[s] of the input, or row s if `rows` is empty. `offsets` is in memory of
/// the backend, for example of a GPU. `slots` is an upper bound of the number of slots, which the host can use without
/// reading `offsets`. In tensors with one row per slot, the rows from offsets[E] on do not affect any result.
template <class B>
struct Groups {
  View<const Index, 1, B> offsets{};  // [E + 1]
  View<const Index, 1, B> rows{};     // [S] row that each slot reads; if empty, slot s reads row s
  Index slots = 0;
  // [S] position of each slot in a random stream, see number(). Only an ExpertParallel that draws random numbers sets
  // it; otherwise it is empty.
  View<const Index, 1, B> numbers{};

  GATEFOLD_HD Index experts() const { return offsets.extent(0) - 1; }
  GATEFOLD_HD Index row(Index slot) const { return rows.data() ? rows(slot) : slot; }

  /// Returns the expert to which the given slot belongs, found by bisection of `offsets`. Returns -1 if the slot is
  /// outside [offsets[0], offsets[E]), the slots of all E experts. offsets[0] can be greater than 0, because a Groups
  /// object can refer to only a part of the experts.
  GATEFOLD_HD Index expert(Index slot) const {
    Index low = 0, high = experts();
    if (high == 0 || slot < offsets(0) || slot >= offsets(high)) return -1;
    while (high - low > 1) {
      const Index middle = low + (high - low) / 2;
      (offsets(middle) <= slot ? low : high) = middle;
    }
    return low;
  }

  /// Returns the position of a slot in a random stream: item · E + expert, for the E experts of these groups. If
  /// `numbers` is set, returns its value, which refers to the items and experts of all shards.
  GATEFOLD_HD Index number(Index slot, Index expert) const {
    return numbers.empty() ? row(slot) * experts() + expert : numbers(slot);
  }

  /// Returns the same slots for an input with one row per slot: slot s then reads row s instead of row rows[s]. The
  /// result has no `numbers`.
  Groups in_slot_order() const { return {offsets, {}, slots}; }

  /// Returns the slots of only the experts first to first + count - 1.
  Groups experts(Index first, Index count) const {
    return {View<const Index, 1, B>(offsets.data() + first, count + 1), rows, slots, numbers};
  }
};

namespace functor {

/// Writes the offsets of groups of equal size: offsets[e] = e · size.
template <class B>
struct EvenOffsets {
  Index size;
  View<Index, 1, B> offsets;
  GATEFOLD_HD void operator()(Index e) const { offsets(e) = e * size; }
};

}  // namespace functor

/// Returns Groups (the rows of each expert) with a single expert that has all rows. The result refers to scratch memory
/// of the context, so take a mark (`ctx.mark()`, the scope of such memory) before the call.
template <class C>
auto one_group(C& ctx, Index rows) {
  using B = typename C::Backend;
  auto offsets = ctx.template scratch<Index>(2);
  B::for_each(ctx, 2, functor::EvenOffsets<B>{rows, offsets});
  return Groups<B>{offsets, {}, rows};
}

namespace functor {

/// Part of group_table, which sorts the entries of a table by key. The table has `each` columns, its entries are
/// numbered row by row, and `order` lists these numbers in sorted order. Writes the row of entry order[s] to rows[s],
/// and the inverse of `order` to slot_of: slot_of[order[s]] = s.
template <class B>
struct TableSlots {
  Index each;
  View<const Index, 1, B> order;
  View<Index, 1, B> rows, slot_of;
  GATEFOLD_HD void operator()(Index s) const {
    GATEFOLD_ASSERT(0 <= order(s) && order(s) < slot_of.size(), "group_table: key out of range");
    rows(s) = order(s) / each;
    slot_of(order(s)) = s;
  }
};
/// Part of group_table, which sorts the entries of a table by key. Lists the sorted positions (slots) of the entries of
/// row n: writes them to `slots` in ascending order, and the index of the first of them to offsets[n].
template <class B>
struct SlotsOfRow {
  Index each;
  View<const Index, 1, B> slot_of;
  View<Index, 1, B> offsets, slots;
  GATEFOLD_HD void operator()(Index n) const {
    const Index first = n * each;
    offsets(n) = first;
    if (first == slots.size()) return;
    for (Index j = 0; j < each; ++j) {
      const Index slot = slot_of(first + j);
      Index at = first + j;
      for (; at > first && slots(at - 1) > slot; --at) slots(at) = slots(at - 1);
      slots(at) = slot;
    }
  }
};

}  // namespace functor

/// Implements the primitive group_table (backend.hpp), which sorts the entries of a table by key, with group_by and
/// for_each. Slot s is position s in the sorted order.
/// @param keys   [N, K] in   the keys, each in [0, G)
/// @param offsets, order      [G + 1], [N · K] out  the first slot of each key, and the table entry (its number) of
///         each slot
/// @param rows   [N · K] out  the row of each slot
/// @param row_offsets, row_slots  [N + 1], [N · K] out  for each row, the index of its first slot in row_slots, and its
///         slots in ascending order
/// @throws ArgumentError, on a host, unless every key is in [0, G)
/// @cost   a group_by and 2·N·K moves, up to N·K² comparisons; scratch [N · K]
template <class B>
void group_by_and_back(auto& ctx, View<const Index, 2, B> keys, View<Index, 1, B> offsets, View<Index, 1, B> order,
                       View<Index, 1, B> rows, View<Index, 1, B> row_offsets, View<Index, 1, B> row_slots) {
  const auto mark = ctx.mark();
  auto slot_of = ctx.template scratch<Index>(keys.size());
  B::group_by(ctx, keys.as(keys.size()), offsets, order);
  // Keys in device memory are not checked, because the host could read the result only after waiting for the device.
  if constexpr (B::is_host)
    if (!offsets.empty())
      expect(offsets(offsets.extent(0) - 1) == keys.size(), "group_table", "keys", "numbers of groups, all at least 0",
             "negative numbers");
  B::for_each(ctx, keys.size(), functor::TableSlots<B>{keys.extent(1), order, rows, slot_of});
  B::for_each(ctx, keys.extent(0) + 1, functor::SlotsOfRow<B>{keys.extent(1), slot_of, row_offsets, row_slots});
}

}  // namespace gatefold
