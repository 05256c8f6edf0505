#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/middle.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/pair_schedule.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/product.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/weight_path.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// Two grouped products in a row, the first one's result used while it is in the cache:
///
///     hidden[s] = middle(a[row(s)] op(up_e)),   c[s] = last(hidden[s] op(down_e))                        (1)
///
/// A task takes a block of rows of one expert through both products, Tile::depth columns of `hidden` at a time: such a
/// chunk is one link of the second product's sum, so that every bit is that of two products one after the other. Where
/// an expert has few rows (one tile, or some if threads would have no work), its chunks are tasks of their own and
/// their sums are added in order at the end. Where they read weights in place, `hidden` is computed first, in long
/// pieces of the rows of `up`: memory is read fastest in whole rows. Where experts are many and small, a task is one
/// expert with all its blocks of rows: its packed weights stay in the thread's cache.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

template <class T>
class ProductPair {
 public:
  /// @order  as two products one after the other (product.hpp)
  /// @cost   2·S·hidden·(ups·depth + columns) flop; scratch as PairMemory says: its sizes depend on the batch's, on no routing
  template <class Context>
  static void run(Context& ctx, const PairBatch<T>& batch, const Middle<T>& middle, const Finish<T>& last,
                  Index packed_bytes = Index(16) << 20) {
    if (batch.columns == 0 || batch.most_slots() == 0) return;
    const auto mark = ctx.mark();
    const Index budget = packed_bytes / static_cast<Index>(sizeof(T));
    ProductPair(batch, middle, last, ctx.executor(), ctx.threads(), budget).run(ctx);
  }

 private:
  static constexpr Index kRows = Tile<T>::rows, kColumns = Tile<T>::columns, kDepth = Tile<T>::depth;
  static constexpr Index kStride = Tile<T>::stride;
  static constexpr Index kWide = PairMemory<T>::wide;
  static_assert(2 * kColumns <= kDepth, "two panels lie where packed panels are else");
  static_assert(PairSchedule<T>::in_place_rows * PairMemory<T>::wide_stride <= PairMemory<T>::panels,
                "a piece of hidden is summed where packed panels are else");

  struct Unit {
    Index e, first, rows;
    Index row_blocks;              // 0: chunks are tasks
    WeightPath path;
    T* packed;                     // up matrices, then down, of weights that are shared or the task's own; else null
    bool packs;                    // `packed` is written on the way, by the first block of rows
    T* partial;                    // [chunks][rows, padded columns], of a unit whose chunks are tasks
    T* hidden;                     // [chunks][rows, kStride], of a unit whose weights are read in place
    Index first_task, first_pack;  // packs: of weights, or pieces of hidden
  };

  ProductPair(const PairBatch<T>& batch, const Middle<T>& middle, const Finish<T>& last, ExecutorRef executor, int threads,
              Index budget)
      : b_(batch),
        middle_(middle),
        last_(last),
        executor_(executor),
        schedule_(batch, threads),
        memory_(batch, threads, budget) {}

  Index chunks() const { return b_.chunks(); }
  Index blocks() const { return b_.blocks(); }
  Operand<T> up(Index m, Index e) const {
    Operand<T> x = b_.up[static_cast<std::size_t>(m)];
    x.data += e * b_.up_step[static_cast<std::size_t>(m)];
    return x;
  }
  Operand<T> down(Index e) const {
    Operand<T> x = b_.down;
    x.data += e * b_.down_step;
    return x;
  }

