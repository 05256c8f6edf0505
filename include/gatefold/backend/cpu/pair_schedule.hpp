#pragma once

#include <algorithm>

#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/block_product.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/weight_path.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// Decides how ProductPair computes each expert, from the numbers of rows and before any work is done. Also computes
/// the largest memory that a ProductPair can need, only from the sizes.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Chooses the number of threads, the blocks of rows, and the path of each expert's weights.
template <class P>
class PairSchedule {
 public:
  static constexpr bool packs = on_amx<P>;                      // only the matrix unit cannot read weights in place
  static constexpr Index most_skinny_rows = 4 * Tile<P>::rows;  // most rows of an expert whose chunks can be tasks

  PairSchedule(const PairBatch<P>& batch, int threads) : b_(batch), threads_(threads) {
    Index tiles = 0, most_tiles = 0;
    for (Index e = 0; e < b_.experts; ++e) {
      const Index of_expert = divide_up(b_.rows(e), Tile<P>::rows);
      tiles += of_expert;
      most_tiles = std::max(most_tiles, of_expert);
    }
    if (b_.work(b_.used_slots()) < tuning.serial_work) threads_ = 1;
    block_tiles_ = std::min(largest_block(b_), std::max<Index>(most_tiles, 1));
    // Blocks are halved if larger blocks would leave threads without work.
    const Index least = tuning.pair_tiles_each * threads_;
    while (threads_ > 1 && block_tiles_ > 1 && tiles < least * block_tiles_) block_tiles_ /= 2;
    if (threads_ > 1 && tiles < least) skinny_rows_ = most_skinny_rows;
  }

  int threads() const { return threads_; }
  /// Returns the number of tasks that share the rows of an expert. Returns 0 if there are so few rows that chunks of
  /// `hidden` are tasks instead.
  Index row_blocks(Index rows) const {
    return rows <= skinny_rows_ ? 0 : divide_up(divide_up(rows, Tile<P>::rows), block_tiles_);
  }
  /// Returns the path of the weights of an expert with `rows` rows, at least one.
  WeightPath path(Index rows) const {
    if (b_.prepacked()) return WeightPath::prepacked;
    return packs && row_blocks(rows) > 1 ? WeightPath::by_call : WeightPath::by_task;
  }

  /// Returns the largest number of tiles in a block of rows, in any routing of a batch of these sizes.
  static Index largest_block(const PairBatch<P>& b) {
    const Index row_size = (b.blocks() + 1 + b.ups) * Tile<P>::stride + b.padded_columns();
    return std::clamp<Index>(tuning.cached_size / (row_size * Tile<P>::rows), 2, tuning_of<P>.pair_tiles);
  }

 private:
  const PairBatch<P>& b_;
  int threads_;
  Index block_tiles_ = 1, skinny_rows_ = Tile<P>::rows;
};

/// The scratch of a ProductPair in elements, computed only from sizes. No routing of the same number of slots needs
/// more, so later calls reuse the memory of the first call.
template <class P>
struct PairMemory {
  Index packed;  // packed weights of experts with WeightPath::by_call; if not all fit, they are packed in waves
  // number of rows of skinny experts (their chunks are tasks) whose sums are in memory at the same time; other rows are
  // computed in later waves
  Index skinny_rows;
  int threads;
  Index a, hidden, first, sums, panels;  // for each thread; `first` is needed for each matrix of the first product

  PairMemory(const PairBatch<P>& b, int most_threads, Index budget) {
    using S = PairSchedule<P>;
    const Index slots = b.most_slots(), tiles = std::max<Index>(divide_up(slots, Tile<P>::rows), 1);
    threads = b.work(slots) < tuning.serial_work ? 1 : most_threads;
    // Only experts with at least two tiles of rows share packed weights between tasks.
    const Index sharing = b.prepacked() || !S::packs ? 0 : std::min(b.experts, slots / (Tile<P>::rows + 1));
    packed = std::min(sharing * b.packed_size(), std::max(budget, b.packed_size()));

    const Index of_row = b.chunks() * b.padded_columns();
    const Index most =
        std::max(b.experts * Tile<P>::rows, threads > 1 ? tuning.pair_tiles_each * threads * Tile<P>::rows : 0);
    skinny_rows = std::min({slots, most, std::max(budget / std::max<Index>(of_row, 1), S::most_skinny_rows)});

    const Index rows =
        std::min(std::max(S::largest_block(b), divide_up(S::most_skinny_rows, Tile<P>::rows)), tiles) * Tile<P>::rows;
    a = rows * b.blocks() * Tile<P>::stride;
    hidden = rows * Tile<SumOf<P>>::stride;  // the size before the values are rounded
    sums = rows * std::max(b.padded_columns(), Tile<P>::depth);
    first = rows * Tile<P>::depth;
    panels = std::max(BlockProduct<P>::memory(S::packs, b.depth, b.hidden),
                      BlockProduct<P>::memory(S::packs, b.hidden, b.columns));
  }

  Index of_thread(Index ups) const { return a + hidden + ups * first + sums + panels; }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
