#pragma once

#include <algorithm>
#include <type_traits>

#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/prefetch.hpp"
#include "gatefold/backend/cpu/schedule.hpp"
#include "gatefold/backend/cpu/skinny_panels.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/weight_block.hpp"
#include "gatefold/backend/cpu/weight_path.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// Where the sums of a block of rows are formed: panels of Tile::columns columns.
template <class T>
struct Sums {
  T* data;
  SumsLayout layout;
  bool uncached = false;  // no cache holds them before they are written

  /// Panels one after the other.
  static Sums panels(T* data, Index rows) { return {data, SumsLayout::panels(rows, Tile<T>::columns)}; }
  /// The rows of a matrix itself.
  static Sums rows(T* data, Index stride) { return {data, {stride, Tile<T>::columns, Tile<T>::columns}, true}; }
  /// From column x on, a multiple of Tile::columns.
  Sums from(Index x) const { return {data + x / Tile<T>::columns * layout.panel, layout, uncached}; }
};

/// The product of a block of rows with one block of weights after the other, each fetched while the one before
/// computes. One for each task.
template <class P>
class BlockProduct {
  using T = SumOf<P>;

 public:
  /// Words of memory for the panels of weights that come unpacked, or rounded: two panels, or those of a whole block.
  /// @param depth, columns  of all weights
  static Index memory(Index depth, Index columns) {
    return std::max(2 * panel_size,
                    PackedMatrix<P>::size(std::min(depth, Tile<P>::depth), std::min(columns, Tile<P>::depth)));
  }

  BlockProduct(WeightPath path, T* panels) : on_the_way_(path == WeightPath::on_the_way), panels_(panels) {}

  /// to = or += a b
  /// @param a     [rows, words] packed
  /// @param into  Into::stream only to aligned rows of a matrix, in whole panels, of more rows than skinny ones
  /// @param next  the weights that the task needs after these, or null
  void run(const RowBlock& rows, const T* a, const WeightBlock<P>& b, const WeightBlock<P>* next, Into into,
           const Sums<T>& to) {
    if constexpr (!on_amx<P>)
      if (b.packed && rows.count <= tuning_of<P>.skinny_panel_rows) return skinny(rows, a, b, into == Into::add, to);
    if (on_the_way_) return pack_next(rows, a, b, next, into, to);
    // Where columns of B are rows of memory, a panel is packed when it is needed, and is in the first cache then; else
    // all are packed at once, in long runs of memory.
    const bool at_once = !b.packed && !b.b.lines_are_rows;
    if (at_once) b.pack(panels_);
    const Index panels = divide_up(b.columns, width);
    for (Index x = 0; x < b.columns; x += width) {
      if (!b.packed && !at_once) b.pack_panel(x, panels_);
      const T* panel = b.packed ? b.panel(x, panels_) : panels_ + (at_once ? x * b.words() : 0);
      const bool last = x + width >= b.columns;
      multiply(rows, a, b, panel, x, into, to, [&](Index t) {
        if (b.packed && !last) return b.prefetch_panel(x + width, t, rows.tiles);
        if (!next) return Prefetch::nothing(panel);
        return b.packed ? next->prefetch(t, rows.tiles)
                        : next->prefetch(x / width * rows.tiles + t, panels * rows.tiles);
      });
    }
  }

 private:
  static constexpr Index width = Tile<P>::columns, panel_size = Tile<P>::depth * width;

  // Few rows: several panels at a time.
  static void skinny(const RowBlock& rows, const T* a, const WeightBlock<P>& b, bool add, const Sums<T>& to) {
    const Index panels = divide_up(b.columns, width);
    if constexpr (std::is_same_v<T, float>)
      if (b.packed.half) return skinny_panels_sum<P>(rows.count, panels, b.words(), a, b.packed.half, to.data, add);
    skinny_panels_sum<P>(rows.count, panels, b.words(), a, b.packed.full, to.data, add);
  }

  // While the tiles of a panel compute, each prefetches some rows of the next panel and copies those prefetched by the
  // tile before.
  void pack_next(const RowBlock& rows, const T* a, const WeightBlock<P>& b, const WeightBlock<P>* next, Into into,
                 const Sums<T>& to) {
    const Index parts = rows.tiles - 1;
    for (Index x = 0; x < b.columns; x += width) {
      T* const panel = panels_ + panel_ * panel_size;
      T* const other = panels_ + (1 - panel_) * panel_size;
      if (!packed_) b.pack_panel(x, panel);
      const bool last = x + width >= b.columns;
      const WeightBlock<P>* const after = last ? next : &b;
      const Index at = last ? 0 : x + width;
      const bool fetches = after && !after->empty();
      panel_ = 1 - panel_;
      packed_ = fetches && after->columns - at >= width && after->depth % values_of_step<P> == 0 &&
                after->words() <= parts * (b.words() / 2);
      multiply(
          rows, a, b, panel, x, into, to,
          [&](Index t) {
            return fetches && t < parts ? after->prefetch_rows(at, width, t, parts) : Prefetch::nothing(panel);
          },
          [&](Index t) { return packed_ && t > 0 ? after->copy(at, t - 1, parts, other) : PanelCopy<P>{}; });
    }
  }

  // The tiles of the panel at x.
  // @param prefetch, copy  what a tile prefetches, and copies
  template <class F, class C = PanelCopy<P> (*)(Index)>
  static void multiply(
      const RowBlock& rows, const T* a, const WeightBlock<P>& b, const T* panel, Index x, Into into, const Sums<T>& to,
      const F& prefetch, const C& copy = [](Index) { return PanelCopy<P>{}; }) {
    constexpr Index size = sizeof(T);
    const Index stride = to.layout.stride;
    T* const sums = to.from(x).data;
    for (Index t = 0; t < rows.tiles; ++t) {
      Prefetch p = prefetch(t);
      if (to.uncached && into != Into::stream && t + 1 < rows.tiles)
        p = p.after_rows(sums + rows.begin(t + 1) * stride, rows.size(t + 1), width * size, stride * size);
      tile_sum<P>(rows.size(t), std::min(width, b.columns - x), b.words(), a + rows.begin(t) * Tile<P>::stride, panel,
                  sums + rows.begin(t) * stride, stride, into, p, copy(t));
    }
  }

  [[no_unique_address]] AmxTiles<P> tiles_;
  const bool on_the_way_;
  T* const panels_;
  Index panel_ = 0;      // which of two panels is the present one,
  bool packed_ = false;  // and whether it is packed already, where panels are packed on the way
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
