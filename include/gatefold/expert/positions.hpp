#pragma once

#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"

namespace gatefold {

/// Numbers the positions (tokens or patches) of items, so that one grouped product computes all positions. An item slot
/// s is one item with one expert e. Each item has L positions. Each position l of the item gets its own row of work, a
/// position slot. The items x [N, L·D] are read as [N·L, D]. With count[e] = offsets[e + 1] − offsets[e], the position
/// slot is
///
///     together:  slot s·L + l of expert e                                         E experts             (1)
///     apart:     slot offsets[e]·L + l·count[e] + s − offsets[e] of expert e·L + l, E·L experts         (2)
///
/// In (1), all positions share the weights of expert e. In (2), with `apart`, every position has separate weights.
/// This header also copies rows of items to slot order, or adds them to rows in slot order (take_rows, add_rows).
template <class B>
struct Positions {
  Groups<B> items;
  Index length = 1;
  bool apart = false;

  Index slots() const { return items.slots * length; }
  /// Calls f(t) for the position slots t of item slot s, in the order of the positions. Searches the expert of s once,
  /// not once per position as repeated calls of slot() do. Does nothing if s belongs to no expert.
  template <class F>
  GATEFOLD_HD void each(Index s, const F& f) const {
    const Index e = items.expert(s);
    if (e < 0) return;
    const Index first = items.offsets(e), count = items.offsets(e + 1) - first;
    const Index begin = apart ? first * length + s - first : s * length, step = apart ? count : 1;
    for (Index l = 0; l < length; ++l) f(begin + l * step);
  }
  /// Returns the index of a position slot: by (2) if `apart` is true, otherwise by (1).
  /// @param s  the item slot; it must belong to an expert
  /// @param l  the position in the item, from 0 to L − 1
  GATEFOLD_HD Index slot(Index s, Index l) const {
    if (!apart) return s * length + l;
    const Index e = items.expert(s), first = items.offsets(e);
    return first * length + l * (items.offsets(e + 1) - first) + s - first;
  }
};

namespace functor {

template <class B>
struct PositionOffsets {
  Positions<B> positions;
  View<Index, 1, B> offsets;
  GATEFOLD_HD void operator()(Index i) const {
    const auto& [items, length, apart] = positions;
    const Index e = apart ? i / length : i, l = apart ? i % length : 0;
    offsets(i) = items.offsets(e) * length;
    if (l > 0) offsets(i) += l * (items.offsets(e + 1) - items.offsets(e));
  }
};
template <class B>
struct PositionRows {
  Positions<B> positions;
  View<Index, 1, B> rows;
  GATEFOLD_HD void operator()(Index s) const {
    Index l = 0;
    positions.each(s, [&](Index t) { rows(t) = positions.items.row(s) * positions.length + l++; });
  }
};
/// Copies a range of columns of the items that the slots read, beginning with column `first`: y[s] = x[row(s), first :
/// first + columns of y]. Adds to y[s] instead if `accumulate` is true. Skips slots that belong to no expert.
template <class T, class B>
struct TakeRows {
  Groups<B> groups;
  View<const T, 2, B> x;
  Index first;
  bool accumulate;
  View<T, 2, B> y;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (groups.expert(s) < 0) return;
    const T* from = x.data() + groups.row(s) * x.extent(1) + first;
    T* to = y.data() + s * y.extent(1);
    each_column<T>(lanes, y.extent(1), [&](auto at, Index j) {
      at.store(to + j, accumulate ? at.load(to + j) + at.load(from + j) : at.load(from + j));
    });
  }
};

}  // namespace functor

/// Returns the groups of position slots: the offsets of the experts, and the row that each slot reads. The arrays are
/// in scratch memory, so keep a ctx.mark() while you use them.
template <class C, class B>
Groups<B> position_groups(C& ctx, const Positions<B>& positions) {
  const Index experts = positions.items.experts() * (positions.apart ? positions.length : 1);
  auto offsets = ctx.template scratch<Index>(experts + 1);
  auto rows = ctx.template scratch<Index>(positions.slots());
  B::for_each(ctx, experts + 1, functor::PositionOffsets<B>{positions, offsets});
  B::for_each(ctx, positions.items.slots, functor::PositionRows<B>{positions, rows});
  return {offsets, rows, rows.size()};
}

/// Copies the items that the slots read to y, in slot order: y[s] = columns [first, first + columns of y) of x[row(s)].
/// Skips slots that belong to no expert.
template <class C, class T, class B>
void take_rows(C& ctx, Groups<B> groups, In<T, 2, B> x, View<T, 2, B> y, Index first = 0) {
  B::for_rows(ctx, groups.slots, functor::TakeRows<T, B>{groups, x, first, false, y});
}
/// Returns a copy of the rows of x that the slots read, in slot order. The copy is in scratch memory, so keep a
/// ctx.mark() while you use it.
template <class C, class T, class B>
View<const T, 2, B> rows_in_slot_order(C& ctx, Groups<B> groups, View<const T, 2, B> x) {
  auto rows = ctx.template scratch<T>(groups.slots, x.extent(1));
  take_rows(ctx, groups, x, rows);
  return rows;
}
/// Adds to y, in slot order, the items that the slots read: y[s] += columns [first, first + columns of y) of x[row(s)].
/// Skips slots that belong to no expert.
template <class C, class T, class B>
void add_rows(C& ctx, Groups<B> groups, In<T, 2, B> x, View<T, 2, B> y, Index first = 0) {
  B::for_rows(ctx, groups.slots, functor::TakeRows<T, B>{groups, x, first, true, y});
}

}  // namespace gatefold
