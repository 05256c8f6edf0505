#pragma once

#include <algorithm>

#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/block_product.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// Decides how ProductPair, which computes the two matrix products of an MLP, divides the work of each expert. The
/// decision depends on the number of rows of each expert and is made before any work is done. Also computes the largest
/// memory that a ProductPair can need for any routing with the same number of slots.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Chooses the number of threads and the sizes of blocks of rows. For each expert, also chooses how its weights reach
/// the innermost loop (WeightPath): packed, or read in place.
template <class P>
class PairSchedule {
 public:
  // Whether tasks must pack weights. Only the matrix unit (AMX) needs this; code for vector registers can read weights
  // in place.
  static constexpr bool packs = on_amx<P>;
  // The largest number of rows of a skinny expert. The tasks of such an expert are chunks of its hidden columns, not
  // blocks of rows.
  static constexpr Index most_skinny_rows = 4 * Tile<P>::rows;

  PairSchedule(const PairBatch<P>& batch, int threads) : b_(batch), threads_(threads) {
    Index tiles = 0, most_tiles = 0;
    for (Index e = 0; e < b_.experts; ++e) {
      const Index of_expert = divide_up(b_.rows(e), Tile<P>::rows);
      tiles += of_expert;
      most_tiles = std::max(most_tiles, of_expert);
    }
    if (b_.work(b_.used_slots()) < tuning.serial_work) threads_ = 1;
    block_tiles_ = std::min(largest_block(b_), std::max<Index>(most_tiles, 1));
    // Halves the blocks of rows if there would be too few of them to keep all threads busy.
    const Index least = tuning.pair_tiles_each * threads_;
    while (threads_ > 1 && block_tiles_ > 1 && tiles < least * block_tiles_) block_tiles_ /= 2;
    if (threads_ > 1 && tiles < least) skinny_rows_ = most_skinny_rows;
  }

  int threads() const { return threads_; }
  /// Returns the number of tasks into which the rows of an expert are divided. Returns 0 if the expert has so few rows
  /// that its tasks are chunks of the hidden columns instead.
  Index row_blocks(Index rows) const {
    return rows <= skinny_rows_ ? 0 : divide_up(divide_up(rows, Tile<P>::rows), block_tiles_);
  }
  /// Returns the way (WeightPath) in which the weights of an expert with `rows` rows reach the innermost loop: packed,
  /// or read in place. `rows` is at least 1.
  WeightPath path(Index rows) const {
    if (b_.prepacked()) return WeightPath::prepacked;
    return packs && row_blocks(rows) > 1 ? WeightPath::by_call : WeightPath::by_task;
  }

  /// Returns the largest number of register tiles (groups of rows) in a block of rows. It depends only on the sizes of
  /// the matrices, not on the routing.
  static Index largest_block(const PairBatch<P>& b) {
    const Index row_size = (b.blocks() + 1 + b.ups) * Tile<P>::stride + b.padded_columns();
    return std::clamp<Index>(tuning.cached_size / (row_size * Tile<P>::rows), 2, tuning_of<P>.pair_tiles);
  }

 private:
  const PairBatch<P>& b_;
  int threads_;
  Index block_tiles_ = 1, skinny_rows_ = Tile<P>::rows;
};

/// The sizes of the scratch memory of a ProductPair (the two matrix products of an MLP), in elements. They are computed
/// from sizes only, and are sufficient for every routing with the same number of slots. Later calls therefore reuse the
/// memory of the first call.
template <class P>
struct PairMemory {
  // Memory for packed weights that several tasks share (WeightPath::by_call). If not all of them fit, experts are
  // packed and computed in groups (waves), one group after the other.
  Index packed;
  // The largest number of rows of skinny experts whose sums are in memory at the same time. A skinny expert has few
  // rows, and its tasks are chunks of hidden columns. Other rows are computed in later waves.
  Index skinny_rows;
  int threads;
  // Sizes of the memory of each thread. `first`, for sums of the first product of the MLP, is needed once for each
  // weight matrix of that product.
  Index a, hidden, first, sums, panels;

  PairMemory(const PairBatch<P>& b, int most_threads, Index budget) {
    using S = PairSchedule<P>;
    const Index slots = b.most_slots(), tiles = std::max<Index>(divide_up(slots, Tile<P>::rows), 1);
    threads = b.work(slots) < tuning.serial_work ? 1 : most_threads;
    // The largest number of experts that have at least two register tiles of rows. Only tasks of these experts share
    // packed weights.
    const Index sharing = b.prepacked() || !S::packs ? 0 : std::min(b.experts, slots / (Tile<P>::rows + 1));
    packed = std::min(sharing * b.packed_size(), std::max(budget, b.packed_size()));

    const Index of_row = b.chunks() * b.padded_columns();
    const Index most =
        std::max(b.experts * Tile<P>::rows, threads > 1 ? tuning.pair_tiles_each * threads * Tile<P>::rows : 0);
    skinny_rows = std::min({slots, most, std::max(budget / std::max<Index>(of_row, 1), S::most_skinny_rows)});

    const Index rows =
        std::min(std::max(S::largest_block(b), divide_up(S::most_skinny_rows, Tile<P>::rows)), tiles) * Tile<P>::rows;
    a = rows * b.blocks() * Tile<P>::stride;
    // The size of the hidden values in the type of the sums, before they are rounded to the type in which they are
    // multiplied.
    hidden = rows * Tile<SumOf<P>>::stride;
    sums = rows * std::max(b.padded_columns(), Tile<P>::depth);
    first = rows * Tile<P>::depth;
    panels = std::max(BlockProduct<P>::memory(S::packs, b.depth, b.hidden),
                      BlockProduct<P>::memory(S::packs, b.hidden, b.columns));
  }

  Index of_thread(Index ups) const { return a + hidden + ups * first + sums + panels; }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
