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

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
