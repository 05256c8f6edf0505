#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Describes memory that is read soon. A tile prefetches it while it computes, one cache line at a time, because a
/// burst of prefetches would delay the loads of the tile. A tile prefetches depth / 2 lines.
struct Prefetch {
  static constexpr Index line = 64;

  struct Lines {
    const char* next;
    // run: number of consecutive lines, or 0 if all lines are consecutive. jump: bytes from the last line of a run to
    // the first line of the next run.
    Index run, jump;
  };
  Lines first;
  Index count = 0;  // number of lines of `first`, after which `then` follows; if 0, `then` is not used
  Lines then{};

  /// Returns a Prefetch without effect: its only line is already in the cache.
  static Prefetch nothing(const void* present) { return {{static_cast<const char*>(present), 1, 0}}; }
  /// Divides `count` elements into n parts, and returns a Prefetch of consecutive lines that begins at part t.
  template <class T>
  static Prefetch part(const T* data, Index count, Index t, Index n) {
    return {{reinterpret_cast<const char*>(data + t * count / n), 0, 0}};
  }
  /// Divides the cache lines of `rows` rows into n parts, and returns a Prefetch of rows that begins with the row in
  /// which part t begins.
  /// @param bytes   size of a row, at least 1
  /// @param stride  bytes from row to row
  static Prefetch rows(const void* data, Index rows, Index bytes, Index stride, Index t, Index n) {
    const Index run = divide_up(bytes, line), row = t * (rows * run) / n / run;
    return {{static_cast<const char*>(data) + row * stride, run, stride - (run - 1) * line}};
  }
  /// Returns a Prefetch of rows of memory, followed by the lines of this object.
  Prefetch after_rows(const void* data, Index rows, Index bytes, Index stride) const {
    Prefetch all = Prefetch::rows(data, rows, bytes, stride, 0, 1);
    all.count = rows * all.first.run;
    all.then = first;
    return all;
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
