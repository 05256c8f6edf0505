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

/// Marks a type or variable that must exist only once in a process. This matters if several shared objects of the
/// process were compiled with -fvisibility=hidden. Without the attribute, each shared object has its own copy: an
/// exception that one shared object throws is not caught by its type in another shared object, and each copy of a
/// counter counts separately. On Windows, every DLL has its own copy, and exceptions are compared by name.
#if defined(__ELF__) || defined(__APPLE__)
#define GATEFOLD_UNIQUE [[gnu::visibility("default")]]
#else
#define GATEFOLD_UNIQUE
#endif
/// Marks a variable template whose variables must exist only once in a process, as GATEFOLD_UNIQUE does for other
/// variables. Empty under nvcc, which refuses the attribute if the template argument has no external linkage.
#if defined(__CUDACC__)
#define GATEFOLD_UNIQUE_OF_TYPE
#else
#define GATEFOLD_UNIQUE_OF_TYPE GATEFOLD_UNIQUE
#endif

/// Asserts a condition whose check is too expensive for optimised builds, for example that each index is in range. Does
/// nothing if NDEBUG is defined.
#define GATEFOLD_ASSERT(condition, sentence) assert((condition) && sentence)
/// Asserts a condition like GATEFOLD_ASSERT. On failure, it evaluates the expression `stop`: a call of a host function
/// that prints a message with values and does not return. Under nvcc it is the same as GATEFOLD_ASSERT.
#if defined(NDEBUG) || defined(__CUDACC__)
#define GATEFOLD_ASSERT_OR(condition, sentence, stop) GATEFOLD_ASSERT(condition, sentence)
#else
#define GATEFOLD_ASSERT_OR(condition, sentence, stop) ((condition) ? void() : stop)
#endif

/// A static_assert for mistakes of users, in a function or in a class. Before an error, g++ prints the enclosing
/// templates, the innermost first. This macro makes the message a template argument of an innermost template, so that
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

/// Checks one requirement of a policy (for example a gate or an expert) at compile time, and reports it with a
/// static_assert if it is not met. The condition is stored in a named bool, because the compiler would otherwise also
/// print the definition of a concept in the condition. The `else` skips all later requirements, so that only the first
/// unmet one is reported.
#define GATEFOLD_EXPECT(condition, sentence) \
  if constexpr (!(condition)) {              \
    constexpr bool satisfied = condition;    \
    GATEFOLD_REQUIRE(satisfied, sentence);   \
    return false;                            \
  } else

/// Declares templates with the same parameters:
///
///     GATEFOLD_DECLARE((class FirstT, class SecondT), Residual, PreNorm);
#define GATEFOLD_DECLARE(parameters, ...)                        \
  GATEFOLD_EXPAND(GATEFOLD_TEMPLATE_OF(parameters, __VA_ARGS__)) \
  static_assert(true)
/// Declares the functors of a header before the type that uses them, so that readers see the type first. The functors
/// are defined in `namespace functor` at the end of the header:
///
///     GATEFOLD_FUNCTORS((class T, class B), PickTopK, PickTopKBackward);
#define GATEFOLD_FUNCTORS(parameters, ...)   \
  namespace functor {                        \
  GATEFOLD_DECLARE(parameters, __VA_ARGS__); \
  }                                          \
  static_assert(true)
#define GATEFOLD_TEMPLATE_OF(parameters, name, ...) \
  template <GATEFOLD_BARE parameters>               \
  struct name;                                      \
  __VA_OPT__(GATEFOLD_TEMPLATE_NEXT GATEFOLD_PARENTHESES(parameters, __VA_ARGS__))
#define GATEFOLD_TEMPLATE_NEXT() GATEFOLD_TEMPLATE_OF
#define GATEFOLD_BARE(...) __VA_ARGS__

// GATEFOLD_EXPAND makes a recursive macro possible: it expands its argument again and again, enough for a list of up to
// 64 names. For each name but the last, the recursive macro ends with a call of itself for the rest of the list. The
// call uses GATEFOLD_PARENTHESES, so that it is expanded only in the next round.
#define GATEFOLD_PARENTHESES ()
#define GATEFOLD_EXPAND(...) GATEFOLD_EXPAND_16(GATEFOLD_EXPAND_16(GATEFOLD_EXPAND_16(GATEFOLD_EXPAND_16(__VA_ARGS__))))
#define GATEFOLD_EXPAND_16(...) GATEFOLD_EXPAND_4(GATEFOLD_EXPAND_4(GATEFOLD_EXPAND_4(GATEFOLD_EXPAND_4(__VA_ARGS__))))
#define GATEFOLD_EXPAND_4(...) GATEFOLD_EXPAND_1(GATEFOLD_EXPAND_1(GATEFOLD_EXPAND_1(GATEFOLD_EXPAND_1(__VA_ARGS__))))
#define GATEFOLD_EXPAND_1(...) __VA_ARGS__

namespace gatefold::detail_ {

/// A string literal that can be passed as a template argument.
template <std::size_t Size>
struct Sentence {
  char text[Size]{};
  constexpr Sentence(const char (&from)[Size]) {
    for (std::size_t i = 0; i < Size; ++i) text[i] = from[i];
  }
};

}  // namespace gatefold::detail_