  // Experts in waves: as many as their packed weights and the sums of their few rows leave room for.
  template <class Context>
  void run(Context& ctx) {
    units_ = ctx.template scratch<Unit>(b_.experts).data();
    packed_ = ctx.template scratch<T>(memory_.packed).data();
    partial_ = ctx.template scratch<T>(memory_.few_rows * chunks() * b_.padded_columns()).data();
    hidden_ = ctx.template scratch<T>(PairMemory<T>::reads_in_place(b_) ? memory_.few_rows * chunks() * kStride : 0).data();
    workers_ = ctx.template scratch<T>(memory_.threads, memory_.of_thread(b_.ups)).data();
    Index packed = 0, few_rows = 0;
    for (Index e = 0; e < b_.experts; ++e) {
      const Index rows = b_.rows(e);
      if (rows == 0) continue;
      const WeightPath path = schedule_.path(rows);
      const Index row_blocks = schedule_.row_blocks(rows), few = row_blocks == 0 ? rows : 0,
                  size = path == WeightPath::by_call ? b_.packed_size() : 0;
      if (packed + size > memory_.packed || few_rows + few > memory_.few_rows) {
        run_wave();
        packed = few_rows = 0;
      }
      GATEFOLD_ASSERT(packed + size <= memory_.packed && few_rows + few <= memory_.few_rows, "memory of any routing");
      units_[count_++] = Unit{e,
                              b_.offsets[e],
                              rows,
                              row_blocks,
                              path,
                              path == WeightPath::by_call ? packed_ + packed : nullptr,
                              false,
                              partial_ + few_rows * chunks() * b_.padded_columns(),
                              hidden_ + few_rows * chunks() * kStride,
                              0,
                              0};
      packed += size;
      few_rows += few;
    }
    run_wave();
  }

  // The weights of a unit in groups of Tile::depth × Tile::depth elements, in the order in which a task uses them: for
  // each chunk of hidden those of the first product, then those of the second.
  struct Group {
    Operand<T> b;
    PackedMatrix<T> packed;  // null: the task packs it for one use
    Index all, k, depth, column, columns;

    Index at(Index x) const { return PackedMatrix<T>::at(all, k, depth, column + x); }
    bool is_packed;
    // Part t of n of the rows of memory of `width` columns from x on, to ask for; of a whole panel, to pack.
    Ahead rows_ahead(Index x, Index width, Index t, Index n) const {
      constexpr Index size = sizeof(T);
      return Ahead::rows(b.at(k, column + x), depth, std::min(width, columns - x) * size, b.stride * size, t, n);
    }
    PackAhead<T> pack_ahead(Index x, Index t, Index n, T* to) const {
      const Index begin = t * depth / n, end = (t + 1) * depth / n;
      return {b.at(k + begin, column + x), b.stride, to + begin * kColumns, end - begin};
    }
    // Part t of n of what comes next, to ask for: of a packed matrix its first panel, else everything.
    Ahead ahead(Index t, Index n) const {
      if (is_packed) return packed.ahead(at(0), depth * kColumns, t, n);
      if (depth == 0 || columns == 0) return Ahead::nothing(this);
      constexpr Index size = sizeof(T);
      return b.lines_are_rows ? Ahead::rows(b.at(column, k), columns, depth * size, b.stride * size, t, n)
                              : rows_ahead(0, columns, t, n);
    }
  };
  Index groups_of_chunk() const { return b_.ups * blocks() + divide_up(b_.columns, kDepth); }
  Group group(const Unit& unit, Index i) const {
    const Index chunk = i / groups_of_chunk(), hidden = chunk * kDepth, n = i % groups_of_chunk();
    if (n < b_.ups * blocks()) {
      const Index m = n / blocks(), k = n % blocks() * kDepth;
      const PackedMatrix<T> packed = packed_up(unit, m);
      return {up(m, unit.e), packed, b_.hidden, k, std::min(kDepth, b_.depth - k), hidden,
              std::min(kDepth, b_.hidden - hidden), packed && !unit.packs};
    }
    const Index j = (n - b_.ups * blocks()) * kDepth;
    const PackedMatrix<T> packed = packed_down(unit);
    return {down(unit.e), packed, b_.columns, hidden, std::min(kDepth, b_.hidden - hidden), j,
            std::min(kDepth, b_.columns - j), packed && !unit.packs};
  }

