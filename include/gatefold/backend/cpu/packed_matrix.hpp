#pragma once

#include <type_traits>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/prefetch.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The type of a function that does the work of sum_from_memory (tile_from_memory.hpp) for panels of bfloat16, which
/// are `panel` elements apart.
using HalfTile = void(Index rows, Index panels, Index depth, const float* a, const Bfloat16* b, Index panel,
                      float* sums, Index stride, Index sums_panel, Into into);

/// A matrix [depth, columns] of one expert, packed in the order in which the register tile reads it:
///
///     [blocks of Tile::depth values of k][panels of Tile::columns columns][word, column]
///
/// The last panel is padded with zeros. The elements are words (words.hpp). If words are floats, they can also be
/// bfloat16, in half the size. Both pointers are null if there is no matrix. A matrix in half the size has a pointer to
/// the function that multiplies by it (half_tile), so that only programs that freeze weights compile this function.
template <class P>
struct PackedMatrix {
  using T = SumOf<P>;
  const T* full = nullptr;
  const Bfloat16* half = nullptr;
  HalfTile* half_tile = nullptr;

  explicit operator bool() const { return full || half; }

  static Index padded(Index columns) { return divide_up(columns, Tile<P>::columns) * Tile<P>::columns; }
  /// Returns the size in words of a packed matrix.
  static Index size(Index depth, Index columns) { return words<P>(depth) * padded(columns); }
  /// Returns the offset in words of the panel of `column`, in the block that holds `length` values from k on.
  static Index at(Index columns, Index k, Index length, Index column) {
    return words<P>(k) * padded(columns) + column * words<P>(length);
  }

  /// Returns the matrix that begins `count` words later, for example the matrix of the next expert.
  PackedMatrix operator+(Index count) const {
    return {full ? full + count : nullptr, half ? half + count : nullptr, half_tile};
  }
  /// Divides the `count` words from `word` on into n parts, and returns a Prefetch that begins at part t.
  Prefetch prefetch(Index word, Index count, Index t, Index n) const {
    return full ? Prefetch::part(full + word, count, t, n) : Prefetch::part(half + word, count, t, n);
  }
  /// Returns the panel that begins at `word`. A panel of bfloat16 is converted to floats in `buffer`.
  /// @param rows    number of words in a column
  /// @param buffer  [rows, Tile::columns] memory for the converted panel
  const T* panel(Index word, Index rows, T* buffer) const {
    if (full) return full + word;
    if constexpr (std::is_same_v<T, float>) widen(half + word, rows * Tile<P>::columns, buffer);
    return buffer;
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
