#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#include "support/allocations.hpp"

/// Counts the heap allocations of a test program. It replaces operator new, so include it in only one source of the
/// program.

#if GATEFOLD_TEST_COUNTS
namespace gatefold::support {

inline void* counted_or_null(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  ++allocations;
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}
inline void* counted(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  if (void* p = counted_or_null(bytes, alignment)) return p;
  throw std::bad_alloc();
}

}  // namespace gatefold::support

// Not inlined, because g++ would warn of a mismatch between malloc and delete, or between new and free.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return gatefold::support::counted(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return gatefold::support::counted(bytes); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t a) {
  return gatefold::support::counted(bytes, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t a) {
  return gatefold::support::counted(bytes, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return gatefold::support::counted_or_null(bytes);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return gatefold::support::counted_or_null(bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
#endif
