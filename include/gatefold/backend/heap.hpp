#pragma once

#include "gatefold/core/types.hpp"

/// Heap sort of a list of indices, in place, for use inside a functor (also on a GPU). `before(a, b)` is true if the
/// element with index a comes before the element with index b; it must be a strict total order. The root of the heap is
/// the index that comes last.
namespace gatefold::functor {

/// Restores the order of a heap below position `at`: moves the index heap[at] down, below all indices that come after
/// it in the order of `before`.
/// @cost 2·log₂ count comparisons
GATEFOLD_HD void sift_down(Index* heap, Index count, Index at, const auto& before) {
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

GATEFOLD_HD void make_heap(Index* list, Index count, const auto& before) {
  for (Index i = count / 2; i-- > 0;) sift_down(list, count, i, before);
}

/// Sorts a list of indices into the order of `before(a, b)`, in place.
/// @cost 2·count·log₂ count comparisons, no additional memory
GATEFOLD_HD void heap_sort(Index* list, Index count, const auto& before) {
  make_heap(list, count, before);
  for (Index n = count; n-- > 1;) {
    const Index last = list[0];
    list[0] = list[n];
    list[n] = last;
    sift_down(list, n, 0, before);
  }
}

/// Adds an index to a list that keeps only the first `room` of all added indices, in the order of `before(a, b)`.
/// `held` is the present length of the list. The list is not sorted; call heap_sort(list, held, before) at the end.
/// @cost 2·log₂ room comparisons if the list is full, otherwise 0; the offer that fills the list costs 2·room
GATEFOLD_HD void offer(Index* list, Index room, Index& held, Index candidate, const auto& before) {
  if (held < room) {
    list[held++] = candidate;
    if (held == room) make_heap(list, room, before);
  } else if (room > 0 && before(candidate, list[0])) {
    list[0] = candidate;
    sift_down(list, room, 0, before);
  }
}

}  // namespace gatefold::functor
