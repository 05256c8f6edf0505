#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Memory that is read soon, prefetched one cache line at a time while a tile computes. A burst of prefetches would
/// delay the loads of the tile. A tile prefetches depth / 2 lines.
struct Prefetch {
  static constexpr Index line = 64;

  struct Lines {
    const char* next;
    // run: consecutive lines, 0 for all; jump: bytes from the last of them to the next run
    Index run, jump;
  };
  Lines first;
  Index count = 0;  // lines in `first`, 0 for all
  Lines then{};

  /// Prefetches only one line that is already in the cache.
  static Prefetch nothing(const void* present) { return {{static_cast<const char*>(present), 1, 0}}; }
  /// Prefetches consecutive lines, from part t of n of `count` elements on.
  template <class T>
  static Prefetch part(const T* data, Index count, Index t, Index n) {
    return {{reinterpret_cast<const char*>(data + t * count / n), 0, 0}};
  }
  /// Prefetches rows of memory, from part t of n of their lines on.
  /// @param bytes   of a row, at least 1
  /// @param stride  bytes from row to row
  static Prefetch rows(const void* data, Index rows, Index bytes, Index stride, Index t, Index n) {
    const Index run = divide_up(bytes, line), row = t * (rows * run) / n / run;
    return {{static_cast<const char*>(data) + row * stride, run, stride - (run - 1) * line}};
  }
  /// Prefetches rows of memory, then the lines of this object.
  Prefetch after_rows(const void* data, Index rows, Index bytes, Index stride) const {
    Prefetch all = Prefetch::rows(data, rows, bytes, stride, 0, 1);
    all.count = rows * all.first.run;
    all.then = first;
    return all;
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
