#pragma once

#include <type_traits>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/prefetch.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A matrix [depth, columns] of one expert in the order in which the register tile reads it:
///
///     [blocks of Tile::depth values of k][panels of Tile::columns columns][word, column]
///
/// with 0 where the last panel is wider than the matrix, in words (words.hpp) or, of words that are floats, rounded to
/// half the size. Null pointers where there is none.
template <class P>
struct PackedMatrix {
  using T = SumOf<P>;
  const T* full = nullptr;
  const Bfloat16* half = nullptr;

  explicit operator bool() const { return full || half; }

  static Index padded(Index columns) { return divide_up(columns, Tile<P>::columns) * Tile<P>::columns; }
  /// In words.
  static Index size(Index depth, Index columns) { return words<P>(depth) * padded(columns); }
  /// Where the panel of `column` begins in the block of k that holds `length` values from k on.
  static Index at(Index columns, Index k, Index length, Index column) {
    return words<P>(k) * padded(columns) + column * words<P>(length);
  }

  /// The matrix `count` words further on: of another expert.
  PackedMatrix operator+(Index count) const { return {full ? full + count : nullptr, half ? half + count : nullptr}; }
  /// Part t of n of `count` words, to prefetch.
  Prefetch prefetch(Index word, Index count, Index t, Index n) const {
    return full ? Prefetch::part(full + word, count, t, n) : Prefetch::part(half + word, count, t, n);
  }
  /// The panel at a word. @param buffer  [words, Tile::columns] to widen a rounded one into
  const T* panel(Index word, Index rows, T* buffer) const {
    if (full) return full + word;
    if constexpr (std::is_same_v<T, float>) widen(half + word, rows * Tile<P>::columns, buffer);
    return buffer;
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
