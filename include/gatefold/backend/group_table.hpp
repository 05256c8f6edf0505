#pragma once

#include "gatefold/tensor/view.hpp"

namespace gatefold {

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
/// @param offsets, order      [G + 1], [N · K] out  the first slot of each key, and the table's entry of each slot
/// @param rows   [N · K] out  the row of each slot
/// @param row_offsets, row_slots  [N + 1], [N · K] out  the slots of each row, ascending, and the index of its first
///         slot
/// @throws ArgumentError, on a host, unless every key is in [0, G)
/// @cost   a group_by and 2·N·K moves, up to N·K² comparisons; scratch [N · K]
template <class B>
void group_by_and_back(auto& ctx, View<const Index, 2, B> keys, View<Index, 1, B> offsets, View<Index, 1, B> order,
                       View<Index, 1, B> rows, View<Index, 1, B> row_offsets, View<Index, 1, B> row_slots) {
  const auto mark = ctx.mark();
  auto slot_of = ctx.template scratch<Index>(keys.size());
  B::group_by(ctx, keys.as(keys.size()), offsets, order);
  // Keys in device memory are not checked, because the host would have to wait for the device to read them.
  if constexpr (B::is_host)
    if (!offsets.empty())
      expect(offsets(offsets.extent(0) - 1) == keys.size(), "group_table", "keys", "numbers of groups, all at least 0",
             "negative numbers");
  B::for_each(ctx, keys.size(), functor::TableSlots<B>{keys.extent(1), order, rows, slot_of});
  B::for_each(ctx, keys.extent(0) + 1, functor::SlotsOfRow<B>{keys.extent(1), slot_of, row_offsets, row_slots});
}

}  // namespace gatefold
