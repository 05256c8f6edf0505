#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/weight_path.hpp"
#include "gatefold/core/types.hpp"

/// What ProductPair does with each expert, decided from the counts of rows before any work is done, and how much memory it
/// may come to need, told by the sizes alone.
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
  Index slots = 0;                    // at most, however many are routed here; fewer than there are count for nothing

  Index blocks() const { return std::max<Index>(divide_up(depth, Tile<T>::depth), 1); }
  Index chunks() const { return std::max<Index>(divide_up(hidden, Tile<T>::depth), 1); }
  Index up_size() const { return PackedMatrix<T>::size(depth, hidden); }
  Index down_size() const { return PackedMatrix<T>::size(hidden, columns); }
  Index packed_size() const { return ups * up_size() + down_size(); }
  Index padded_columns() const { return PackedMatrix<T>::padded(columns); }
  bool frozen() const { return static_cast<bool>(packed_down); }
  bool transposed() const { return down.lines_are_rows || up[0].lines_are_rows || (ups > 1 && up[1].lines_are_rows); }
  Index work(Index rows) const { return rows * hidden * (ups * depth + columns); }  // multiply-adds
  Index rows(Index e) const { return offsets[e + 1] - offsets[e]; }
  Index used_slots() const { return experts > 0 ? offsets[experts] - offsets[0] : 0; }
  Index most_slots() const { return std::max(slots, used_slots()); }
};

/// How many threads, which blocks, and by which path each expert's weights come.
template <class T>
class PairSchedule {
 public:
  static constexpr Index tile_rows = Tile<T>::rows;
  static constexpr Index in_place_rows = 8;               // up to here weights are read in place
  static constexpr Index most_few_rows = 4 * tile_rows;   // up to here chunks may be tasks
  static constexpr Index serial_work = 1 << 18;   // multiply-adds below which waking threads costs more than it saves
  static constexpr Index block_size = 1 << 18;    // elements of a, hidden and c that a task keeps in its cache
  static constexpr Index most_block_tiles = 24;
  static constexpr Index many_tiles = 5;          // from here on the tiles of a panel pack all of the next one
  static constexpr Index packing_blocks = 3;      // so many blocks of rows of an expert may pack its weights each for itself

  PairSchedule(const PairBatch<T>& batch, int threads) : b_(batch), threads_(threads) {
    Index tiles = 0, most_tiles = 0, used_experts = 0;
    for (Index e = 0; e < b_.experts; ++e) {
      const Index of_expert = divide_up(b_.rows(e), tile_rows);
      used_experts += of_expert > 0;
      tiles += of_expert;
      most_tiles = std::max(most_tiles, of_expert);
    }
    if (b_.work(b_.used_slots()) < serial_work) threads_ = 1;
    block_tiles_ = std::min(largest_block(b_), std::max<Index>(most_tiles, 1));
    // Smaller blocks where large ones would leave threads without work.
    while (threads_ > 1 && block_tiles_ > 1 && tiles < 3 * threads_ * block_tiles_) block_tiles_ /= 2;
    if (threads_ > 1 && tiles < 3 * threads_) few_rows_ = most_few_rows;
    // Experts that a cache holds, of which every thread gets its share.
    whole_experts_ = b_.packed_size() <= block_size && used_experts >= 4 * threads_ && most_tiles * 2 * threads_ <= tiles;
  }

  int threads() const { return threads_; }
  /// Tasks that share an expert's rows; 0: few rows, whose chunks of `hidden` are tasks.
  Index row_blocks(Index rows) const {
    return rows <= few_rows_ ? 0 : divide_up(divide_up(rows, tile_rows), block_tiles_);
  }
  /// How the weights of an expert with so many rows, at least one, come.
  WeightPath path(Index rows) const {
    if (b_.frozen()) return WeightPath::frozen;
    const Index blocks = row_blocks(rows);
    if (blocks == 0)
      return rows <= std::min(in_place_rows, few_rows_) && !b_.transposed() ? WeightPath::in_place : WeightPath::by_task;
    // Then the blocks of an expert with several have at least many_tiles tiles each.
    const bool packs_on_the_way = !b_.down.lines_are_rows && block_tiles_ >= 2 * many_tiles;
    if (blocks > (packs_on_the_way ? packing_blocks : 1))
      return whole_experts_ ? WeightPath::by_expert : WeightPath::by_call;
    const bool every_block_has_many = divide_up(rows, tile_rows) / blocks >= many_tiles;
    return every_block_has_many && !b_.transposed() ? WeightPath::on_the_way : WeightPath::by_task;
  }

  /// Tiles of a block of rows at most, in any routing of a batch of these sizes.
  static Index largest_block(const PairBatch<T>& b) {
    const Index row_size = (b.blocks() + 1 + b.ups) * Tile<T>::stride + b.padded_columns();
    return std::clamp<Index>(block_size / (row_size * tile_rows), 2, most_block_tiles);
  }

 private:
  const PairBatch<T>& b_;
  int threads_;
  Index block_tiles_ = 1, few_rows_ = tile_rows;
  bool whole_experts_ = false;
};

/// Elements of scratch, by sizes alone: no routing of as many slots needs more, and a later call takes what the first one took.
template <class T>
struct PairMemory {
  Index packed;    // of experts that go by_call; what does not fit is packed in waves
  Index few_rows;  // rows of experts with few that have their sums, and their hidden, at a time; the others wait
  int threads;
  // Of each thread.
  Index own, a, hidden, sums, first;
  static constexpr Index panels = Tile<T>::depth * Tile<T>::depth;
  // Columns of hidden at most that are computed from weights in place, and how far apart their rows are.
  static constexpr Index wide = 8 * Tile<T>::depth, wide_stride = wide + Tile<T>::stride - Tile<T>::depth;

  PairMemory(const PairBatch<T>& b, int most_threads, Index budget) {
    using S = PairSchedule<T>;
    const Index slots = b.most_slots(), tiles = std::max<Index>(divide_up(slots, S::tile_rows), 1);
    threads = b.work(slots) < S::serial_work ? 1 : most_threads;
    // Weights are shared from the second tile on.
    const Index sharing = b.frozen() ? 0 : std::min(b.experts, slots / (S::tile_rows + 1));
    packed = std::min(sharing * b.packed_size(), std::max(budget, b.packed_size()));

    const Index of_row = b.chunks() * (b.padded_columns() + (reads_in_place(b) ? Tile<T>::stride : 0));
    const Index few = std::max(b.experts * S::tile_rows, threads > 1 ? 3 * threads * S::tile_rows : 0);
    few_rows = std::min({slots, few, std::max(budget / std::max<Index>(of_row, 1), S::most_few_rows)});

    own = b.packed_size() <= S::block_size && b.experts >= 4 && sharing > 0 ? b.packed_size() : 0;
    const Index rows = std::max(std::min(S::largest_block(b), tiles) * S::tile_rows, S::most_few_rows);
    a = rows * b.blocks() * Tile<T>::stride;
    hidden = rows * Tile<T>::stride;
    sums = rows * std::max(b.padded_columns(), Tile<T>::depth);
    first = std::max(rows * Tile<T>::depth, reads_in_place(b) ? S::in_place_rows * wide_stride : 0);
  }

  static bool reads_in_place(const PairBatch<T>& b) { return !b.frozen() && !b.transposed(); }
  Index of_thread(Index ups) const { return own + a + hidden + ups * first + sums + panels; }
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
