#pragma once

#include <algorithm>
#include <type_traits>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// One engine for the plain product, the grouped product and the grouped outer product.
///
/// Work is cut twice. A *unit* is a block of columns of one expert's B, packed once (by its task when it has one task
/// alone, and read in place when the expert has few rows). A *task* is a block of rows of one unit, done by one thread
/// from packing its rows of A to the epilogue. One expert with all rows has as many tasks as many experts with a few,
/// and each costs about the same.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// What happens to finished sums, with its type erased so that the engine is compiled once for each element type.
template <class T>
struct Finish {
  const void* epilogue;
  bool stores;  // and does nothing else
  void (*run)(const void*, const T*, SumsLayout, Index, Index, Index, Index, Index, T*, Index);

  template <class E>
  static Finish with(const E& epilogue) {
    return {&epilogue, std::is_same_v<E, fn::Store>,
            [](const void* f, const T* sums, SumsLayout layout, Index rows, Index columns, Index e, Index s, Index j, T* c,
               Index c_stride) {
              finish(*static_cast<const E*>(f), sums, layout, rows, columns, e, s, j, c, c_stride);
            }};
  }
};

/// c[rows, columns] (+)= a[rows, depth] b[depth, columns] of one expert. Row i of c is slot first + i.
template <class T>
struct Problem {
  Operand<T> a, b;
  T* c;
  Index c_stride, rows, columns, depth, first;
  PackedMatrix<T> packed{};  // b packed before, or null
};

/// The problems of all experts.
template <class T>
struct Batch {
  enum class Slots { none, are_rows, are_depth };

  Problem<T> all;  // extents over all experts, pointers of the first
  Slots slots = Slots::none;
  const Index* offsets = nullptr;  // [experts + 1], unless Slots::none
  Index experts = 1;
  Index most_slots = 0;  // of all experts, however many are routed here; fewer than there are count for nothing

  /// Rows of all experts together and depth of one, at most: whatever the routing, of as many slots.
  Index most_rows() const { return slots == Slots::are_rows ? bound() : all.rows; }
  Index most_depth() const { return slots == Slots::are_depth ? bound() : all.depth; }

  Problem<T> operator[](Index e) const {
    Problem<T> p = all;
    if (slots == Slots::none) return p;
    const Index first = offsets[e], count = offsets[e + 1] - first;
    skip_rows(p.a, first);
    if (slots == Slots::are_rows) {
      p.b.data += e * p.depth * p.columns;
      p.packed = p.packed + e * PackedMatrix<T>::size(p.depth, p.columns);
      p.c += first * p.c_stride;
      p.rows = count;
      p.first = first;
    } else {
      skip_rows(p.b, first);
      p.c += e * p.rows * p.columns;
      p.depth = count;
      if (count == 0) p.rows = 0;  // nothing to add: leave the expert's c in memory alone
    }
    return p;
  }

 private:
  Index bound() const { return std::max(most_slots, experts > 0 ? offsets[experts] - offsets[0] : 0); }
  static void skip_rows(Operand<T>& x, Index count) {
    if (x.rows)
      x.rows += count;
    else
      x.data += count * x.stride;
  }
};

template <class T>
class Product {
 public:
  /// @param accumulate    start every sum at the present c
  /// @param packed_bytes  memory for packed B; one unit is packed at a time if it is larger
  /// @order  with d = Tile::depth and chains s_i over k in [i d, (i + 1) d) as in tile.hpp, eq. (1), an element is
  ///         (s_0 + s_1) + s_2 + …, or ((c + s_0) + s_1) + … when accumulating, then the epilogue, once; 0 (or c) when
  ///         the depth is 0. The same for every path, tile and thread count.
  /// @cost   2·rows·columns·depth flop; scratch for packed B as above and a block of A for each thread
  template <class Context>
  static void run(Context& ctx, const Batch<T>& batch, bool accumulate, const Finish<T>& finish,
                  Index packed_bytes = Index(16) << 20) {
    const auto mark = ctx.mark();
    Product(batch, accumulate, finish, ctx.executor(), ctx.threads()).run(ctx, packed_bytes / static_cast<Index>(sizeof(T)));
  }

