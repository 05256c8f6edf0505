#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/middle.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/product.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tile.hpp"
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
struct PairBatch {
  Operand<T> a{};                     // [N, depth]; the only one that may be gathered
  std::array<Operand<T>, 2> up{};     // of the first expert, op(up) [depth, hidden]
  std::array<Index, 2> up_step{};     // elements from expert to expert
  std::array<PackedMatrix<T>, 2> packed_up{};  // packed before, or null
  PackedMatrix<T> packed_down{};
  Index ups = 1;
  Operand<T> down{};                  // of the first expert, op(down) [hidden, columns]
  Index down_step = 0;
  T* c = nullptr;                     // [S, columns]
  Index depth = 0, hidden = 0, columns = 0;
  const Index* offsets = nullptr;     // [experts + 1]
  Index experts = 0;
};

template <class T>
class ProductPair {
 public:
  /// @order  as two products one after the other (product.hpp)
  /// @cost   2·S·hidden·(ups·depth + columns) flop; scratch for packed weights of at most packed_bytes (or one expert's),
  ///         for each thread a block of rows of a, of hidden and of c, for experts of few rows one row of c for each
  ///         row and each Tile::depth columns of hidden, and where their weights are read in place also their hidden
  template <class Context>
  static void run(Context& ctx, const PairBatch<T>& batch, const Middle<T>& middle, const Finish<T>& last,
                  Index packed_bytes = Index(16) << 20) {
    const auto mark = ctx.mark();
    ProductPair(batch, middle, last, ctx.threads()).run(ctx, packed_bytes / static_cast<Index>(sizeof(T)));
  }

 private:
  static constexpr Index kRows = Tile<T>::rows, kColumns = Tile<T>::columns, kDepth = Tile<T>::depth;
  static constexpr Index kStride = Tile<T>::stride;
  static constexpr Index kFewRows = 8;              // up to here weights are read in place
  static constexpr Index kMostFewRows = 4 * kRows;  // up to here chunks may be tasks
  static constexpr Index kWide = 8 * kDepth;        // columns of hidden at most that are computed from weights in place
  static constexpr Index kWideStride = kWide + kStride - kDepth;
  static constexpr Index kSerialWork = 1 << 18;     // multiply-adds below which waking threads costs more than it saves
  static constexpr Index kBlockSize = 1 << 18;      // elements of a, hidden and c that a task keeps in its cache
  static constexpr Index kManyTiles = 5;            // from here on the tiles of a panel ask for all of the next one
  static constexpr Index kPackingBlocks = 3;        // up to so many blocks of rows of an expert pack its weights each for itself
  static_assert(2 * kColumns <= kDepth, "two panels lie where packed panels are else");
  static_assert(kFewRows * kWideStride <= kDepth * kDepth, "a piece of hidden is summed where packed panels are else");

  struct Unit {
    Index e, first, rows;
    Index row_blocks;              // 0: chunks are tasks
    T* packed;                     // up matrices, then down, or null: packed before, or by each task for itself
    bool packs;                    // `packed` is written on the way, by the first block of rows
    T* partial;                    // [chunks][rows, padded columns], of a unit whose chunks are tasks
    T* hidden;                     // [chunks][rows, kStride], of a unit whose weights are read in place
    Index first_task, first_pack;  // packs: of weights, or pieces of hidden
  };

  ProductPair(const PairBatch<T>& batch, const Middle<T>& middle, const Finish<T>& last, int threads)
      : b_(batch), middle_(middle), last_(last), threads_(threads) {}

  static Index divide_up(Index a, Index b) { return (a + b - 1) / b; }
  static Index padded(Index columns) { return PackedMatrix<T>::padded(columns); }

  Index chunks() const { return std::max<Index>(divide_up(b_.hidden, kDepth), 1); }
  Index blocks() const { return std::max<Index>(divide_up(b_.depth, kDepth), 1); }
  Index up_size() const { return PackedMatrix<T>::size(b_.depth, b_.hidden); }
  Index down_size() const { return PackedMatrix<T>::size(b_.hidden, b_.columns); }
  Index packed_size() const { return b_.ups * up_size() + down_size(); }
  bool frozen() const { return static_cast<bool>(b_.packed_down); }
  bool in_place(Index rows) const {
    return rows <= std::min(kFewRows, few_rows_) && !frozen() && !b_.down.lines_are_rows && !b_.up[0].lines_are_rows;
  }
  // Packed weights serve several blocks of rows: those of one task, or of tasks that share them.
  bool reuses_packed(Index rows) const { return row_blocks(rows) > (packs_on_the_way() ? kPackingBlocks : 1) && !frozen(); }
  // Then the blocks of an expert with several have at least kManyTiles tiles each.
  bool packs_on_the_way() const { return !b_.down.lines_are_rows && block_tiles_ >= 2 * kManyTiles; }
  bool shares_packed(Index rows) const { return reuses_packed(rows) && !whole_experts_; }
  bool owns_packed(Index rows) const { return reuses_packed(rows) && whole_experts_; }
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

