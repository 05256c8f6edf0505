#pragma once

#include <cassert>
#include <cstddef>

/// Marks functions that run on the host and, under nvcc, on the device as well.
#if defined(__CUDACC__)
#define GATEFOLD_HD __host__ __device__
#else
#define GATEFOLD_HD
#endif

/// Marks small functions that compute in CPU registers. They are inlined even in builds without optimisation, because a
/// call would take longer than the function.
#define GATEFOLD_INLINE [[gnu::always_inline]] inline

/// Marks a type or variable that must exist only once in a process, even if several shared objects of the process were
/// compiled with -fvisibility=hidden. Without the mark, each shared object has a separate copy: an exception that one
/// of them throws is not caught by its type in another, and each copy of a counter counts separately. On Windows, every
/// DLL has a separate copy, and exceptions are compared by name.
#if defined(__ELF__) || defined(__APPLE__)
#define GATEFOLD_UNIQUE [[gnu::visibility("default")]]
#else
#define GATEFOLD_UNIQUE
#endif
/// Like GATEFOLD_UNIQUE, for a variable template. Empty under nvcc, which refuses the attribute if the template
/// argument has no external linkage.
#if defined(__CUDACC__)
#define GATEFOLD_UNIQUE_OF_TYPE
#else
#define GATEFOLD_UNIQUE_OF_TYPE GATEFOLD_UNIQUE
#endif

/// Asserts a property of data (indices in range, values finite) whose checks cost O(n). Does nothing if NDEBUG is
/// defined.
#define GATEFOLD_ASSERT(condition, sentence) assert((condition) && sentence)
/// Like GATEFOLD_ASSERT, but on failure evaluates the expression `stop`. It must call a host function that prints a
/// message with values and does not return. Under nvcc it is GATEFOLD_ASSERT.
#if defined(NDEBUG) || defined(__CUDACC__)
#define GATEFOLD_ASSERT_OR(condition, sentence, stop) GATEFOLD_ASSERT(condition, sentence)
#else
#define GATEFOLD_ASSERT_OR(condition, sentence, stop) ((condition) ? void() : stop)
#endif

/// A static_assert for mistakes of users, in a function or in a class. Before an error, g++ prints the enclosing
/// templates, the innermost first. This macro makes the message a template argument of the innermost template, so that
/// g++ prints the message first.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define GATEFOLD_REQUIRE(condition, sentence)                        \
  static_assert([]<bool met, ::gatefold::detail_::Sentence says>() { \
    static_assert(met, sentence);                                    \
    return true;                                                     \
  }.template operator()<bool(condition), sentence>())
#else
#define GATEFOLD_REQUIRE(condition, sentence) static_assert(condition, sentence)
#endif

/// Reports the first unmet requirement of a policy with one static_assert. The named bool keeps the compiler from
/// printing the inside of the concept. The `else` skips the requirements after the unmet one, so that they report no
/// further errors.
#define GATEFOLD_EXPECT(condition, sentence) \
  if constexpr (!(condition)) {              \
    constexpr bool satisfied = condition;    \
    GATEFOLD_REQUIRE(satisfied, sentence);   \
    return false;                            \
  } else

namespace gatefold::detail_ {

/// A text as a template argument.
template <std::size_t Size>
struct Sentence {
  char text[Size]{};
  constexpr Sentence(const char (&from)[Size]) {
    for (std::size_t i = 0; i < Size; ++i) text[i] = from[i];
  }
};

}  // namespace gatefold::detail_
