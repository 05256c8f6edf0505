#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/block_product.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/product_schedule.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/schedule.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/weight_block.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// Computes matrix products c = A B on the CPU: single products, grouped products (one for each expert), and grouped
/// outer products (gradients of the experts' weights).
///
/// A *work item* is a range of columns of one expert's B. A *task* is a block of rows of one work item. One thread runs
/// a task, from packing its rows of A to the epilogue (the function that is applied to each sum). The number of tasks
/// is about the same whether one expert has all rows or many experts have a few rows each. All tasks cost about the
/// same.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Computes a matrix product c[rows, columns] in which each sum s has few terms (at most tuning.rank_update_depth): c =
/// 0 + s, or c += s. tile.hpp, eq. (1) defines the sum s. With so few terms, most of the work is reading and writing c.
/// Therefore this function computes one row of c after the other, and reads and writes c only once, in the order of
/// memory.
/// @param a, b   the two factors. They are read in place, with one row of words (words.hpp) in memory for each term or,
///               if words are pairs of bfloat16, for each two terms
/// @param depth  number of these rows in `a` and `b`
/// @param into   Into::stream only if every register of c is whole and aligned
template <class P>
[[gnu::noinline]] void rank_update(const Operand<SumOf<P>>& a, Index line, Index rows, const Operand<SumOf<P>>& b,
                                   Index column, Index columns, Index depth, Into into, SumOf<P>* c, Index c_stride) {
  using T = SumOf<P>;
  using V = Register<T>;
  constexpr std::size_t most{tuning.rank_update_depth};
  const T *x[most], *y[most];
  for (Index k = 0; k < depth; ++k) {
    x[k] = a.at(k, line);
    y[k] = b.at(k, column);
  }
  const auto step = [&]<int R>(std::integral_constant<int, R>, Index i, Index j, int count) {
    V s[std::size_t{R}];
    for (int r = 0; r < R; ++r) s[r] = V(T(0));
    for (Index k = 0; k < depth; ++k)
      for (int r = 0; r < R; ++r)
        s[r] = V(multiply_add<P>(V(x[k][i]).packet(), V::load(y[k] + j + r * V::size, count).packet(), s[r].packet()));
    T* to = c + i * c_stride + j;
    for (int r = 0; r < R; ++r, to += V::size) {
      const V sum = (into == Into::add ? V::load(to, count) : V(T(0))) + s[r];
      if (into == Into::stream)
        packet::stream(to, sum.packet());
      else
        sum.store(to, count);
    }
  };
  constexpr Index wide = 8 * V::size;
  for (Index i = 0; i < rows; ++i) {
    Index j = 0;
    for (; j + wide <= columns; j += wide) step(std::integral_constant<int, 8>{}, i, j, V::size);
    for (; j < columns; j += V::size)
      step(std::integral_constant<int, 1>{}, i, j, static_cast<int>(std::min<Index>(V::size, columns - j)));
  }
}

template <class P>
class Product {
  using T = SumOf<P>;

 public:
  /// Computes the matrix products c = a b, or c += a b, of all experts of a batch.
  /// @param packed_bytes  size of the memory for packed weights b. If a work item (a range of columns of b) needs more,
  ///                      one work item is packed at a time
  /// @order  with d = Tile::depth and chains s_i over k in [i d, (i + 1) d) as in tile.hpp, eq. (1), the sum of an
  ///         element is (s_0 + s_1) + s_2 + …, or ((c + s_0) + s_1) + … when accumulating. If the depth is 0, the sum
  ///         is 0 (or c). The epilogue runs once, on the complete sum. The order is the same for every path, tile and
  ///         number of threads.
  /// @cost   2·rows·columns·depth flop; scratch as in ProductMemory, which depends on the sizes of the batch and not on
  ///         the routing
  template <class Context>
  static void run(Context& ctx, const Batch<P>& batch, const Epilogue<T>& epilogue,
                  Index packed_bytes = tuning.packed_bytes);
  /// Allocates the scratch memory that `run` would need, without computing. A function that calls `run` only for some
  /// routings calls `reserve` for the other routings, so that the memory of a context does not depend on the routing.
  template <class Context>
  static void reserve(Context& ctx, const Batch<P>& batch, const Epilogue<T>& epilogue);

 private:
  static constexpr Index kColumns = Tile<P>::columns, kDepth = Tile<P>::depth;

  struct WorkItem {
    Problem<P> p;
    Index e, column, columns;  // number of the expert; first column and number of columns of this item in c
    Index k, depth;            // the terms of the sums that this item computes: [k, k + depth)
    bool add, last;            // add: sums are added to the values in c; last: no terms follow
    // True if the first chain of terms of each sum is added to 0 instead of being stored. A chain that underflows to -0
    // then gives +0.
    bool from_zero;
    WeightPath path;
    Index row_blocks;
    T* packed;  // packed weights of this item, [blocks of k][panels][k, column], for WeightPath::by_call
    Index begin = 0;