  template <class Context>
  void run(Context& ctx, Index budget) {
    Index tiles = 0, most_tiles = 0, slots = 0, used_experts = 0, few = 0, few_in_place = 0;
    for (Index e = 0; e < b_.experts; ++e) {
      const Index rows = b_.offsets[e + 1] - b_.offsets[e];
      slots += rows;
      used_experts += rows > 0;
      tiles += divide_up(rows, kRows);
      most_tiles = std::max(most_tiles, divide_up(rows, kRows));
    }
    if (slots == 0 || b_.columns == 0) return;
    if (slots * b_.hidden * (b_.ups * b_.depth + b_.columns) < kSerialWork) threads_ = 1;
    const Index row_size = blocks() * kStride + (1 + b_.ups) * kStride + padded(b_.columns);
    block_tiles_ = std::min(std::clamp<Index>(kBlockSize / (row_size * kRows), 2, 24), most_tiles);
    // Smaller blocks where large ones would leave threads without work.
    while (threads_ > 1 && block_tiles_ > 1 && tiles < 3 * threads_ * block_tiles_) block_tiles_ /= 2;

    if (threads_ > 1 && tiles < 3 * threads_) few_rows_ = kMostFewRows;
    for (Index e = 0; e < b_.experts; ++e)
      if (const Index rows = b_.offsets[e + 1] - b_.offsets[e]; rows <= few_rows_) {
        few += rows;
        few_in_place += in_place(rows) ? rows : 0;
      }
    // Experts that a cache holds, of which every thread gets its share.
    whole_experts_ = packed_size() <= kBlockSize && used_experts >= 4 * threads_ && most_tiles * 2 * threads_ <= tiles;
    own_size_ = whole_experts_ && most_tiles > block_tiles_ ? packed_size() : 0;
    units_ = ctx.template scratch<Unit>(b_.experts).data();
    T* partial = ctx.template scratch<T>(few * chunks() * padded(b_.columns)).data();
    T* hidden = ctx.template scratch<T>(few_in_place * chunks() * kStride).data();
    Index shared = 0;
    for (Index e = 0; e < b_.experts; ++e)
      if (shares_packed(b_.offsets[e + 1] - b_.offsets[e])) shared += packed_size();
    capacity_ = std::min(shared, std::max(budget, packed_size()));
    packed_ = ctx.template scratch<T>(capacity_).data();
    const Index most_rows = std::max(block_tiles_ * kRows, kMostFewRows);
    a_size_ = most_rows * blocks() * kStride;
    hidden_size_ = most_rows * kStride;
    sums_size_ = most_rows * std::max(padded(b_.columns), kDepth);
    const Index first_size = std::max(most_rows * kDepth, few_in_place > 0 ? kFewRows * kWideStride : 0);
    worker_size_ = own_size_ + a_size_ + hidden_size_ + b_.ups * first_size + sums_size_ + kDepth * kDepth;
    workers_ = ctx.template scratch<T>(threads_, worker_size_).data();

    for (Index e = 0; e < b_.experts; ++e) {
      const Index first = b_.offsets[e], rows = b_.offsets[e + 1] - first;
      if (rows == 0) continue;
      const Index n = row_blocks(rows);
      const bool shared = shares_packed(rows);
      if (shared && used_ + packed_size() > capacity_) run_wave();
      units_[count_++] =
          Unit{e, first, rows, n, shared ? packed_ + used_ : nullptr, false, n == 0 ? partial : nullptr, hidden, 0, 0};
      if (shared) used_ += packed_size();
      if (n == 0) partial += rows * chunks() * padded(b_.columns);
      if (in_place(rows)) hidden += rows * chunks() * kStride;
    }
    run_wave();
  }

