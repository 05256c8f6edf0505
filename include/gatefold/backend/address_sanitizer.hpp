#pragma once

#include <cstddef>

#if defined(__ELF__)
extern "C" {
// The names belong to the sanitizer. NOLINTBEGIN(bugprone-reserved-identifier)
void __asan_poison_memory_region(const volatile void* p, std::size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void* p, std::size_t bytes) __attribute__((weak));
// NOLINTEND(bugprone-reserved-identifier)
}
#endif

/// What the address sanitizer is told of memory that is not malloc's. Asked for when the program runs, so that parts of
/// it that are compiled with it and without agree; where it is not there, nothing happens.
namespace gatefold::detail_::address_sanitizer {

/// Whoever reads or writes there is reported.
inline void poison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__ELF__)
  if (__asan_poison_memory_region) __asan_poison_memory_region(p, bytes);
#endif
}
inline void unpoison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__ELF__)
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, bytes);
#endif
}

}  // namespace gatefold::detail_::address_sanitizer