 private:
  static constexpr Index kRows = Tile<T>::rows, kColumns = Tile<T>::columns, kDepth = Tile<T>::depth;
  static constexpr Index kFewRows = 8;           // up to here B is read in place: packing would cost more than it saves
  static constexpr Index kChunk = 16 * kDepth;   // depth for which B is packed at a time
  static constexpr Index kSerialWork = 1 << 18;  // multiply-adds below which waking threads costs more than it saves
  static constexpr Index kPackedPanels = 8;      // panels packed at a time
  static constexpr Index kLeastBlockPanels = 4;  // panels of a unit, where there are that many
  static constexpr Index kTogether = 4;          // blocks of k for which a block of rows is packed at a time
  static constexpr Index kPanelsSize = kPackedPanels * kColumns * kDepth;

  struct Unit {
    Problem<T> p;
    Index e, column, columns;  // of c
    Index k, depth;            // the chunk of the depth
    bool add, last;            // whether c holds the sum so far; whether the chunk is the last
    T* packed;                 // [depth / kDepth][panels][kDepth, kColumns], or null: nothing to share
    Index row_blocks, first_task, first_pack;

    Index tiles() const { return divide_up(p.rows, kRows); }
    Index panels() const { return divide_up(columns, kColumns); }
    Index blocks() const { return divide_up(depth, kDepth); }
    bool packs_itself() const { return !packed && !p.packed; }  // its one task, some panels at a time
    Index packs() const { return packed ? blocks() * divide_up(panels(), kPackedPanels) : 0; }
  };

  Product(const Batch<T>& batch, bool accumulate, const Finish<T>& finish, ExecutorRef executor, int threads)
      : batch_(batch), accumulate_(accumulate), finish_(finish), executor_(executor), threads_(threads) {}

  static bool in_place(const Problem<T>& p) {
    return p.rows <= kFewRows && !p.b.lines_are_rows && !p.b.rows && !p.packed;
  }

  // Whether c is the most that is read and written.
  bool has_few_terms(const Problem<T>& p) const {
    return p.depth <= few_terms && finish_.stores && !p.a.lines_are_rows && !p.b.lines_are_rows && !p.packed;
  }

  Index block_columns(Index columns) const {
    return std::min(block_panels_ * kColumns, divide_up(columns, kColumns) * kColumns);
  }

  Index row_blocks(const Problem<T>& p) const {
    return in_place(p) ? 1 : divide_up(divide_up(p.rows, kRows), block_tiles_);
  }

  // Packed memory of a unit is shared by its tasks; one task alone packs a few panels at a time.
  Index shared_size(const Problem<T>& p, Index depth, Index columns) const {
    return row_blocks(p) == 1 || p.packed || has_few_terms(p) ? 0 : depth * divide_up(columns, kColumns) * kColumns;
  }

  // Large blocks reuse what they pack more often; smaller ones keep all threads busy. No result depends on them.
  void choose_blocks() {
    const auto tasks = [&] {
      Index n = 0;
      for (Index e = 0; e < batch_.experts; ++e) {
        const Problem<T> p = batch_[e];
        if (p.rows > 0) n += row_blocks(p) * divide_up(p.columns, block_panels_ * kColumns);
      }
      return n;
    };
    while (threads_ > 1 && tasks() < 4 * threads_ && block_panels_ > kLeastBlockPanels) block_panels_ /= 2;
    while (threads_ > 1 && tasks() < 4 * threads_ && block_tiles_ > 1) block_tiles_ /= 2;
  }

  template <class Context>
  void run(Context& ctx, Index budget) {
    if (batch_.most_rows() == 0 || batch_.all.columns == 0) return;
    Index work = 0, depth = 0, tiles = 0;
    for (Index e = 0; e < batch_.experts; ++e) {
      const Problem<T> p = batch_[e];
      if (p.rows == 0 || p.columns == 0) continue;
      work += p.rows * p.columns * p.depth;
      depth = std::max(depth, p.depth);
      tiles = std::max(tiles, divide_up(p.rows, kRows));
    }
    take_memory(ctx, budget);
    if (tiles == 0) return;
    if (work < kSerialWork) threads_ = 1;
    choose_blocks();
    block_tiles_ = std::min(block_tiles_, tiles);
    const Index width = block_columns(batch_.all.columns);
    for (Index k = 0; k == 0 || k < depth; k += kChunk) run_chunk(k, width);
  }

