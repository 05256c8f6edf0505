#pragma once

#include <algorithm>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/prefetch.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The weights by which a task multiplies at a time: rows [k, k + depth) and columns [column, column + columns) of one
/// expert's B. Both numbers, `depth` and `columns`, are at most Tile::depth.
template <class P>
struct WeightBlock {
  using T = SumOf<P>;
  Operand<T> b;
  PackedMatrix<P> packed;  // this block, [panels][words, Tile::columns]; null if it is not packed
  Index k, depth, column, columns;

  bool empty() const { return depth == 0 || columns == 0; }
  /// Returns the number of words of a column.
  Index words() const { return cpu::words<P>(depth); }
  void pack(T* to) const { pack_panels<P>(b, column, columns, k, depth, to); }
  /// Packs the panel of column x.
  void pack_panel(Index x, T* to) const {
    pack_panels<P>(b, column + x, std::min<Index>(Tile<P>::columns, columns - x), k, depth, to);
  }
  /// Returns the packed panel of column x. A panel of bfloat16 is converted to floats in `buffer`.
  const T* panel(Index x, T* buffer) const { return packed.panel(x * words(), words(), buffer); }

  /// Divides a block that is not packed into n parts, and returns a Prefetch that begins at part t.
  Prefetch prefetch(Index t, Index n) const {
    if (empty()) return Prefetch::nothing(this);
    return b.lines_are_rows ? Prefetch::rows(b.at(column, k), columns, depth * size, b.stride * size, t, n)
                            : prefetch_rows(0, columns, t, n);
  }
  /// Divides the panel of column x into n parts, and returns a Prefetch that begins at part t.
  Prefetch prefetch_panel(Index x, Index t, Index n) const {
    if (empty()) return Prefetch::nothing(this);
    return packed ? packed.prefetch(x * words(), words() * Tile<P>::columns, t, n)
                  : prefetch_rows(x, std::min<Index>(Tile<P>::columns, columns - x), t, n);
  }

 private:
  static constexpr Index size = sizeof(T);

  // Divides `width` columns from x on, which are stored in rows, into n parts, and returns a Prefetch from part t on.
  Prefetch prefetch_rows(Index x, Index width, Index t, Index n) const {
    return Prefetch::rows(b.at(k, column + x), depth, width * size, b.stride * size, t, n);
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