    // width() returns the number of blocks of weights along the columns of this work item, and blocks() along its
    // depth, the dimension over which the product sums.
    Index width() const { return divide_up(columns, kDepth); }
    Index blocks() const { return std::max<Index>(divide_up(depth, kDepth), 1); }
    Index size() const { return width() * blocks(); }
    WeightBlock<P> operator[](Index i) const {
      const Index block = i / width() * kDepth, length = std::min(kDepth, depth - block), x = i % width() * kDepth;
      const PackedMatrix<P> shared = p.packed ? p.packed_block(k + block, length, column + x)
                                              : PackedMatrix<P>{packed, nullptr}.block(columns, block, length, x);
      return {p.b, shared, k + block, length, column + x, std::min(kDepth, columns - x)};
    }
  };

  struct Worker {
    T *a, *sums, *panels;
  };

  template <class Context>
  Product(Context& ctx, const Batch<P>& batch, const Epilogue<T>& epilogue, const ProductSchedule<P>& schedule,
          const ProductMemory<P>& memory)
      : batch_(batch),
        epilogue_(epilogue),
        schedule_(schedule),
        memory_(memory),
        packed_(ctx.template scratch<T>(memory.packed).data()),
        wave_(ctx.template scratch<WorkItem>(memory.items).data(), ctx.executor(), schedule.threads()),
        workers_(ctx.template scratch<T>(ctx.threads(), of_thread()).data()) {}

  Index of_thread() const { return memory_.a + memory_.sums + memory_.panels; }
  Worker worker(int index) const {
    T* a = workers_ + index * of_thread();
    return {a, a + memory_.a, a + memory_.a + memory_.sums};
  }

  void run() {
    if (schedule_.empty()) return;
    for (Index k = 0; k == 0 || k < schedule_.depth(); k += memory_.chunk) run_chunk(k);
  }

  // Adds the terms of one chunk of the depth, the dimension over which products sum, to all results. The chunk begins
  // at term k. Work items are computed in groups (waves): a wave packs as many items as fit into the memory for packed
  // weights, then computes them.
  void run_chunk(Index k) {
    const Index width = std::min(schedule_.columns(), PackedMatrix<P>::padded(batch_.all.columns));
    Index used = 0;
    for (Index e = 0; e < batch_.experts; ++e) {
      const Problem<P> p = batch_[e];
      if (p.rows == 0 || (k > 0 && p.depth <= k)) continue;
      const WeightPath path = schedule_.path(p);
      const Index depth = std::min(p.depth - k, memory_.chunk);
      for (Index j = 0; j < p.columns; j += width) {
        const Index columns = std::min(width, p.columns - j);
        const Index size = path == WeightPath::by_call ? PackedMatrix<P>::size(depth, columns) : 0;
        if (used + size > memory_.packed) {
          run_wave();
          used = 0;
        }
        GATEFOLD_ASSERT(used + size <= memory_.packed, "grouped product: the memory for packed weights is too small");
        wave_.add({p, e, j, columns, k, depth, batch_.accumulate || k > 0, k + depth == p.depth, from_zero(k), path,
                   schedule_.row_blocks(p), size > 0 ? packed_ + used : nullptr});
        used += size;
      }
    }
    run_wave();
  }

  void run_wave() {
    wave_.each_part([](const WorkItem& item) { return item.packed ? item.size() : 0; },
                    [](const WorkItem& item, Index i, int) {
                      const WeightBlock<P> block = item[i];
                      block.pack(item.packed + (block.packed.full - item.packed));
                    });
    wave_.each_part([](const WorkItem& item) { return item.row_blocks; },
                    [this](const WorkItem& item, Index row_block, int index) {
                      if constexpr (on_amx<P>)
                        compute(item, row_block, worker(index));
                      else if (item.path == WeightPath::rank_update)
                        update(item, row_block, worker(index));
                      else
                        compute(item, row_block, worker(index));
                    });
    wave_.clear();
  }

  void compute(const WorkItem& item, Index row_block, const Worker& w) const {
    const Problem<P>& p = item.p;
    const RowBlock rows = RowBlock::all<P>(p.rows).block(row_block, item.row_blocks);
    BlockProduct<P> product(w.panels);
    const bool streams = schedule_.streams(p);
    for (Index i = 0; i < item.size(); ++i) {
      // `first` and `last`: whether this block of weights has the first, or the last, terms of the sums.
      const bool first = i < item.width(), last = i + item.width() >= item.size();
      const bool more = i + 1 < item.size();
      const WeightBlock<P> b = item[i], next = more ? item[i + 1] : b;
      if (i % item.width() == 0) b.pack_rows(p.a, rows.first, rows.count, b.k, w.a);
      T* const c = p.c + rows.first * p.c_stride + b.column;
      // If the epilogue only stores the sums, and the block consists of whole panels of columns, sums are computed
      // directly in c.
      const bool in_c = epilogue_.stores && b.columns % kColumns == 0;
      const bool begun = !first || item.add || item.from_zero;
      const Into into = in_c && streams ? Into::stream : begun ? Into::add : Into::store;
      const Sums<T> sums =
          in_c ? Sums<T>::rows(c, p.c_stride)
               : Sums<T>::panels(w.sums + (item.blocks() > 1 ? (b.column - item.column) * rows.count : 0), rows.count);
      if (first && item.from_zero && into != Into::stream) load(nullptr, 0, rows.count, b.columns, sums);
      if (first && item.add && !in_c) load(c, p.c_stride, rows.count, b.columns, sums);
      product.run(rows, w.a, b, more ? &next : nullptr, into, sums);
      if (last && !in_c) finish(item, sums.data, sums.layout, rows.first, rows.count, b.column, b.columns);
    }
    if (streams) packet::end_of_stream();
  }

