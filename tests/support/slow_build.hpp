#pragma once

/// Cases that take long where every access is checked, and walk what shorter ones walk too, are left to
/// `tests/run.sh --full` there: `TEST_CASE("…" * doctest::skip(support::slow_build))`.
namespace gatefold::support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool slow_build = true;
#elif defined(__has_feature)
inline constexpr bool slow_build = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool slow_build = false;
#endif

}  // namespace gatefold::support