  void run_wave() {
    Index packs = 0, tasks = 0, units_in_place = 0;
    for (Index u = 0; u < count_; ++u) units_in_place += units_[u].path == WeightPath::in_place;
    const Index pieces = pieces_of_hidden(units_in_place);
    for (Index u = 0; u < count_; ++u) {
      Unit& unit = units_[u];
      unit.first_pack = packs;
      unit.first_task = tasks;
      packs += unit.path == WeightPath::by_call    ? chunks() * groups_of_chunk()
               : unit.path == WeightPath::in_place ? pieces
                                                   : 0;
      tasks += unit.row_blocks == 0 ? chunks() : unit.path == WeightPath::by_expert ? 1 : unit.row_blocks;
    }
    parallel_for(executor_, schedule_.threads(), packs, [&](Index i, int worker) noexcept {
      const Unit& unit = find(i, &Unit::first_pack);
      if (unit.path == WeightPath::by_call)
        pack(unit, i - unit.first_pack);
      else
        hidden_in_place(unit, i - unit.first_pack, pieces, Worker(*this, worker));
    });
    parallel_for(executor_, schedule_.threads(), tasks, [&](Index i, int worker) noexcept {
      const Unit& unit = find(i, &Unit::first_task);
      Worker w(*this, worker);
      if (unit.row_blocks == 0)
        few_rows(unit, i - unit.first_task, w);
      else if (unit.path == WeightPath::by_expert)
        all_rows(unit, w);
      else
        many_rows(unit, i - unit.first_task, w);
    });
    parallel_for(executor_, schedule_.threads(), count_, [&](Index u, int) noexcept {
      if (units_[u].row_blocks == 0) finish_few_rows(units_[u]);
    });
    count_ = 0;
  }

  // The last unit that begins at or before i.
  const Unit& find(Index i, Index Unit::*first) const {
    return *(std::upper_bound(units_, units_ + count_, i, [&](Index x, const Unit& u) { return x < u.*first; }) - 1);
  }

  struct Worker {
    T *packed, *a, *hidden, *first, *sums, *panels;
    Index turn = 0;      // which of two panels is the present one, and whether it is packed, where panels are packed on the way
    bool ready = false;
    Worker(const ProductPair& p, int index) {
      const PairMemory<T>& m = p.memory_;
      packed = p.workers_ + index * m.of_thread(p.b_.ups);
      a = packed + m.own;
      hidden = a + m.a;
      sums = hidden + m.hidden;
      panels = sums + m.sums;
      first = panels + m.panels;
    }
  };

  // The packed matrices of a unit, null where a task packs them itself.
  PackedMatrix<T> packed_up(const Unit& unit, Index m) const {
    if (b_.frozen()) return b_.packed_up[static_cast<std::size_t>(m)] + unit.e * b_.up_size();
    return {unit.packed ? unit.packed + m * b_.up_size() : nullptr, nullptr};
  }
  PackedMatrix<T> packed_down(const Unit& unit) const {
    if (b_.frozen()) return b_.packed_down + unit.e * b_.down_size();
    return {unit.packed ? unit.packed + b_.ups * b_.up_size() : nullptr, nullptr};
  }

  void pack(const Unit& unit, Index i) const {
    const Group g = group(unit, i);
    pack_panels(g.b, g.column, g.columns, g.k, g.depth, unit.packed + (g.packed.full + g.at(0) - unit.packed));
  }

  // In how many pieces `units` units compute hidden: few, for memory is read faster in whole rows, but even ones.
  Index pieces_of_hidden(Index units) const {
    const int threads = schedule_.threads();
    Index pieces = divide_up(chunks(), kWide / kDepth);
    while (units * pieces % threads != 0 && units * pieces < 4 * threads && pieces < chunks()) ++pieces;
    return pieces;
  }

  // A block of rows in tiles.
  struct Rows {
    Index first, count, tiles;
    Index begin(Index t) const { return t * count / tiles; }
    Index size(Index t) const { return begin(t + 1) - begin(t); }
  };

