#pragma once

#include <atomic>

/// Counts the heap allocations of a test program. One source of the program must include counted_allocations.hpp.

// The thread sanitizer has its own operator new. With this sanitizer nothing is counted, and tests that count
// allocations are left out.
#if defined(__SANITIZE_THREAD__)
#define GATEFOLD_TEST_COUNTS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GATEFOLD_TEST_COUNTS 0
#endif
#endif
#ifndef GATEFOLD_TEST_COUNTS
#define GATEFOLD_TEST_COUNTS 1
#endif

namespace gatefold::support {

inline std::atomic<int> allocations{0};

}  // namespace gatefold::support
