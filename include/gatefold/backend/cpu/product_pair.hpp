#pragma once

#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/block_product.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/pair_schedule.hpp"
#include "gatefold/backend/cpu/pair_task.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/schedule.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// Computes the two matrix products of an MLP for all experts. The result of the first product, `hidden`, is used while
/// it is in the cache. For each slot s (row of work) of expert e:
///
///     hidden[s] = epilogue(a[row(s)] up_e),   c[s] = last(hidden[s] down_e)                              (1)
///
/// A task computes both products for a block of rows of one expert, one chunk of Tile::depth columns of `hidden` at a
/// time. Such a chunk is one chain of the second product's sum (tile.hpp), so all bits are the same as with two
/// separate products.
///
/// An expert is skinny if all its rows are in one register tile. If the tiles of all experts are too few to give work
/// to all threads, an expert with up to four tiles is skinny too. The chunks of a skinny expert are separate tasks, and
/// their sums are added in order at the end.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

template <class P>
class ProductPair {
  using T = SumOf<P>;

 public:
  /// Computes eq. (1), the two products of an MLP, for all experts of a batch.
  /// @param hidden, last  the epilogues (functions applied to each sum) of the first and the second product
  /// @order  the order of two separate products (product.hpp)
  /// @cost   2·S·hidden·(ups·depth + columns) flop for S slots and `ups` matrices in the first product; scratch as in
  ///         PairMemory, which depends on the sizes of the batch and not on the routing
  template <class Context>
  static void run(Context& ctx, const PairBatch<P>& batch, const HiddenEpilogue<T>& hidden, const Epilogue<T>& last,
                  Index packed_bytes = tuning.packed_bytes);

 private:
  static constexpr Index kColumns = Tile<P>::columns;

  struct WorkItem {
    Index e, first, rows;
    // Number of tasks, each of which computes a block of rows. If it is 0, each task computes a chunk of hidden columns
    // instead.
    Index row_blocks;
    WeightPath path;
    // Packed weights of this expert that its tasks share: the matrices `up`, then `down`. Null if the tasks share none.
    T* packed;
    T* partial;  // [chunks][rows, padded columns] sums, if each task computes a chunk of hidden columns
    Index begin = 0;

    RowBlock slots() const {
      RowBlock all = RowBlock::all<P>(rows);
      all.first = first;
      return all;
    }
  };

  template <class Context>
  ProductPair(Context& ctx, const PairBatch<P>& batch, const HiddenEpilogue<T>& hidden, const Epilogue<T>& last,
              const PairSchedule<P>& schedule, const PairMemory<P>& memory)
      : b_(batch),
        epilogue_(hidden),
        last_(last),
        schedule_(schedule),
        memory_(memory),
        packed_(ctx.template scratch<T>(memory.packed).data()),
        partial_(ctx.template scratch<T>(memory.skinny_rows * b_.chunks() * b_.padded_columns()).data()),
        workers_(ctx.template scratch<T>(memory.threads, memory.of_thread(b_.ups)).data()),
        wave_(ctx.template scratch<WorkItem>(b_.experts).data(), ctx.executor(), schedule.threads()) {}

  PairWorker<T> worker(int index) const {
    T* const a = workers_ + index * memory_.of_thread(b_.ups);
    T *const hidden = a + memory_.a, *const first = hidden + memory_.hidden,
             *const sums = first + b_.ups * memory_.first;
    return {a, hidden, first, sums, sums + memory_.sums};
  }
  PairWeights<P> weights(const WorkItem& item) const { return {b_, item.e, item.packed}; }

  // Computes the experts in groups (waves), one wave after the other. A wave ends if the memory for packed weights, or
  // for the sums of skinny experts (experts with few rows), is full.
  void run() {
    Index packed = 0, skinny_rows = 0;
    for (Index e = 0; e < b_.experts; ++e) {
      const Index rows = b_.rows(e);
      if (rows == 0) continue;
      const WeightPath path = schedule_.path(rows);
      const Index row_blocks = schedule_.row_blocks(rows), skinny = row_blocks == 0 ? rows : 0,
                  size = path == WeightPath::by_call ? b_.packed_size() : 0;
      if (packed + size > memory_.packed || skinny_rows + skinny > memory_.skinny_rows) {
        run_wave();
        packed = skinny_rows = 0;
      }
      GATEFOLD_ASSERT(packed + size <= memory_.packed && skinny_rows + skinny <= memory_.skinny_rows,
                      "grouped product: the memory for packed weights is too small");
      wave_.add({e, b_.offsets[e], rows, row_blocks, path, size > 0 ? packed_ + packed : nullptr,
                 partial_ + skinny_rows * b_.chunks() * b_.padded_columns()});
      packed += size;
      skinny_rows += skinny;
    }
    run_wave();
  }

