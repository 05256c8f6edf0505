#pragma once

#include <cassert>
#include <cstddef>

/// Marks functions that run on the host and, under nvcc, on the device as well.
#if defined(__CUDACC__)
#define GATEFOLD_HD __host__ __device__
#else
#define GATEFOLD_HD
#endif

/// Marks functions on registers of the CPU. They are inlined in builds without optimisation too, because a call takes
/// longer than the function.
#define GATEFOLD_INLINE [[gnu::always_inline]] inline

/// Marks a type or variable of which a process must have only one, even if several of its shared objects were compiled
/// with -fvisibility=hidden. Without the mark, each of them has a separate one: then an exception is not caught by its
/// type, and a counter counts several times. On Windows, every DLL has a separate one; exceptions are compared by name
/// there.
#if defined(__ELF__) || defined(__APPLE__)
#define GATEFOLD_UNIQUE [[gnu::visibility("default")]]
#else
#define GATEFOLD_UNIQUE
#endif
/// The same for a variable of a type. nvcc refuses the attribute if the type has no external linkage.
#if defined(__CUDACC__)
#define GATEFOLD_UNIQUE_OF_TYPE
#else
#define GATEFOLD_UNIQUE_OF_TYPE GATEFOLD_UNIQUE
#endif

/// O(n) checks of data (index in range, finite): on unless NDEBUG is defined.
#define GATEFOLD_ASSERT(condition, sentence) assert((condition) && sentence)
/// The same, but calls stop(), a host function that does not return and prints more than a fixed sentence.
#if defined(NDEBUG) || defined(__CUDACC__)
#define GATEFOLD_ASSERT_OR(condition, sentence, stop) GATEFOLD_ASSERT(condition, sentence)
#else
#define GATEFOLD_ASSERT_OR(condition, sentence, stop) ((condition) ? void() : stop)
#endif

/// A static_assert for mistakes of users, in a function or in a class. Before an error, g++ prints the enclosing
/// templates, the innermost first. This macro puts the sentence into them as a template argument, so that it is printed
/// first.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define GATEFOLD_REQUIRE(condition, sentence)                        \
  static_assert([]<bool met, ::gatefold::detail_::Sentence says>() { \
    static_assert(met, sentence);                                    \
    return true;                                                     \
  }.template operator()<bool(condition), sentence>())
#else
#define GATEFOLD_REQUIRE(condition, sentence) static_assert(condition, sentence)
#endif

/// Reports the first unmet requirement of a policy in one sentence. The named bool keeps the compiler from printing the
/// inside of the concept. The `else` skips the requirements after it.
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
