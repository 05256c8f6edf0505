#pragma once

#include <cstddef>

#if defined(__ELF__)
extern "C" {
// AddressSanitizer defines these reserved names. NOLINTBEGIN(bugprone-reserved-identifier)
void __asan_poison_memory_region(const volatile void* p, std::size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void* p, std::size_t bytes) __attribute__((weak));
// NOLINTEND(bugprone-reserved-identifier)
}
#endif

/// Tells AddressSanitizer which parts of the library's own memory pools must not be accessed. The functions of the
/// sanitizer are declared as weak symbols and called only if they are linked. The code here is therefore the same in
/// files compiled with and without the sanitizer; without the sanitizer, it does nothing.
namespace gatefold::detail_::address_sanitizer {

/// Forbids access to a range of memory: AddressSanitizer then reports every read and write in it.
inline void poison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__ELF__)
  if (__asan_poison_memory_region) __asan_poison_memory_region(p, bytes);
#endif
}
/// Allows access to a range of memory again that poison() has forbidden.
inline void unpoison([[maybe_unused]] const void* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__ELF__)
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, bytes);
#endif
}

}  // namespace gatefold::detail_::address_sanitizer
