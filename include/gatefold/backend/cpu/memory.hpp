#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

inline constexpr std::size_t line_size = 64;

/// Allocates memory that begins at a cache line. On Linux, `madvise` requests huge pages for large blocks, because
/// products read megabytes of weights, and a page of 4 KiB holds only a few rows of them.
/// @throws std::bad_alloc
[[gnu::noinline]] inline void* allocate(std::size_t bytes) {
  void* p = ::operator new(bytes, std::align_val_t(line_size));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t page = std::uintptr_t(1) << 21;
  const auto begin = divide_up(reinterpret_cast<std::uintptr_t>(p), page) * page,
             end = (reinterpret_cast<std::uintptr_t>(p) + bytes) / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // best effort
#endif
  return p;
}
/// Releases memory that allocate() returned. Null is allowed.
inline void release(void* p) { ::operator delete(p, std::align_val_t(line_size)); }

/// Describes memory that should be prefetched, because it is read soon. The innermost loop of a product (a register
/// tile) prefetches one cache line at a time while it computes, because many prefetches at once would delay the loads
/// of the loop. A tile that sums over `depth` words (packed elements) prefetches depth / 2 lines.
struct Prefetch {
  static constexpr Index line = 64;

  struct Lines {
    const char* next;
    // `next` is the next cache line to prefetch. `run` is the number of consecutive lines, or 0 if all lines are
    // consecutive. `jump` is the number of bytes from the last line of a run to the first line of the next run.
    Index run, jump;
  };
  Lines first;
  // After `count` cache lines of `first`, prefetching continues with `then`. If `count` is 0, `then` is not used.
  Index count = 0;
  Lines then{};

  /// Returns a Prefetch without effect: its only cache line is at `present`, and must already be in the cache.
  static Prefetch nothing(const void* present) { return {{static_cast<const char*>(present), 1, 0}}; }
  /// Returns a Prefetch of the cache lines of an array of `count` elements. If the array is divided into n parts, the
  /// Prefetch begins with part t.
  template <class T>
  static Prefetch part(const T* data, Index count, Index t, Index n) {
    return {{reinterpret_cast<const char*>(data + t * count / n), 0, 0}};
  }
  /// Returns a Prefetch of the rows of a matrix. If the cache lines of `rows` rows are divided into n parts, the
  /// Prefetch begins with the row in which part t begins.
  /// @param bytes   size of a row, at least 1
  /// @param stride  bytes from row to row
  static Prefetch rows(const void* data, Index rows, Index bytes, Index stride, Index t, Index n) {
    const Index run = divide_up(bytes, line), row = t * (rows * run) / n / run;
    return {{static_cast<const char*>(data) + row * stride, run, stride - (run - 1) * line}};
  }
  /// Returns a Prefetch that first has the lines of `rows` rows of a matrix, and then the lines of this object.
  Prefetch after_rows(const void* data, Index rows, Index bytes, Index stride) const {
    Prefetch all = Prefetch::rows(data, rows, bytes, stride, 0, 1);
    all.count = rows * all.first.run;
    all.then = first;
    return all;
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