  void update(const WorkItem& item, Index row_block, const Worker& w) const {
    const Problem<P>& p = item.p;
    const RowBlock rows = RowBlock::all<P>(p.rows).block(row_block, item.row_blocks);
    T* const c = p.c + rows.first * p.c_stride + item.column;
    const bool streams = schedule_.streams(p);
    const Into into = streams ? Into::stream : item.add ? Into::add : Into::store;
    if constexpr (std::is_same_v<P, T>) {
      rank_update<P>(p.a, rows.first, rows.count, p.b, item.column, item.columns, item.depth, into, c, p.c_stride);
    } else {
      // Rounds both operands to bfloat16 before the product, so that they are not rounded again for every row of c.
      const Index depth = words<P>(item.depth);
      copy_block(RowsOfWords<P>{p.a, rows.first, 0, item.depth}, depth, rows.count, w.a, rows.count);
      copy_block(RowsOfWords<P>{p.b, item.column, 0, item.depth}, depth, item.columns, w.panels, item.columns);
      rank_update<P>({w.a, rows.count, false}, 0, rows.count, {w.panels, item.columns, false}, 0, item.columns, depth,
                     into, c, p.c_stride);
    }
    if (streams) packet::end_of_stream();
  }

  // Returns whether the first terms of a sum are added to 0 instead of being stored. This is done for gradients that
  // replace c, so that they have the same bits as gradients that are added to a c of zeros.
  bool from_zero(Index k) const { return batch_.slots == Batch<P>::Slots::are_depth && !batch_.accumulate && k == 0; }

  // Initialises `sums` with the present values of c, or with 0 if c is null. It writes whole vector registers.
  static void load(const T* c, Index c_stride, Index rows, Index columns, const Sums<T>& sums) {
    using V = Register<T>;
    for (Index i = 0; i < rows; ++i)
      for (Index x = 0; x < columns; x += V::size) {
        T* const to = sums.from(x / kColumns * kColumns).data + i * sums.layout.stride + x % kColumns;
        const auto count = static_cast<int>(std::min<Index>(columns - x, V::size));
        (c ? V::load(c + i * c_stride + x, count) : V(T(0))).store(to);
      }
  }

  void finish(const WorkItem& item, const T* sums, SumsLayout layout, Index row, Index rows, Index j,
              Index columns) const {
    static constexpr functor::Store plain{};
    const Epilogue<T> f = item.last ? epilogue_ : Epilogue<T>::with(plain);
    const Problem<P>& p = item.p;
    f.run(f.epilogue, sums, layout, rows, columns, batch_.first_expert + item.e, p.first + row, j,
          p.c + row * p.c_stride + j, p.c_stride);
  }

  const Batch<P>& batch_;
  const Epilogue<T>& epilogue_;
  const ProductSchedule<P>& schedule_;
  const ProductMemory<P>& memory_;
  T* const packed_;
  Wave<WorkItem> wave_;
  T* const workers_;
};

// run() is defined outside the class, because it would otherwise be inline, and an optimising compiler would compile it
// in each source file in spite of `extern template` (see primitives.hpp).
template <class P>
template <class Context>
void Product<P>::run(Context& ctx, const Batch<P>& batch, const Epilogue<SumOf<P>>& epilogue, Index packed_bytes) {
  if (batch.most_rows() == 0 || batch.all.columns == 0) return;
  AmxTiles<P>::permit();
  const auto mark = ctx.mark();
  const ProductSchedule<P> schedule(batch, epilogue.stores, ctx.threads_for([&] { return batch.nanoseconds(); }));
  const ProductMemory<P> memory(batch, ctx.threads(), packed_bytes / static_cast<Index>(sizeof(SumOf<P>)));
  Product(ctx, batch, epilogue, schedule, memory).run();
}

template <class P>
template <class Context>
void Product<P>::reserve(Context& ctx, const Batch<P>& batch, const Epilogue<SumOf<P>>& epilogue) {
  if (batch.most_rows() == 0 || batch.all.columns == 0) return;
  const ProductSchedule<P> schedule(batch, epilogue.stores, 1);
  const ProductMemory<P> memory(batch, ctx.threads(), tuning.packed_bytes / static_cast<Index>(sizeof(SumOf<P>)));
  Product(ctx, batch, epilogue, schedule, memory);
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
