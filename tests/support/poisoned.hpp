#pragma once

#if defined(__ELF__)
extern "C" int __asan_address_is_poisoned(const volatile void* p) __attribute__((weak));
#endif

namespace gatefold::support {

/// True if the program is compiled with the address sanitizer.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool address_sanitized = true;
#elif defined(__has_feature)
constexpr bool address_sanitized = __has_feature(address_sanitizer);
#else
constexpr bool address_sanitized = false;
#endif

/// Returns true if the address sanitizer would report an access to the byte at p. Returns false without this sanitizer.
inline bool poisoned([[maybe_unused]] const void* p) {
#if defined(__ELF__)
  if (__asan_address_is_poisoned) return __asan_address_is_poisoned(p) != 0;
#endif
  return false;
}

}  // namespace gatefold::support