  void pack_a(const Unit& unit, const Rows& rows, T* a) const {
    Operand<T> from = b_.a;
    for (Index block = 0; block < blocks(); ++block) {
      const Index k = block * kDepth;
      pack_rows(from, unit.first + rows.first, rows.count, k, std::min(kDepth, b_.depth - k),
                a + block * rows.count * kStride);
    }
  }

  // Where the sums of a block of rows are: elements from row to row, and from panel to panel; whether no cache holds them
  // before they are written.
  struct SumsAt {
    T* sums;
    Index row, panel;
    bool far = false;
    static SumsAt panels(T* sums, const Rows& rows) { return {sums, kColumns, rows.count * kColumns}; }
  };

  // sums (+)= rows of a · group i, while what comes next is fetched.
  void multiply(const Unit& unit, const Rows& rows, const T* a, Index i, bool add, Worker& w, SumsAt to) const {
    const Index chunk_end = (i / groups_of_chunk() + 1) * groups_of_chunk(),
                end = unit.row_blocks == 0 ? chunk_end : chunks() * groups_of_chunk();
    const Group g = group(unit, i), next = group(unit, i + 1 < end ? i + 1 : i);
    if (unit.packs) pack(unit, i);  // before any way of reading them
    T* const panels = w.panels;
    const Index count = divide_up(g.columns, kColumns);
    if (g.packed && rows.count <= most_rows_of_panels) {
      if constexpr (std::is_same_v<T, float>)
        if (g.packed.half) return panels_sum(rows.count, count, g.depth, a, g.packed.half + g.at(0), to.sums, add);
      return panels_sum(rows.count, count, g.depth, a, g.packed.full + g.at(0), to.sums, add);
    }
    if (unit.path == WeightPath::on_the_way)
      return multiply_and_pack(rows, a, g, i + 1 < end ? &next : nullptr, add, w, to);
    if (!g.packed) pack_panels(g.b, g.column, g.columns, g.k, g.depth, panels);
    for (Index x = 0; x < g.columns; x += kColumns) {
      const T* panel = g.packed ? g.packed.panel(g.at(x), g.depth, panels) : panels + x * g.depth;
      const bool last = x + kColumns >= g.columns;
      multiply_panel(rows, a, g.depth, panel, x, add, to, [&](Index t) {
        return !next.is_packed ? next.ahead(x / kColumns * rows.tiles + t, count * rows.tiles)
               : last          ? next.ahead(t, rows.tiles)
                               : g.packed.ahead(g.at(x + kColumns), g.depth * kColumns, t, rows.tiles);
      });
    }
  }

  // The same with weights that nobody packed: while the tiles of a panel compute, each asks for some rows of the next panel
  // and packs those that were asked for in the tile before.
  // @param next  the group that follows, or null
  void multiply_and_pack(const Rows& rows, const T* a, const Group& g, const Group* next, bool add, Worker& w, SumsAt to) const {
    const Index parts = rows.tiles - 1;
    for (Index x = 0; x < g.columns; x += kColumns) {
      T *const panel = w.panels + w.turn * kDepth * kColumns, *const other = w.panels + (1 - w.turn) * kDepth * kColumns;
      if (!w.ready) pack_panels(g.b, g.column + x, std::min(kColumns, g.columns - x), g.k, g.depth, panel);
      const bool last = x + kColumns >= g.columns;
      const Group* const after = last ? next : &g;
      const Index at = last ? 0 : x + kColumns;
      w.turn = 1 - w.turn;
      const bool asks = after && after->depth > 0 && after->columns > at;
      w.ready = asks && after->columns - at >= kColumns && after->depth <= parts * (g.depth / 2);
      multiply_panel(
          rows, a, g.depth, panel, x, add, to,
          [&](Index t) { return asks && t < parts ? after->rows_ahead(at, kColumns, t, parts) : Ahead::nothing(panel); },
          [&](Index t) { return w.ready && t > 0 ? after->pack_ahead(at, t - 1, parts, other) : PackAhead<T>{}; });
    }
  }

