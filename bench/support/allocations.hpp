#pragma once

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

/// Counts the heap memory of a program. Include it in only one source file of a program, because it replaces operator
/// new.
namespace bench::heap {

/// The number of allocations, the bytes that are allocated now, and the most bytes allocated since restart_peak().
inline std::atomic<long> allocations{0}, live{0}, peak{0};

inline void* counted(void* p) {
  if (!p) throw std::bad_alloc();
  ++allocations;
  const long now = live += static_cast<long>(malloc_usable_size(p));
  for (long most = peak; now > most && !peak.compare_exchange_weak(most, now);) {
  }
  return p;
}
/// Frees memory. Not inlined, because compilers would warn that memory from `new` is passed to `free`.
[[gnu::noinline]] inline void give_back(void* p) {
  live -= static_cast<long>(malloc_usable_size(p));
  std::free(p);
}
/// Resets the peak to the bytes that are allocated now.
inline void restart_peak() { peak = live.load(); }

}  // namespace bench::heap

void* operator new(std::size_t bytes) { return bench::heap::counted(std::malloc(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto a = static_cast<std::size_t>(alignment);
  return bench::heap::counted(std::aligned_alloc(a, (bytes + a - 1) / a * a));
}
void operator delete(void* p) noexcept { bench::heap::give_back(p); }
void operator delete(void* p, std::size_t) noexcept { bench::heap::give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { bench::heap::give_back(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { bench::heap::give_back(p); }