  Index row_blocks(Index rows) const { return rows <= few_rows_ ? 0 : divide_up(divide_up(rows, kRows), block_tiles_); }

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
    for (Index u = 0; u < count_; ++u) units_in_place += in_place(units_[u].rows);
    const Index pieces = pieces_of_hidden(units_in_place);
    for (Index u = 0; u < count_; ++u) {
      Unit& unit = units_[u];
      unit.first_pack = packs;
      unit.first_task = tasks;
      packs += unit.packed ? chunks() * groups_of_chunk() : in_place(unit.rows) ? pieces : 0;
      tasks += unit.row_blocks == 0 ? chunks() : owns_packed(unit.rows) ? 1 : unit.row_blocks;
    }
    parallel_for(threads_, packs, [&](Index i, int worker) noexcept {
      const Unit& unit = find(i, &Unit::first_pack);
      if (unit.packed)
        pack(unit, i - unit.first_pack);
      else
        hidden_in_place(unit, i - unit.first_pack, pieces, Worker(*this, worker));
    });
    parallel_for(threads_, tasks, [&](Index i, int worker) noexcept {
      const Unit& unit = find(i, &Unit::first_task);
      Worker w(*this, worker);
      if (unit.row_blocks == 0)
        few_rows(unit, i - unit.first_task, w);
      else if (owns_packed(unit.rows))
        all_rows(unit, w);
      else
        many_rows(unit, i - unit.first_task, w);
    });
    parallel_for(threads_, count_, [&](Index u, int) noexcept {
      if (units_[u].row_blocks == 0) finish_few_rows(units_[u]);
    });
    count_ = used_ = 0;
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
      packed = p.workers_ + index * p.worker_size_;
      a = packed + p.own_size_;
      hidden = a + p.a_size_;
      sums = hidden + p.hidden_size_;
      panels = sums + p.sums_size_;
      first = panels + kDepth * kDepth;
    }
  };

  // The packed matrices of a unit, null where a task packs them itself.
  PackedMatrix<T> packed_up(const Unit& unit, Index m) const {
    if (frozen()) return b_.packed_up[static_cast<std::size_t>(m)] + unit.e * up_size();
    return {unit.packed ? unit.packed + m * up_size() : nullptr, nullptr};
  }
  PackedMatrix<T> packed_down(const Unit& unit) const {
    if (frozen()) return b_.packed_down + unit.e * down_size();
    return {unit.packed ? unit.packed + b_.ups * up_size() : nullptr, nullptr};
  }

  void pack(const Unit& unit, Index i) const {
    const Group g = group(unit, i);
    pack_panels(g.b, g.column, g.columns, g.k, g.depth, unit.packed + (g.packed.full + g.at(0) - unit.packed));
  }

  // In how many pieces `units` units compute hidden: few, for memory is read faster in whole rows, but even ones.
  Index pieces_of_hidden(Index units) const {
    Index pieces = divide_up(chunks(), kWide / kDepth);
    while (units * pieces % threads_ != 0 && units * pieces < 4 * threads_ && pieces < chunks()) ++pieces;
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
    if (!g.packed && !g.b.lines_are_rows && rows.tiles >= kManyTiles)
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
      const bool asks = after && !after->b.lines_are_rows && after->depth > 0 && after->columns > at;
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
    T* sums = unit.partial + chunk * unit.rows * padded(b_.columns);
    if (in_place(unit.rows)) {
      const Index j = chunk * kDepth;
      const Operand<T> b = down(unit.e);
      few_rows_sum(unit.rows, std::min(kDepth, b_.hidden - j), unit.hidden + chunk * unit.rows * kStride, b.at(j, 0),
                   b.stride, b_.columns, sums, padded(b_.columns));
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
        few_rows_sum(rows.count, depth, w.a + block * rows.count * kStride, b.at(k, j), b.stride, columns, to, stride);
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
    const Index width = padded(b_.columns), size = unit.rows * width;
    for (Index chunk = 1; chunk < chunks(); ++chunk) add(size, unit.partial + chunk * size, unit.partial);
    finish(unit, rows, unit.partial,
           in_place(unit.rows) ? SumsLayout::rows(width) : SumsLayout::panels(unit.rows, kColumns));
  }

  const PairBatch<T>& b_;
  const Middle<T>& middle_;
  const Finish<T>& last_;
  int threads_;
  bool whole_experts_ = false;
  Index block_tiles_ = 1, few_rows_ = kRows, capacity_ = 0, used_ = 0, count_ = 0;
  Index own_size_ = 0, a_size_ = 0, hidden_size_ = 0, sums_size_ = 0, worker_size_ = 0;
  Unit* units_ = nullptr;
  T *packed_ = nullptr, *workers_ = nullptr;
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