  // As much as any routing of as many slots needs: a later call takes what the first one took.
  template <class Context>
  void take_memory(Context& ctx, Index budget) {
    const Index rows = batch_.most_rows(), depth = batch_.most_depth(), columns = batch_.all.columns;
    const Index tiles = std::min(block_tiles_, divide_up(rows, kRows)), widest = block_columns(columns);
    const Index least = threads_ > 1 ? std::min(kLeastBlockPanels * kColumns, widest) : widest;
    capacity_ = std::min(most_shared(rows, depth), std::max(budget, std::min(depth, kChunk) * widest));
    packed_ = ctx.template scratch<T>(capacity_).data();
    units_ = ctx.template scratch<Unit>(batch_.experts * divide_up(columns, least)).data();
    const Index together = std::clamp<Index>(divide_up(depth, kDepth), 1, kTogether);
    a_size_ = std::max(together * tiles * kRows, kFewRows) * Tile<T>::stride;
    // Sums of few rows in place: those of the block and those so far.
    sums_size_ = std::max(tiles * kRows * (depth > kDepth ? widest : kColumns), 2 * kFewRows * widest);
    workers_ = ctx.template scratch<T>(threads_, a_size_ + kPanelsSize + sums_size_).data();
  }

  // Elements of packed B that all tasks share, at most: of experts with more rows than one task takes and no packed form.
  Index most_shared(Index rows, Index depth) const {
    const Problem<T>& p = batch_.all;
    const Index unshared = (threads_ > 1 ? 1 : block_tiles_) * kRows;
    if (p.packed || rows <= unshared) return 0;
    const Index padded = divide_up(p.columns, kColumns) * kColumns;
    switch (batch_.slots) {
      case Batch<T>::Slots::none: return std::min(depth, kChunk) * padded;
      case Batch<T>::Slots::are_rows: return std::min(batch_.experts, rows / (unshared + 1)) * std::min(depth, kChunk) * padded;
      default: return std::min(depth, batch_.experts * kChunk) * padded;
    }
  }

  // The depth from k on, wave by wave: as many units as fit into the packed memory are packed, then computed.
  void run_chunk(Index k, Index width) {
    count_ = used_ = 0;
    for (Index e = 0; e < batch_.experts; ++e) {
      const Problem<T> p = batch_[e];
      if (p.rows == 0 || (k > 0 && p.depth <= k)) continue;
      const Index depth = std::min(p.depth - k, kChunk);
      for (Index j = 0; j < p.columns; j += width) {
        const Index columns = std::min(width, p.columns - j);
        const Index size = shared_size(p, depth, columns);
        if (used_ + size > capacity_) run_wave();
        GATEFOLD_ASSERT(used_ + size <= capacity_, "memory of any routing");
        units_[count_++] = Unit{p,
                                e,
                                j,
                                columns,
                                k,
                                depth,
                                accumulate_ || k > 0,
                                k + depth == p.depth,
                                size > 0 ? packed_ + used_ : nullptr,
                                row_blocks(p),
                                0,
                                0};
        used_ += size;
      }
    }
    run_wave();
  }

  void run_wave() {
    Index packs = 0, tasks = 0;
    for (Index u = 0; u < count_; ++u) {
      units_[u].first_pack = packs;
      units_[u].first_task = tasks;
      packs += units_[u].packs();
      tasks += units_[u].row_blocks;
    }
    parallel_for(executor_, threads_, packs, [&](Index i, int) noexcept {
      const Unit& unit = find(i, &Unit::first_pack);
      pack(unit, i - unit.first_pack);
    });
    parallel_for(executor_, threads_, tasks, [&](Index i, int worker) noexcept {
      const Unit& unit = find(i, &Unit::first_task);
      T* a = workers_ + worker * (a_size_ + kPanelsSize + sums_size_);
      T *panels = a + a_size_, *sums = panels + kPanelsSize;
      const Index row_block = i - unit.first_task;
      if (has_few_terms(unit.p))
        compute_few_terms(unit, row_block);
      else if (in_place(unit.p))
        compute_in_place(unit, a, sums);
      else
        compute(unit, row_block, a, panels, sums);
    });
    count_ = used_ = 0;
  }

  // The last unit that begins at or before i: units without work begin where their successor does.
  const Unit& find(Index i, Index Unit::*first) const {
    return *(std::upper_bound(units_, units_ + count_, i, [&](Index x, const Unit& u) { return x < u.*first; }) - 1);
  }

