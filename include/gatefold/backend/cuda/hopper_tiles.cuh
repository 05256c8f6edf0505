#pragma once

#include <cstdint>

#include "gatefold/backend/cuda/row_tile.cuh"
#include "gatefold/backend/cuda/tensor_map.cuh"
#include "gatefold/backend/cuda/warpgroup.cuh"
#include "gatefold/core/types.hpp"

/// The tiles that a thread block of the Hopper kernel (hopper_product.cuh) computes, their order, and the ring buffer
/// in shared memory through which the factors pass.
namespace gatefold::detail_::device {

/// Tile sizes of the Hopper kernel. A thread block computes 128 × 256 sums at a time: 256 columns of one result matrix,
/// or 128 columns of each of two.
struct HopperTile {
  static constexpr int rows = 128, columns = 256, depth = 64, stages = 4;
  static constexpr int groups = 2, group_rows = rows / groups, threads = (groups + 1) * 128;
  static constexpr int a_boxes = rows / kBoxRows, b_boxes = columns / kBoxRows;
  static constexpr int stage_bytes = (a_boxes + b_boxes) * kBoxBytes;
  // Shared memory through which sums pass to the epilogue. Each warp writes eight rows of 64 columns at a time. The
  // rows are padded to avoid bank conflicts.
  static constexpr int run_columns = 64, run_pitch = run_columns + 8, run_values = 8 * run_pitch;
  static constexpr int ring = 0, staged = ring + stages * stage_bytes, barriers = staged + groups * 4 * run_values * 4;
  // The last 1024 bytes allow the ring to begin at a multiple of 1024 bytes.
  static constexpr int bytes = barriers + 2 * stages * 8 + 1024;
  static_assert(bytes <= 227 * 1024, "gatefold: the tiles need more shared memory than a block has");
};

/// The tile of a product that a thread block computes next.
struct HopperWork {
  int expert;  // −1: no tile is left
  // `first` is the number of the tile's first row in c. `rows` is the number of rows from there to the end of the
  // expert's part of c.
  int first, rows;
  int column;        // first column in c
  int a_row, b_row;  // the tile's first line in each factor (row of a, column of b)
  int depth;         // number of products in each sum of the tile
  int depth_row;     // first slot of the expert if the product sums over slots, else 0
};

/// Finds tile number n of a product. All lanes of a warp call `work` together.
template <bool SlotsAreDepth, int Matrices>
struct HopperTiles {
  const Index* offsets;
  int experts, rows, columns;  // rows: used only if the product sums over slots
  // Used only if SlotsAreDepth is false. `depth` is the inner dimension: the number of terms of each dot product. If a
  // result is the sum of several matrix products, `depth_each` is the inner dimension of one product, rounded up to
  // whole tiles, and `depth` is depth_each times the number of products.
  int depth = 0, depth_each = 1;

  __device__ HopperWork work(int n) const {
    constexpr int columns_each = HopperTile::columns / Matrices;
    const int column_tiles = divide_up(columns, columns_each), column = n % column_tiles * columns_each;
    if constexpr (SlotsAreDepth) {
      const int row_tiles = divide_up(rows, HopperTile::rows), expert = n / (column_tiles * row_tiles);
      if (expert >= experts) return {-1};
      const int row = n / column_tiles % row_tiles * HopperTile::rows, slot = static_cast<int>(offsets[expert]);
      return {
          expert, expert * rows + row, rows - row, column, row, column, static_cast<int>(offsets[expert + 1]) - slot,
          slot};
    } else {
      const RowTile tile = find_row_tile(offsets, experts, HopperTile::rows, n / column_tiles);
      if (tile.expert < 0) return {-1};
      const int first = static_cast<int>(offsets[tile.expert] + tile.row);
      return {static_cast<int>(tile.expert),
              first,
              static_cast<int>(offsets[tile.expert + 1]) - first,
              column,
              first,
              column,
              depth,
              0};
    }
  }
};

/// A thread's position in the ring buffer of its thread block: the current stage (the memory for one tile of each
/// factor), and the phase, which changes between 0 and 1 after each round through all stages. Each stage has two
/// barriers. `full` completes a phase when the copies into the stage have arrived. `empty` completes a phase when all
/// multiplying warps have finished reading the stage.
class HopperRing {
 public:
  __device__ explicit HopperRing(std::uint32_t shared) : shared_(shared) {}

  /// Initialises the barriers of all stages of the ring. One thread calls it.
  __device__ static void init(std::uint32_t shared) {
    for (int s = 0; s < HopperTile::stages; ++s) {
      Barrier{shared + HopperTile::barriers + 8 * s}.init(1);
      Barrier{shared + HopperTile::barriers + 8 * (HopperTile::stages + s)}.init(HopperTile::groups * 4);
    }
    fence_barrier_init();
  }
  __device__ std::uint32_t tile() const { return shared_ + HopperTile::ring + stage_ * HopperTile::stage_bytes; }
  __device__ Barrier full() const { return {shared_ + HopperTile::barriers + 8 * stage_}; }
  __device__ Barrier empty() const { return empty(stage_); }
  __device__ Barrier empty(int stage) const {
    return {shared_ + HopperTile::barriers + 8 * (HopperTile::stages + stage)};
  }
  __device__ int stage() const { return stage_; }
  __device__ int phase() const { return phase_; }
  __device__ void next() {
    if (++stage_ < HopperTile::stages) return;
    stage_ = 0;
    phase_ ^= 1;
  }

 private:
  std::uint32_t shared_;
  int stage_ = 0, phase_ = 0;
};

}  // namespace gatefold::detail_::device