  // The tiles of the panel at x.
  // @param ahead, pack  of a tile: what it asks for, and what it packs
  template <class AheadOf, class PackOf = PackAhead<T> (*)(Index)>
  void multiply_panel(
      const Rows& rows, const T* a, Index depth, const T* panel, Index x, bool add, SumsAt to, const AheadOf& ahead,
      const PackOf& pack = [](Index) { return PackAhead<T>{}; }) const {
    constexpr Index size = sizeof(T);
    T* const sums = to.sums + x / kColumns * to.panel;
    for (Index t = 0; t < rows.tiles; ++t) {
      Ahead asked = ahead(t);
      if (to.far && !add && t + 1 < rows.tiles)  // no cache holds the sums of the next tile
        asked = asked.after_rows(sums + rows.begin(t + 1) * to.row, rows.size(t + 1), kColumns * size, to.row * size);
      tile_sum(rows.size(t), kColumns, depth, a + rows.begin(t) * kStride, panel, sums + rows.begin(t) * to.row, to.row, add, asked,
               pack(t));
    }
  }

  // One chunk of hidden [rows, kStride].
  void first_product(const Unit& unit, const Rows& rows, Index chunk, Worker& w) const {
    const Index j = chunk * kDepth, columns = std::min(kDepth, b_.hidden - j), size = rows.count * kDepth;
    for (Index m = 0; m < b_.ups; ++m)
      for (Index block = 0; block < blocks(); ++block)
        multiply(unit, rows, w.a + block * rows.count * kStride, chunk * groups_of_chunk() + m * blocks() + block,
                 block > 0, w, SumsAt::panels(w.first + m * size, rows));
    activate(unit, rows, w.first, size, SumsLayout::panels(rows.count, kColumns), j, columns, w.hidden);
  }

  // hidden[rows, kStride] from the first sums, in whole rows: long runs of what an epilogue reads and writes.
  // @param size  elements from one matrix's sums to the next one's
  void activate(const Unit& unit, const Rows& rows, const T* first, Index size, SumsLayout layout, Index j, Index columns,
                T* hidden) const {
    const T* sums[] = {first, b_.ups > 1 ? first + size : nullptr};
    middle_.run(middle_.epilogue, sums, layout, rows.count, columns, unit.e, unit.first + rows.first, j, hidden);
  }

  // sums (+)= chunk of hidden · down.
  void second_product(const Unit& unit, const Rows& rows, Index chunk, bool add, Worker& w, SumsAt to) const {
    for (Index j = 0, i = chunk * groups_of_chunk() + b_.ups * blocks(); j < b_.columns; j += kDepth, ++i)
      multiply(unit, rows, w.hidden, i, add, w,
               {to.sums + j / kColumns * to.panel, to.row, to.panel, to.far});
  }

  void finish(const Unit& unit, const Rows& rows, const T* sums, SumsLayout layout) const {
    const Index s = unit.first + rows.first;
    last_.run(last_.epilogue, sums, layout, rows.count, b_.columns, unit.e, s, 0, b_.c + s * b_.columns, b_.columns);
  }

  void many_rows(const Unit& unit, Index row_block, Worker& w) const {
    const Index tiles = divide_up(unit.rows, kRows), t0 = row_block * tiles / unit.row_blocks,
                t1 = (row_block + 1) * tiles / unit.row_blocks;
    const Index begin = t0 * unit.rows / tiles, end = t1 * unit.rows / tiles;
    const Rows rows{begin, end - begin, t1 - t0};
    pack_a(unit, rows, w.a);
    // Sums that nothing happens to are formed where they belong, if they are soon done: rows of c lie apart.
    const bool in_c =
        last_.stores && chunks() <= 2 && b_.columns % kColumns == 0 && rows.count > most_rows_of_panels;
    const SumsAt sums = in_c ? SumsAt{b_.c + (unit.first + begin) * b_.columns, b_.columns, kColumns, true}
                             : SumsAt::panels(w.sums, rows);
    for (Index chunk = 0; chunk < chunks(); ++chunk) {
      first_product(unit, rows, chunk, w);
      second_product(unit, rows, chunk, chunk > 0, w, sums);
    }
    if (!in_c) finish(unit, rows, w.sums, SumsLayout::panels(rows.count, kColumns));
  }

