#pragma once

#include <cstddef>

#if defined(__ELF__)
extern "C" {
// These names belong to the sanitizer. NOLINTBEGIN(bugprone-reserved-identifier)
void __asan_poison_memory_region(const volatile void* p, std::size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void* p, std::size_t bytes) __attribute__((weak));
// NOLINTEND(bugprone-reserved-identifier)
}
#endif

/// Calls of the address sanitizer for memory that the library manages itself. The weak symbols are tested at run time,
/// so that these functions are the same in files compiled with and without the sanitizer. Without the sanitizer, the
/// functions do nothing.
namespace gatefold::detail_::address_sanitizer {

/// Marks a range, so that the sanitizer reports every read and write in it.
inline void poison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__ELF__)
  if (__asan_poison_memory_region) __asan_poison_memory_region(p, bytes);
#endif
}
/// Ends the effect of poison() for a range.
inline void unpoison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__ELF__)
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, bytes);
#endif
}

}  // namespace gatefold::detail_::address_sanitizer
