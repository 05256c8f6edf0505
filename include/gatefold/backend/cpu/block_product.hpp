#pragma once

#include <algorithm>
#include <type_traits>

#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/schedule.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tile_from_memory.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/weight_block.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Points to the memory in which a matrix product computes its sums for a block of rows. The columns of the sums are
/// divided into panels of Tile::columns columns.
template <class T>
struct Sums {
  T* data;
  SumsLayout layout;
  bool uncached = false;  // whether this memory is not in a cache yet and should be prefetched

  /// Describes contiguous memory for sums: all rows of the first panel of Tile::columns columns, then all rows of the
  /// next.
  static Sums panels(T* data, Index rows) { return {data, SumsLayout::panels(rows, Tile<T>::columns)}; }
  /// Describes sums that are computed in place, in the rows of a row-major result matrix.
  static Sums rows(T* data, Index stride) { return {data, {stride, Tile<T>::columns, Tile<T>::columns}, true}; }
  /// Returns the part of these sums that begins at column x, a multiple of Tile::columns.
  Sums from(Index x) const { return {data + x / Tile<T>::columns * layout.panel, layout, uncached}; }
};

/// Multiplies a block of rows by blocks of an expert's weights, one block after the other. While a block is multiplied,
/// the weights that the task reads next are prefetched. Each task has its own BlockProduct.
template <class P>
class BlockProduct {
  using T = SumOf<P>;

 public:
  /// Returns the size of the buffer in which a task packs weights, or converts packed weights from bfloat16 to floats.
  /// The size is in words (elements of packed operands). It is one panel of columns, or a whole block of weights if
  /// `packs` is true.
  /// @param depth, columns  size of an expert's weight matrix
  static Index memory(bool packs, Index depth, Index columns) {
    if (!packs) return panel_size;
    return std::max(panel_size,
                    PackedMatrix<P>::size(std::min(depth, Tile<P>::depth), std::min(columns, Tile<P>::depth)));
  }

  explicit BlockProduct(T* panels) : panels_(panels) {}

  /// Computes the matrix product `to` = a b, or `to` += a b, for one block b of weights.
  /// @param a     [rows, words] packed (WeightBlock::pack_rows)
  /// @param into  whether sums are stored, added, or written with non-temporal stores. Into::stream requires that `to`
  ///              refers to aligned rows of a matrix, and that b has only whole panels of columns
  /// @param next  the weights that the task needs after `b`, or null
  void run(const RowBlock& rows, const T* a, const WeightBlock<P>& b, const WeightBlock<P>* next, Into into,
           const Sums<T>& to) {
    if constexpr (std::is_same_v<T, float>)
      if (b.packed.quantised) return quantised(rows, reinterpret_cast<const QuantisedRow*>(a), b, into, to);
    if (b.packed) return packed(rows, a, b, next, into, to);
    if constexpr (!on_amx<P>)
      if (!b.b.lines_are_rows && !b.b.rows) return in_place(rows, a, b, next, into, to);
    // If the columns of B are contiguous in memory (lines_are_rows), each panel of columns is packed just before its
    // use, so that it is in the first-level cache. Otherwise all panels are packed at once, because this reads long
    // runs of memory.
    const bool at_once = !b.b.lines_are_rows;
    if (at_once) b.pack(panels_);
    const Index panels = divide_up(b.columns, width);
    for (Index x = 0; x < b.columns; x += width) {
      if (!at_once) b.pack_panel(x, panels_);
      const T* const panel = panels_ + (at_once ? x * b.words() : 0);
      tiles(rows, 0, a, b, panel, x, into, to, [&](Index t) {
        return next ? next->prefetch(x / width * rows.tiles + t, panels * rows.tiles) : Prefetch::nothing(panel);
      });
    }
  }

 private:
  static constexpr Index width = Tile<P>::columns, panel_size = Tile<P>::depth * width;

  // Returns whether `tiles` register tiles can prefetch a whole panel of weights while they compute. Each tile
  // prefetches a fixed number of cache lines. If this is not enough, the first tile, which reads the panel from memory,
  // prefetches the weights that follow (tile_from_memory.hpp).
  static bool prefetches(Index tiles) {
    return tiles * (Tile<P>::depth / 2) * Prefetch::line >= panel_size * Index(sizeof(T));
  }

  // The place of the weights that a task reads after columns 0 to end − 1 of block `b`: column `end` of `b` or, if `b`
  // has no more columns, column 0 of block `next`.
  struct After {
    const WeightBlock<P>* block;  // null if there are no further weights
    Index column;

    After(const WeightBlock<P>& b, const WeightBlock<P>* next, Index end)
        : block(end < b.columns ? &b : next), column(end < b.columns ? end : 0) {}
    Prefetch prefetch(const T* panel, Index t, Index n) const {
      return block ? block->prefetch_panel(column, t, n) : Prefetch::nothing(panel);
    }
  };