  // An expert's blocks of rows one after the other, with weights packed once, by the first.
  void all_rows(const Unit& unit, Worker& w) const {
    Unit own = unit;
    own.packed = w.packed;
    for (Index block = 0; block < unit.row_blocks; ++block) {
      own.packs = block == 0;
      many_rows(own, block, w);
    }
  }

  void few_rows(const Unit& unit, Index chunk, Worker& w) const {
    T* sums = unit.partial + chunk * unit.rows * b_.padded_columns();
    if (unit.path == WeightPath::in_place) {
      const Index j = chunk * kDepth;
      const Operand<T> b = down(unit.e);
      few_rows_sum(unit.rows, std::min(kDepth, b_.hidden - j), unit.hidden + chunk * unit.rows * kStride, b.at(j, 0),
                   b.stride, b_.columns, sums, b_.padded_columns());
      return;
    }
    const Rows rows{0, unit.rows, divide_up(unit.rows, kRows)};
    pack_a(unit, rows, w.a);
    first_product(unit, rows, chunk, w);
    second_product(unit, rows, chunk, false, w, SumsAt::panels(sums, rows));
  }

  // A piece of the columns of hidden, from weights in place.
  void hidden_in_place(const Unit& unit, Index piece, Index pieces, const Worker& w) const {
    const Rows rows{0, unit.rows, divide_up(unit.rows, kRows)};
    const Index begin = piece * chunks() / pieces, end = (piece + 1) * chunks() / pieces, j = begin * kDepth,
                columns = std::min(end * kDepth, b_.hidden) - j;
    const Index stride = (end - begin) * kDepth + kStride - kDepth, size = rows.count * stride;
    pack_a(unit, rows, w.a);
    for (Index m = 0; m < b_.ups; ++m)
      for (Index block = 0; block < blocks(); ++block) {
        const Index k = block * kDepth, depth = std::min(kDepth, b_.depth - k);
        const Operand<T> b = up(m, unit.e);
        T *total = w.first + m * size, *to = block > 0 ? w.panels : total;
        const T* const from = depth > 0 ? b.at(k, j) : b.data;  // null where there is no element
        few_rows_sum(rows.count, depth, w.a + block * rows.count * kStride, from, b.stride, columns, to, stride);
        if (block > 0) add(size, to, total);
      }
    for (Index chunk = begin; chunk < end; ++chunk) {
      const Index x = (chunk - begin) * kDepth;
      activate(unit, rows, w.first + x, size, SumsLayout::rows(stride), j + x, std::min(kDepth, columns - x),
               unit.hidden + chunk * rows.count * kStride);
    }
  }
  static void add(Index n, const T* from, T* to) {
    using V = Register<T>;
    for (Index i = 0; i < n; i += V::size) (V::load(to + i) + V::load(from + i)).store(to + i);
  }

  void finish_few_rows(const Unit& unit) const {
    const Rows rows{0, unit.rows, divide_up(unit.rows, kRows)};
    const Index width = b_.padded_columns(), size = unit.rows * width;
    for (Index chunk = 1; chunk < chunks(); ++chunk) add(size, unit.partial + chunk * size, unit.partial);
    finish(unit, rows, unit.partial,
           unit.path == WeightPath::in_place ? SumsLayout::rows(width) : SumsLayout::panels(unit.rows, kColumns));
  }

  const PairBatch<T>& b_;
  const Middle<T>& middle_;
  const Finish<T>& last_;
  const ExecutorRef executor_;
  const PairSchedule<T> schedule_;
  const PairMemory<T> memory_;
  Index count_ = 0;
  Unit* units_ = nullptr;
  T *packed_ = nullptr, *partial_ = nullptr, *hidden_ = nullptr, *workers_ = nullptr;
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
