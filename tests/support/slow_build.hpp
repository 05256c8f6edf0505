#pragma once

/// True in builds with address or thread sanitizer. Test cases that take long in these builds, and only run code that
/// shorter cases also run, are left to `tests/run.sh --full`: `TEST_CASE("…" * doctest::skip(support::slow_build))`.
namespace gatefold::support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool slow_build = true;
#elif defined(__has_feature)
inline constexpr bool slow_build = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool slow_build = false;
#endif

}  // namespace gatefold::support