  void run_wave() {
    wave_.each_part([&](const WorkItem& item) { return item.path == WeightPath::by_call ? weights(item).size() : 0; },
                    [&](const WorkItem& item, Index i, int) { weights(item).pack(i); });
    wave_.each_part([&](const WorkItem& item) { return item.row_blocks == 0 ? b_.chunks() : item.row_blocks; },
                    [&](const WorkItem& item, Index i, int index) {
                      item.row_blocks > 0 ? compute(item, i, worker(index)) : compute_chunk(item, i, worker(index));
                    });
    wave_.each_part([](const WorkItem& item) { return Index(item.row_blocks == 0); },
                    [&](const WorkItem& item, Index, int) { add_chunks(item); });
    wave_.clear();
  }

  void compute(const WorkItem& item, Index row_block, const PairWorker<T>& w) const {
    const RowBlock rows = item.slots().block(row_block, item.row_blocks);
    const Sums<T> sums = Sums<T>::panels(w.sums, rows.count);
    const PairWeights<P> all = weights(item);
    PairTask<P> task(b_, epilogue_, item.e, rows, all, all.size(), w);
    for (Index chunk = 0; chunk < b_.chunks(); ++chunk) task.run(chunk, chunk > 0, sums);
    finish(item, rows, sums.data, sums.layout);
  }

  T* sums_of_chunk(const WorkItem& item, Index chunk) const {
    return item.partial + chunk * item.rows * b_.padded_columns();
  }

  void compute_chunk(const WorkItem& item, Index chunk, const PairWorker<T>& w) const {
    const PairWeights<P> all = weights(item);
    PairTask<P> task(b_, epilogue_, item.e, item.slots(), all, (chunk + 1) * all.of_chunk(), w);
    task.run(chunk, false, Sums<T>::panels(sums_of_chunk(item, chunk), item.rows));
  }

  // Adds n values of `from` to `to`. n is a multiple of the number of elements in a register.
  static void add_sums(Index n, const T* from, T* to) {
    using V = Register<T>;
    for (Index i = 0; i < n; i += V::size) (V::load(to + i) + V::load(from + i)).store(to + i);
  }
  void add_chunks(const WorkItem& item) const {
    const Index width = b_.padded_columns();
    for (Index chunk = 1; chunk < b_.chunks(); ++chunk)
      add_sums(item.rows * width, sums_of_chunk(item, chunk), item.partial);
    finish(item, item.slots(), item.partial, SumsLayout::panels(item.rows, kColumns));
  }

  void finish(const WorkItem& item, const RowBlock& rows, const T* sums, SumsLayout layout) const {
    last_.run(last_.epilogue, sums, layout, rows.count, b_.columns, item.e, rows.first, 0,
              b_.c + rows.first * b_.columns, b_.columns);
  }

  const PairBatch<P>& b_;
  const HiddenEpilogue<T>& epilogue_;
  const Epilogue<T>& last_;
  const PairSchedule<P>& schedule_;
  const PairMemory<P>& memory_;
  T *const packed_, *const partial_, *const workers_;
  Wave<WorkItem> wave_;
};

// run() is defined outside the class, because it would otherwise be inline, and an optimising compiler would compile it
// in each source file in spite of `extern template` (see primitives.hpp).
template <class P>
template <class Context>
void ProductPair<P>::run(Context& ctx, const PairBatch<P>& batch, const HiddenEpilogue<SumOf<P>>& hidden,
                         const Epilogue<SumOf<P>>& last, Index packed_bytes) {
  if (batch.columns == 0 || batch.most_slots() == 0) return;
  AmxTiles<P>::permit();
  const auto mark = ctx.mark();
  const PairSchedule<P> schedule(batch, ctx.threads_for([&] { return batch.nanoseconds(); }));
  const PairMemory<P> memory(batch, ctx.threads(), packed_bytes / static_cast<Index>(sizeof(SumOf<P>)));
  ProductPair(ctx, batch, hidden, last, schedule, memory).run();
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
