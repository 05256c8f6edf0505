#pragma once

#include <cstdint>
#include <type_traits>

#include "gatefold/core/types.hpp"

/// Comparisons of floating-point numbers for sorting and ranking. They are correct for NaN and with any compiler flags,
/// also -ffast-math.
namespace gatefold::functor {

/// True if the compiler assumes that there is no NaN and no infinity (-ffast-math, -ffinite-math-only). Comparisons
/// with these values then have undefined results.
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
inline constexpr bool finite_math_only = true;
#else
inline constexpr bool finite_math_only = false;
#endif

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
template <class T>
inline constexpr BitsOf<T> sign_bit = BitsOf<T>(1) << (sizeof(T) * 8 - 1);
template <class T>
inline constexpr BitsOf<T> infinity_bits = sizeof(T) == 4 ? BitsOf<T>(0x7f800000)
                                                          : static_cast<BitsOf<T>>(0x7ff0000000000000);

/// Returns the bits of a floating-point number with the sign bit set to 0.
template <class T>
GATEFOLD_HD BitsOf<T> magnitude_bits(T v) {
  static_assert(std::is_floating_point_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  BitsOf<T> bits;
  __builtin_memcpy(&bits, &v, sizeof(T));
  return bits & ~sign_bit<T>;
}
/// Returns whether v is neither NaN nor infinite. The result is right with any compiler flags, also -ffast-math.
template <class T>
GATEFOLD_HD bool is_finite(T v) {
  return magnitude_bits(v) < infinity_bits<T>;
}

/// Returns whether v is NaN. The result is right with any compiler flags, also -ffast-math.
template <class T>
GATEFOLD_HD bool is_nan(T v) {
  return magnitude_bits(v) > infinity_bits<T>;
}

/// Returns 0 through a volatile variable, so that the compiler cannot know the value. Use it to test whether a number v
/// is finite: the product of v and this 0 is 0 if v is finite, and NaN otherwise, with any compiler flags.
template <class T>
T unknown_zero() {
  volatile T zero = 0;
  return zero;
}

/// Returns an integer with the same order as v: a larger v gives a larger integer. NaN gets the smallest integer; 0 and
/// −0 get the same integer. The integer is computed only from the bits of v, so that the order is total with any
/// compiler flags.
template <class T>
GATEFOLD_HD std::make_signed_t<BitsOf<T>> order_key(T v) {
  using Key = std::make_signed_t<BitsOf<T>>;
  BitsOf<T> bits;
  __builtin_memcpy(&bits, &v, sizeof(T));
  const BitsOf<T> magnitude = bits & ~sign_bit<T>;
  if (magnitude > infinity_bits<T>) return static_cast<Key>(sign_bit<T>);
  return bits & sign_bit<T> ? -static_cast<Key>(magnitude) : static_cast<Key>(magnitude);
}

/// Returns whether the value a at index i comes before the value b at index j if values are sorted from large to small.
/// NaN comes last, and equal values are ordered by index. This order is total.
template <class T>
GATEFOLD_HD bool ranks_before(T a, Index i, T b, Index j) {
  const auto of_a = order_key(a), of_b = order_key(b);
  return of_a != of_b ? of_a > of_b : i < j;
}

// Heap sort of a list of indices, in place, for use inside a functor (also on a GPU). `before(a, b)` is true if the
// element with index a comes before the element with index b; it must be a strict total order. The root of the heap is
// the index that comes last.

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
/// @cost up to 2·log₂ room comparisons if the list is full, up to 2·room in the call that fills it, otherwise none
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