  static void pack(const Unit& unit, Index i) {
    const Index groups = divide_up(unit.panels(), kPackedPanels), block = i / groups;
    const Index column = i % groups * kPackedPanels * kColumns, k = block * kDepth,
                depth = std::min(kDepth, unit.depth - k);
    pack_panels(unit.p.b, unit.column + column, std::min(kPackedPanels * kColumns, unit.columns - column), unit.k + k,
                depth, unit.packed + k * unit.panels() * kColumns + column * depth);
  }

  // The tiles [begin, end) of a unit.
  struct Tiles {
    Index begin, end, rows, all;
    Index count() const { return end - begin; }
    Index row(Index t) const { return t * rows / all; }
    Index size(Index t) const { return row(t + 1) - row(t); }
  };

  // A block of rows, some blocks of k at a time: they take turns for each panel, so that its sums stay in a near cache.
  void compute(const Unit& unit, Index row_block, T* a, T* panels, T* sums) const {
    const Index all = unit.tiles();
    const Tiles tiles{row_block * all / unit.row_blocks, (row_block + 1) * all / unit.row_blocks, unit.p.rows, all};
    const Index blocks = std::max<Index>(unit.blocks(), 1), together = unit.packs_itself() ? 1 : kTogether;
    for (Index first = 0; first < blocks; first += together) {
      const Index end = std::min(blocks, first + together);
      for (Index block = first; block < end; ++block) pack_block(unit, tiles, block, block_of_a(a, tiles, block - first));
      for (Index panel = 0; panel < unit.panels(); ++panel)
        for (Index block = first; block < end; ++block) {
          const bool last = block + 1 == end;
          const T* next = last ? shared_panel(unit, first, std::min(panel + 1, unit.panels() - 1))
                               : shared_panel(unit, block + 1, panel);
          multiply(unit, tiles, block_of_a(a, tiles, block - first), panel, block, block == first,
                   panel_of_b(unit, panel, block, panels), next,
                   blocks > together ? sums + panel * tiles.count() * kRows * kColumns : sums);
        }
    }
  }

  static T* block_of_a(T* a, const Tiles& tiles, Index block) { return a + block * tiles.count() * kRows * Tile<T>::stride; }
  static Index depth_of(const Unit& unit, Index block) { return std::min(kDepth, unit.depth - block * kDepth); }

  // One block of k of the rows. Those that are columns in memory: some at a time of all tiles, so that memory is read in
  // longer runs.
  static void pack_block(const Unit& unit, const Tiles& tiles, Index block, T* a) {
    const Operand<T>& from = unit.p.a;
    const Index depth = depth_of(unit, block), some = from.lines_are_rows ? kDepth : 32;
    for (Index k = 0; k < depth; k += some)
      for (Index t = tiles.begin; t < tiles.end; ++t)
        pack_rows(from, tiles.row(t), tiles.size(t), unit.k + block * kDepth + k, std::min(some, depth - k),
                  a + (t - tiles.begin) * kRows * Tile<T>::stride + k);
  }

  // Where the panel of a unit lies that its tasks share, or null.
  static const T* shared_panel(const Unit& unit, Index block, Index panel) {
    return unit.packed ? unit.packed + (block * kDepth * unit.panels() + panel * depth_of(unit, block)) * kColumns : nullptr;
  }
  // The panel, wherever it comes from; some panels are packed at a time into `panels`.
  static const T* panel_of_b(const Unit& unit, Index panel, Index block, T* panels) {
    const Problem<T>& p = unit.p;
    const Index x = panel * kColumns, j = unit.column + x, k = unit.k + block * kDepth, depth = depth_of(unit, block);
    if (p.packed) return p.packed.panel(PackedMatrix<T>::at(p.columns, k, depth, j), depth, panels);
    if (unit.packed) return shared_panel(unit, block, panel);
    if (panel % kPackedPanels == 0)
      pack_panels(p.b, j, std::min(kPackedPanels * kColumns, unit.columns - x), k, depth, panels);
    return panels + panel % kPackedPanels * depth * kColumns;
  }

