#pragma once

#include <cassert>
#include <cstddef>

/// Marks functions that run on the host and, under nvcc, on the device as well.
#if defined(__CUDACC__)
#define GATEFOLD_HD __host__ __device__
#else
#define GATEFOLD_HD
#endif

/// Marks functions on registers of the CPU, inlined in builds without optimisation too: a call takes longer than what
/// they do.
#define GATEFOLD_INLINE [[gnu::always_inline]] inline

/// Marks a type or variable that a process must have once, also if several of its shared objects were compiled with
/// -fvisibility=hidden. Without the mark, each of them has its own: an exception is then not caught by its type, and a
/// counter counts several times. (A program for Windows has one per DLL. Exceptions are compared by name there.)
#if defined(__ELF__) || defined(__APPLE__)
#define GATEFOLD_UNIQUE [[gnu::visibility("default")]]
#else
#define GATEFOLD_UNIQUE
#endif

/// O(n) checks of data (index in range, finite): on unless NDEBUG is defined.
#define GATEFOLD_ASSERT(condition, sentence) assert((condition) && sentence)
/// The same where stop(), a function of the host that does not return, says more than a sentence can.
#if defined(NDEBUG) || defined(__CUDACC__)
#define GATEFOLD_ASSERT_OR(condition, sentence, stop) GATEFOLD_ASSERT(condition, sentence)
#else
#define GATEFOLD_ASSERT_OR(condition, sentence, stop) ((condition) ? void() : stop)
#endif

/// A static_assert for what users get wrong, in a function or in a class. g++ prints where the templates around an
/// error stand before the error itself, the innermost first: there the sentence is, as an argument.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define GATEFOLD_REQUIRE(condition, sentence)                        \
  static_assert([]<bool met, ::gatefold::detail_::Sentence says>() { \
    static_assert(met, sentence);                                    \
    return true;                                                     \
  }.template operator()<bool(condition), sentence>())
#else
#define GATEFOLD_REQUIRE(condition, sentence) static_assert(condition, sentence)
#endif

/// Turns the first unmet requirement of a policy into one sentence. The named bool keeps the compiler from
/// printing the inside of the concept; the `else` keeps it from going on to the next one.
#define GATEFOLD_EXPECT(condition, sentence) \
  if constexpr (!(condition)) {              \
    constexpr bool satisfied = condition;    \
    GATEFOLD_REQUIRE(satisfied, sentence);   \
    return false;                            \
  } else

namespace gatefold::detail_ {

/// A text as an argument of a template.
template <std::size_t Size>
struct Sentence {
  char text[Size]{};
  constexpr Sentence(const char (&from)[Size]) {
    for (std::size_t i = 0; i < Size; ++i) text[i] = from[i];
  }
};

}  // namespace gatefold::detail_