  static void quantised(const RowBlock& rows, const QuantisedRow* a, const WeightBlock<P>& b, Into into,
                        const Sums<T>& to) {
    const QuantisedMatrix& w = b.packed.quantised;
    w.format->multiply(rows.count, QuantisedMatrix::groups(b.depth), QuantisedMatrix::panels(b.columns), a, w.data,
                       to.data, to.layout.stride, to.layout.panel, into);
  }

  void packed(const RowBlock& rows, const T* a, const WeightBlock<P>& b, const WeightBlock<P>* next, Into into,
              const Sums<T>& to) {
    const bool few = !on_amx<P> && rows.tiles == 1, many = !few && (on_amx<P> || prefetches(rows.tiles));
    const Index words = b.words(), most = few ? panels_at_once<P>(rows.count) : 1;
    for (Index x = 0, panels = 1; x < b.columns; x += panels * width) {
      panels = b.columns - x >= most * width ? most : 1;
      // A panel is as wide as two registers. If the columns that are left fit into one register, tile_sum computes
      // them, because it skips the second register.
      const bool first = !many && b.columns - x > Tile<P>::size;
      if constexpr (std::is_same_v<T, float>)
        if (first && few && b.packed.half) {
          const Sums<T> part = to.from(x);
          b.packed.half_tile(rows.size(0), panels, words, a, b.packed.half + x * words, words * width, part.data,
                             part.layout.stride, part.layout.panel, into);
          continue;
        }
      const T* const panel = b.panel(x, panels_);
      if constexpr (!on_amx<P>)
        if (first) first_tile(rows, panels, a, words, packed_panels<P>(panel, words * width, panels), into, to.from(x));
      const After after(b, next, x + panels * width);
      tiles(rows, first, a, b, panel, x, into, to,
            [&](Index t) { return many ? after.prefetch(panel, t, rows.tiles) : Prefetch::nothing(panel); });
    }
  }

  // Multiplies by a block of weights that is not packed. For each panel of columns, the first tile of rows reads the
  // weights in place and packs them for the other tiles. An incomplete panel is packed before the first tile.
  void in_place(const RowBlock& rows, const T* a, const WeightBlock<P>& b, const WeightBlock<P>* next, Into into,
                const Sums<T>& to) {
    const bool many = prefetches(rows.tiles - 1);
    const Index most = rows.tiles == 1 && b.depth > 0 ? panels_at_once<P>(rows.count) : 1;
    for (Index x = 0, panels = 1; x < b.columns; x += panels * width) {
      panels = b.columns - x >= most * width ? most : 1;
      const After after(b, next, x + panels * width);
      const bool first = b.depth > 0 && b.columns - x >= width;
      if (first) {
        RowsInPlace<P> source{b.b.at(b.k, b.column + x), b.b.stride, b.depth};
        if (rows.tiles > 1) source.copy = panels_;
        if (!many && after.block && !after.block->empty()) {
          source.next = after.block->b.at(after.block->k, after.block->column + after.column);
          source.next_stride = after.block->b.stride;
        }
        first_tile(rows, panels, a, b.words(), source, into, to.from(x));
      } else {
        b.pack_panel(x, panels_);
      }
      tiles(rows, first, a, b, panels_, x, into, to, [&](Index t) {
        return many ? after.prefetch(panels_, t - first, rows.tiles - first) : Prefetch::nothing(panels_);
      });
    }
  }

  template <class Source>
  static void first_tile(const RowBlock& rows, Index panels, const T* a, Index words, const Source& source, Into into,
                         const Sums<T>& to) {
    sum_from_memory<P>(rows.size(0), panels, words, a, source, to.data, to.layout.stride, to.layout.panel, into);
  }

  // Multiplies the tiles of rows, from tile `first` on, by the packed panel of weights that begins at column x.
  // @param prefetch  prefetch(t) returns a description of the memory that tile t prefetches
  template <class F>
  static void tiles(const RowBlock& rows, Index first, const T* a, const WeightBlock<P>& b, const T* panel, Index x,
                    Into into, const Sums<T>& to, const F& prefetch) {
    constexpr Index size = sizeof(T);
    const Index stride = to.layout.stride;
    T* const sums = to.from(x).data;
    for (Index t = first; t < rows.tiles; ++t) {
      Prefetch p = prefetch(t);
      if (to.uncached && into != Into::stream && t + 1 < rows.tiles)
        p = p.after_rows(sums + rows.begin(t + 1) * stride, rows.size(t + 1), width * size, stride * size);
      tile_sum<P>(rows.size(t), std::min(width, b.columns - x), b.words(), a + rows.begin(t) * Tile<P>::stride, panel,
                  sums + rows.begin(t) * stride, stride, into, p);
    }
  }

  [[no_unique_address]] AmxTiles<P> tiles_;
  T* const panels_;
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
