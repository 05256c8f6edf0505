#pragma once

#include <algorithm>
#include <type_traits>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// What packed operands of a product consist of.
///
/// A product is a template over P, what it multiplies: float and double, packed as they are, or Bfloat16, to which
/// floats are rounded where they are packed, and whose sums are floats. Packed operands consist of *words* of the size
/// of a sum. A word holds one value. Of bfloat16 it holds two that follow each other along the depth, where the target
/// multiplies such pairs, and else a float that was rounded.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

template <class P>
using SumOf = std::conditional_t<std::is_same_v<P, Bfloat16>, float, P>;

#if defined(GATEFOLD_BFLOAT16_PAIRS)
inline constexpr bool bfloat16_pairs = true;
#else
inline constexpr bool bfloat16_pairs = false;
#endif

template <class P>
inline constexpr int values_of_word = std::is_same_v<P, Bfloat16>&& bfloat16_pairs ? 2 : 1;

/// Whether the matrix unit (amx.hpp) multiplies words of P. Then nothing else does: it adds in an order of its own.
#if defined(GATEFOLD_AMX)
template <class P>
inline constexpr bool on_amx = std::is_same_v<P, Bfloat16>;
#else
template <class P>
inline constexpr bool on_amx = false;
#endif

/// Lines of words are filled up with zeros to a multiple of so many values.
template <class P>
inline constexpr int values_of_step = on_amx<P> ? 32 : values_of_word<P>;

/// Words of a line of `depth` values.
template <class P>
constexpr Index words(Index depth) {
  return divide_up(depth, values_of_step<P>) * (values_of_step<P> / values_of_word<P>);
}

/// s + x y, of pairs s + x₁ y₁ + x₀ y₀ in this order, where subnormal numbers are 0.
template <class P>
GATEFOLD_INLINE packet::Of<SumOf<P>> multiply_add(const packet::Of<SumOf<P>>& x, const packet::Of<SumOf<P>>& y,
                                                  const packet::Of<SumOf<P>>& s) {
  static_assert(!on_amx<P>, "vector registers would give other bits");
#if defined(GATEFOLD_BFLOAT16_PAIRS)
  if constexpr (values_of_word<P> == 2)
    return _mm512_dpbf16_ps(s, __builtin_bit_cast(__m512bh, x), __builtin_bit_cast(__m512bh, y));
  else
#endif
    return packet::madd<SumOf<P>>(x, y, s);
}

/// The words of values that lie in one row: word w holds value w, or values 2 w and 2 w + 1 of `count`.
template <class P>
struct WordsAlong {
  using T = SumOf<P>;
  const T* row;
  Index count;

  /// Words w to w + n - 1, the lanes behind them 0. @param n  1 to a register's size
  Register<T> load(Index w, int n) const {
    if constexpr (values_of_word<P> == 1) {
      return rounded<P>(Register<T>::load(row + w, n));
    } else {
      constexpr Index size = Register<T>::size;
      const T* const from = row + 2 * w;
      const auto part = [&](Index begin) {
        const Index left = std::min(count - 2 * w, Index(2 * n)) - begin;
        return left >= size ? Register<T>::load(from + begin)
               : left > 0   ? Register<T>::load(from + begin, static_cast<int>(left))
                            : Register<T>(T(0));
      };
      return pairs_along(part(0), part(size));
    }
  }
  /// What load(w, a register's size) of a row `elements` further on reads, which need not exist.
  void prefetch(Index w, Index elements) const {
    constexpr Index values = Register<T>::size * values_of_word<P>, line = 64 / sizeof(T);
    for (Index i = 0; i < values; i += line) __builtin_prefetch(row + w * values_of_word<P> + elements + i);
  }
  T word(Index w) const {
    if constexpr (values_of_word<P> == 1) {
      return rounded<P>(row[w]);
    } else {
      const auto value = [&](Index i) { return i < count ? row[i] : T(0); };
      return pair(value(2 * w), value(2 * w + 1));
    }
  }
};

/// The words of values that lie one below the other: word c holds upper[c], or upper[c] and lower[c].
template <class P>
struct WordsAcross {
  using T = SumOf<P>;
  const T *upper, *lower;  // null: 0, of pairs

  Register<T> load(Index c, int n) const {
    if constexpr (values_of_word<P> == 1) {
      return rounded<P>(Register<T>::load(upper + c, n));
    } else {
      const auto part = [&](const T* row) { return row ? Register<T>::load(row + c, n) : Register<T>(T(0)); };
      return pairs_across(part(upper), part(lower));
    }
  }
  T word(Index c) const {
    if constexpr (values_of_word<P> == 1) {
      return rounded<P>(upper[c]);
    } else {
      return pair(upper ? upper[c] : T(0), lower ? lower[c] : T(0));
    }
  }
};

/// Lines of an operand, from value k of the depth on, `depth` values of each: row r of words along the depth.
template <class P>
struct LinesOfWords {
  const Operand<SumOf<P>>& from;
  Index line, k, depth;

  WordsAlong<P> operator[](Index r) const { return {from.at(line + r, k), depth}; }
};
/// The same of an operand whose lines are columns: row r holds the words r of all lines.
template <class P>
struct RowsOfWords {
  const Operand<SumOf<P>>& from;
  Index line, k, depth;

  WordsAcross<P> operator[](Index r) const {
    const Index first = r * values_of_word<P>;
    const auto row = [&](Index i) { return i < depth ? from.at(k + i, line) : nullptr; };
    return {row(first), values_of_word<P> == 2 ? row(first + 1) : nullptr};
  }
  /// These from row r on.
  RowsOfWords from_row(Index r) const { return {from, line, k + r * values_of_word<P>, depth - r * values_of_word<P>}; }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
