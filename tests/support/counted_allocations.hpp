#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#include "support/allocations.hpp"

/// Counts what a test program takes from the heap. Replaces operator new: include it in one source of the program.

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

// Not inline: g++ takes an inlined malloc and a delete, or a new and a free, for a mismatch.
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
