#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// A *word* is an element of a packed operand of a matrix product.
///
/// A product is a template over P, the type that it multiplies: float, double or Bfloat16. If P is Bfloat16, floats are
/// rounded when they are packed, and their sums are floats. A word has the size of a sum. It holds one value, except if
/// P is Bfloat16 and the target multiplies pairs of bfloat16. A word then holds two values that follow each other along
/// the dimension over which the product sums. On other targets, a word of P = Bfloat16 holds one rounded float.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// One factor of a matrix product A B, described by its *lines*. A line is a row of A or a column of B, because each
/// element of the product is the dot product of a row of A and a column of B. k is a position in a line.
///
///     element (line, k) = lines_are_rows ? data[row(line), k] : data[row(k), line]                            (1)
template <class T>
struct Operand {
  const T* data = nullptr;
  Index stride = 0;  // distance between rows in memory, in elements
  bool lines_are_rows = true;
  // Row indices of a gather: row r of the operand is row rows[r] of data. Null if rows are not gathered.
  const Index* rows = nullptr;

  const T* at(Index row, Index column) const { return data + (rows ? rows[row] : row) * stride + column; }
};

template <class P>
using SumOf = std::conditional_t<std::is_same_v<P, Bfloat16>, float, P>;

#if defined(GATEFOLD_BFLOAT16_PAIRS)
inline constexpr bool bfloat16_pairs = true;
#else
inline constexpr bool bfloat16_pairs = false;
#endif

template <class P>
inline constexpr int values_of_word = std::is_same_v<P, Bfloat16>&& bfloat16_pairs ? 2 : 1;

/// Returns value number i of a packed row of A or column of B. `word` is the word that holds this value.
template <class P>
SumOf<P> value_of_word(SumOf<P> word, Index i) {
  if constexpr (values_of_word<P> == 2)
    return Bfloat16{static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, word) >> (i % 2 ? 16 : 0))};
  else
    return word;
}

/// True if the matrix unit (AMX, amx.hpp) computes products with operands of type P. It then computes all sums of these
/// products, because vector registers would add in a different order.
#if defined(GATEFOLD_AMX)
template <class P>
inline constexpr bool on_amx = std::is_same_v<P, Bfloat16>;
#else
template <class P>
inline constexpr bool on_amx = false;
#endif

/// In a product A B, packed rows of A and packed columns of B are padded with zeros to a multiple of this many values.
template <class P>
inline constexpr int values_of_step = on_amx<P> ? 32 : values_of_word<P>;

/// Returns the number of words (packed elements) that hold `depth` values, with padding.
template <class P>
constexpr Index words(Index depth) {
  return divide_up(depth, values_of_step<P>) * (values_of_step<P> / values_of_word<P>);
}

/// Returns s + x y for each lane. If lanes are pairs of bfloat16, returns s + x₁ y₁ + x₀ y₀, added in this order, with
/// subnormal numbers treated as 0.
template <class P>
GATEFOLD_INLINE packet::Of<SumOf<P>> multiply_add(const packet::Of<SumOf<P>>& x, const packet::Of<SumOf<P>>& y,
                                                  const packet::Of<SumOf<P>>& s) {
  static_assert(!on_amx<P>, "AMX types must use the matrix unit: vector registers give different bits");
#if defined(GATEFOLD_BFLOAT16_PAIRS)
  if constexpr (values_of_word<P> == 2)
    return _mm512_dpbf16_ps(s, __builtin_bit_cast(__m512bh, x), __builtin_bit_cast(__m512bh, y));
  else
#endif
    return packet::madd<SumOf<P>>(x, y, s);
}

/// Reads words (elements of packed operands) from a row of `count` values. Word w holds value w or, if words are pairs
/// of bfloat16, values 2 w and 2 w + 1.
template <class P>
struct WordsAlong {
  using T = SumOf<P>;
  const T* row;
  Index count;

  /// Returns the words (packed elements) w to w + n - 1 of the row in the first lanes of a register. The other lanes
  /// are 0.
  /// @param n  1 to the size of a register
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
  /// Prefetches the memory that load(w, size of a register) would read if the row began `elements` elements later.
  /// There need not be a row at that address.
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

/// Reads words (elements of packed operands) from a row of values, or from two rows if words are pairs of bfloat16.
/// Word c holds upper[c] or, as a pair, upper[c] and lower[c].
template <class P>
struct WordsAcross {
  using T = SumOf<P>;
  // The two rows. If words are pairs, a null pointer means a row of zeros.
  const T *upper, *lower;

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

/// Reads an operand as a matrix of words (packed elements), if its lines (rows of A or columns of B) are rows in
/// memory. Row r holds the words of line number `line` + r, from value k to value k + depth − 1.
template <class P>
struct LinesOfWords {
  const Operand<SumOf<P>>& from;
  Index line, k, depth;

  WordsAlong<P> operator[](Index r) const { return {from.at(line + r, k), depth}; }
};
/// Reads an operand as a matrix of words (packed elements), if its lines (rows of A or columns of B) are columns in
/// memory. Row r holds word number r of each line, for all lines from number `line` on. Word 0 begins with value k.
template <class P>
struct RowsOfWords {
  const Operand<SumOf<P>>& from;
  Index line, k, depth;

  WordsAcross<P> operator[](Index r) const {
    const Index first = r * values_of_word<P>;
    const auto row = [&](Index i) { return i < depth ? from.at(k + i, line) : nullptr; };
    return {row(first), values_of_word<P> == 2 ? row(first + 1) : nullptr};
  }
  /// Returns this matrix of words without its first r rows.
  RowsOfWords from_row(Index r) const { return {from, line, k + r * values_of_word<P>, depth - r * values_of_word<P>}; }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
