#pragma once

#include <algorithm>
#include <type_traits>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A block of one expert's weight matrix B: its rows [k, k + depth) and columns [column, column + columns). A task
/// multiplies by one block at a time. `depth` and `columns` are at most Tile::depth.
template <class P>
struct WeightBlock {
  using T = SumOf<P>;
  Operand<T> b;
  PackedMatrix<P> packed;  // the packed copy of this block, [panels][words, Tile::columns]; null if there is none
  Index k, depth, column, columns;

  bool empty() const { return depth == 0 || columns == 0; }
  /// Returns the number of words (packed elements) in a column of this block.
  Index words() const { return cpu::words<P>(depth); }
  /// Packs rows [line, line + lines) of the left factor A, but only the `depth` columns that are multiplied by the rows
  /// of this block. If the block is quantised, the values are rounded to 8 bits.
  /// @param from  the first of these columns in `a`
  void pack_rows(const Operand<T>& a, Index line, Index lines, Index from, T* to) const {
    if constexpr (std::is_same_v<T, float>)
      if (const QuantisedFormat* format = packed.quantised.format)
        return format->pack_rows(a, line, lines, from, depth, reinterpret_cast<QuantisedRow*>(to));
    cpu::pack_rows<P>(a, line, lines, from, depth, to);
  }
  void pack(T* to) const { pack_panels<P>(b, column, columns, k, depth, to); }
  /// Packs the panel (group of Tile::columns columns) that begins at column x of this block.
  void pack_panel(Index x, T* to) const {
    pack_panels<P>(b, column + x, std::min<Index>(Tile<P>::columns, columns - x), k, depth, to);
  }
  /// Returns the packed panel (group of columns) that begins at column x of this block. If it is stored as bfloat16, it
  /// is first converted to floats in `buffer`.
  const T* panel(Index x, T* buffer) const { return packed.panel(x * words(), words(), buffer); }

  /// Returns a Prefetch (a description of memory to prefetch) for this block. The block must not be packed. If the
  /// block is divided into n equal parts, the Prefetch begins with part t.
  Prefetch prefetch(Index t, Index n) const {
    if (empty()) return Prefetch::nothing(this);
    return b.lines_are_rows ? Prefetch::rows(b.at(column, k), columns, depth * size, b.stride * size, t, n)
                            : prefetch_rows(0, columns, t, n);
  }
  /// Returns a Prefetch (a description of memory to prefetch) for the panel (group of columns) that begins at column x.
  /// The Prefetch begins at part t of n equal parts of the panel, and is not limited to this part.
  Prefetch prefetch_panel(Index x, Index t, Index n) const {
    if (empty()) return Prefetch::nothing(this);
    return packed ? packed.prefetch_panel(x, depth, t, n)
                  : prefetch_rows(x, std::min<Index>(Tile<P>::columns, columns - x), t, n);
  }

 private:
  static constexpr Index size = sizeof(T);

  // Returns a Prefetch (a description of memory to prefetch) for `width` columns from column x on. The weights must be
  // stored row by row. If these columns are divided into n equal parts, the Prefetch begins with part t.
  Prefetch prefetch_rows(Index x, Index width, Index t, Index n) const {
    return Prefetch::rows(b.at(k, column + x), depth, width * size, b.stride * size, t, n);
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
