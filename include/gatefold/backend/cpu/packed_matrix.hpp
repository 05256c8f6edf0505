#pragma once

#include <algorithm>
#include <type_traits>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The type of a function that multiplies rows of floats by packed weights that are stored as bfloat16. Panels (groups
/// of columns) of the weights are `panel` elements apart. See sum_from_memory (tile_from_memory.hpp).
using HalfTile = void(Index rows, Index panels, Index depth, const float* a, const Bfloat16* b, Index panel,
                      float* sums, Index stride, Index sums_panel, Into into);

/// The weight matrix [depth, columns] of one expert, packed in the order in which the innermost loop of a product reads
/// it:
///
///     [blocks of Tile::depth rows][panels of Tile::columns columns][word, column]
///
/// The last panel is padded with zeros. The elements are words (words.hpp). If words are floats, they can also be
/// stored as bfloat16, in half the size. A quantised matrix has an order of its own (quantised_matrix.hpp). All
/// pointers are null if there is no matrix. A matrix of bfloat16 also has a pointer to the function that multiplies by
/// it (half_tile), so that only programs that freeze weights compile this function.
template <class P>
struct PackedMatrix {
  using T = SumOf<P>;
  const T* full = nullptr;
  const Bfloat16* half = nullptr;
  HalfTile* half_tile = nullptr;
  QuantisedMatrix quantised{};

  explicit operator bool() const { return full || half || quantised; }

  static Index padded(Index columns) { return divide_up(columns, Tile<P>::columns) * Tile<P>::columns; }
  /// Returns the size of a packed matrix [depth, columns] in words (packed elements).
  static Index size(Index depth, Index columns) { return words<P>(depth) * padded(columns); }
  /// Returns the offset of a panel (group of columns) in a packed matrix, in words (packed elements). The panel begins
  /// at `column`, and belongs to the block of `length` rows from row k on.
  static Index at(Index columns, Index k, Index length, Index column) {
    return words<P>(k) * padded(columns) + column * words<P>(length);
  }

  /// Returns the packed matrix that begins `count` words (packed elements) later, for example the matrix of the next
  /// expert. The matrix must not be quantised.
  PackedMatrix operator+(Index count) const {
    return {full ? full + count : nullptr, half ? half + count : nullptr, half_tile};
  }
  /// Returns the matrix [depth, columns] of expert e, if this is the matrix of expert 0.
  PackedMatrix expert(Index e, Index depth, Index columns) const {
    if (quantised) return of(quantised + e * QuantisedMatrix::size(depth, columns));
    return *this + e * size(depth, columns);
  }
  /// Returns the part that begins at `column`, in the block of `length` rows from row k on. `column` is a multiple of
  /// Tile::columns.
  /// @param columns  the number of columns of the whole matrix
  PackedMatrix block(Index columns, Index k, Index length, Index column) const {
    if (quantised) return of(quantised + QuantisedMatrix::at(columns, k, length, column));
    return *this + at(columns, k, length, column);
  }
  /// Returns the weight in row k and column j of a matrix [depth, columns], which must not be quantised.
  T value(Index k, Index j, Index depth, Index columns) const {
    const Index row = k % Tile<P>::depth, column = j % Tile<P>::columns;
    const Index begin = at(columns, k - row, std::min(Tile<P>::depth, depth - (k - row)), j - column);
    const Index word = begin + row / values_of_word<P> * Tile<P>::columns + column;
    return half ? T(half[word]) : value_of_word<P>(full[word], row);
  }
  static PackedMatrix of(QuantisedMatrix quantised) { return {nullptr, nullptr, nullptr, quantised}; }

  /// Returns a Prefetch, which describes memory to prefetch, for the panel that begins at column x of a block. The
  /// Prefetch begins at part t of n equal parts of the panel.
  /// @param depth  number of rows of the block
  Prefetch prefetch_panel(Index x, Index depth, Index t, Index n) const {
    if (quantised) {
      const Index bytes = QuantisedMatrix::groups(depth) * quantised.format->group_bytes;
      return Prefetch::part(quantised.data + x / Tile<P>::columns * bytes, bytes, t, n);
    }
    const Index panel = x * words<P>(depth), count = Tile<P>::columns * words<P>(depth);
    return full ? Prefetch::part(full + panel, count, t, n) : Prefetch::part(half + panel, count, t, n);
  }
  /// Returns a pointer to the packed panel (group of columns) that begins at offset `word`. If the matrix is stored as
  /// bfloat16, the panel is first converted to floats in `buffer`.
  /// @param rows    number of words in a column
  /// @param buffer  [rows, Tile::columns] memory for the converted panel
  const T* panel(Index word, Index rows, T* buffer) const {
    if (full) return full + word;
    if constexpr (std::is_same_v<T, float>) widen(half + word, rows * Tile<P>::columns, buffer);
    return buffer;
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
