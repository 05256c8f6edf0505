#pragma once

#include <cassert>

/// Marks functions that run on the host and, under nvcc, on the device as well.
#if defined(__CUDACC__)
#define GATEFOLD_HD __host__ __device__
#else
#define GATEFOLD_HD
#endif

/// O(n) checks of data (index in range, finite): on unless NDEBUG is defined.
#define GATEFOLD_ASSERT(condition, sentence) assert((condition) && sentence)

/// Turns the first unmet requirement of a policy into one sentence. The named bool keeps the compiler from
/// printing the inside of the concept; the `else` keeps it from going on to the next one.
#define GATEFOLD_EXPECT(condition, sentence) \
  if constexpr (!(condition)) {              \
    constexpr bool satisfied = condition;    \
    static_assert(satisfied, sentence);      \
    return false;                            \
  } else