  // The tiles of one panel and block of k.
  // @param begins  whether this block is the first to touch the sums in a while
  // @param next    the panel to ask for, or null
  void multiply(const Unit& unit, const Tiles& tiles, const T* a, Index panel, Index block, bool begins, const T* b,
                const T* next, T* sums) const {
    const Problem<T>& p = unit.p;
    const Index depth = depth_of(unit, block), blocks = std::max<Index>(unit.blocks(), 1);
    const Index x = panel * kColumns, j = unit.column + x, columns = std::min(kColumns, unit.columns - x);
    const bool in_c = finish_.stores && columns == kColumns;  // then c holds the sums so far
    const bool loads = block == 0 && unit.add, touches_c = in_c ? begins : loads || block + 1 == blocks;
    for (Index t = tiles.begin; t < tiles.end; ++t) {
      const Index row = tiles.row(t), rows = tiles.size(t), i = (t - tiles.begin) * kRows;
      T* c = p.c + row * p.c_stride + j;
      T* s = in_c ? c : sums + i * kColumns;
      if (loads && !in_c) load(c, p.c_stride, rows, columns, s, kColumns);
      Ahead ahead = next ? Ahead::part(next, depth * kColumns, t - tiles.begin, tiles.count()) : Ahead::nothing(b);
      if (touches_c && t + 1 < tiles.end) ahead = after_sums(c + rows * p.c_stride, p.c_stride, ahead);
      tile_sum(rows, columns, depth, a + i * Tile<T>::stride, b, s, in_c ? p.c_stride : kColumns, block > 0 || unit.add,
               ahead);
      if (block + 1 == blocks && !in_c) store(unit, s, kColumns, rows, columns, row, j, c);
    }
  }

  void compute_few_terms(const Unit& unit, Index row_block) const {
    const Problem<T>& p = unit.p;
    const Index begin = row_block * p.rows / unit.row_blocks, end = (row_block + 1) * p.rows / unit.row_blocks;
    few_terms_sum(p.a, begin, end - begin, p.b, unit.column, unit.columns, unit.depth, unit.add,
                  p.c + begin * p.c_stride + unit.column, p.c_stride);
  }

  void compute_in_place(const Unit& unit, T* a, T* sums) const {
    const Problem<T>& p = unit.p;
    const Index stride = unit.panels() * kColumns;
    T* block_sums = sums + p.rows * stride;
    T* c = p.c + unit.column;
    if (unit.add) load(c, p.c_stride, p.rows, unit.columns, sums, stride);
    for (Index k = 0; k == 0 || k < unit.depth; k += kDepth) {
      const bool add = k > 0 || unit.add;
      const Index depth = std::min(kDepth, unit.depth - k);
      pack_rows(p.a, 0, p.rows, unit.k + k, depth, a);
      few_rows_sum(p.rows, depth, a, p.b.at(unit.k + k, unit.column), p.b.stride, unit.columns, add ? block_sums : sums,
                   stride);
      if (!add) continue;
      using V = Register<T>;
      for (Index i = 0; i < p.rows * stride; i += V::size)
        (V::load(sums + i) + V::load(block_sums + i)).store(sums + i);
    }
    store(unit, sums, stride, p.rows, unit.columns, 0, unit.column, c);
  }

  // The c of a tile, to ask for: its rows lie far apart.
  static Ahead after_sums(const T* c, Index c_stride, const Ahead& others) {
    constexpr Index size = sizeof(T);
    return others.after_rows(c, kRows, kColumns * size, c_stride * size);
  }

  // sums = the present c, filled up to whole registers.
  static void load(const T* c, Index c_stride, Index rows, Index columns, T* sums, Index sums_stride) {
    using V = Register<T>;
    for (Index i = 0; i < rows; ++i)
      for (Index x = 0; x < sums_stride; x += V::size) {
        const Index count = std::clamp<Index>(columns - x, 0, V::size);
        V::load(c + i * c_stride + x, static_cast<int>(count)).store(sums + i * sums_stride + x);
      }
  }

  void store(const Unit& unit, const T* sums, Index sums_stride, Index rows, Index columns, Index row, Index j,
             T* c) const {
    static constexpr fn::Store plain{};
    const Finish<T> f = unit.last ? finish_ : Finish<T>::with(plain);
    f.run(f.epilogue, sums, SumsLayout::rows(sums_stride), rows, columns, unit.e, unit.p.first + row, j, c,
          unit.p.c_stride);
  }

  const Batch<T>& batch_;
  const bool accumulate_;
  const Finish<T>& finish_;
  const ExecutorRef executor_;
  int threads_;
  Index block_panels_ = 1024 / kColumns, block_tiles_ = 12;
  T *packed_ = nullptr, *workers_ = nullptr;
  Unit* units_ = nullptr;
  Index capacity_ = 0, a_size_ = 0, sums_size_ = 0, count_ = 0, used_ = 0;
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
