#pragma once

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// Sorting inside a functor, in place: a heap whose root is the last in order. `before(a, b)` is a strict total order
/// of what the indices stand for.
namespace gatefold::functor {

/// Let the index at `at` sink below those that come after it.
/// @cost 2·log₂ count comparisons
template <class BeforeT>
GATEFOLD_HD void sift_down(Index* heap, Index count, Index at, const BeforeT& before) {
  for (;;) {
    Index last = at;
    for (Index child = 2 * at + 1; child <= 2 * at + 2 && child < count; ++child)
      if (before(heap[last], heap[child])) last = child;
    if (last == at) return;
    const Index sunk = heap[at];
    heap[at] = heap[last];
    heap[last] = sunk;
    at = last;
  }
}

template <class BeforeT>
GATEFOLD_HD void make_heap(Index* list, Index count, const BeforeT& before) {
  for (Index i = count / 2; i-- > 0;) sift_down(list, count, i, before);
}

/// Put a list in order.
/// @cost 2·count·log₂ count comparisons, no memory
template <class BeforeT>
GATEFOLD_HD void heap_sort(Index* list, Index count, const BeforeT& before) {
  make_heap(list, count, before);
  for (Index n = count; n-- > 1;) {
    const Index last = list[0];
    list[0] = list[n];
    list[n] = last;
    sift_down(list, n, 0, before);
  }
}

/// Offer an index to a list that keeps the first `room` in order of all it was offered; `held` counts those it has.
/// Unsorted until heap_sort(list, held, before).
/// @cost 2·log₂ room comparisons, none until the list is full; the offer that fills it 2·room, once
template <class BeforeT>
GATEFOLD_HD void offer(Index* list, Index room, Index& held, Index candidate, const BeforeT& before) {
  if (held < room) {
    list[held++] = candidate;
    if (held == room) make_heap(list, room, before);
  } else if (room > 0 && before(candidate, list[0])) {
    list[0] = candidate;
    sift_down(list, room, 0, before);
  }
}

}  // namespace gatefold::functor
