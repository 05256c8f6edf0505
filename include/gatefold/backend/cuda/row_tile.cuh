#pragma once

#include <cstdint>

#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// Selects the experts that a kernel processes: experts with more than `above` and at most `up_to` rows.
struct RowRange {
  Index above = 0, up_to = INT64_MAX;
  __device__ Index tiles(Index count, Index rows) const {
    return above < count && count <= up_to ? divide_up(count, rows) : 0;
  }
};

/// The position of a tile of rows: its expert, and its first row, counted from the first row of the expert.
struct RowTile {
  Index expert = -1, row = 0;
};
/// Returns the position of tile number `tile`. The rows of each expert in `range` are divided into tiles of `rows`
/// rows, and the tiles are numbered expert by expert. If `tile` is not less than the number of tiles, the expert of the
/// result is −1. All lanes of a warp call this function together, independently of other warps.
__device__ inline RowTile find_row_tile(const Index* offsets, Index experts, Index rows, Index tile,
                                        const RowRange& range = {}) {
  constexpr unsigned all = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  for (Index first = 0; first < experts; first += 32) {
    const Index e = first + lane;
    const Index tiles = e < experts ? range.tiles(offsets[e + 1] - offsets[e], rows) : 0;
    Index up_to = tiles;  // number of tiles of the experts from `first` to e
    for (int distance = 1; distance < 32; distance *= 2) {
      const Index before = __shfl_up_sync(all, up_to, distance);
      if (lane >= distance) up_to += before;
    }
    const unsigned reached = __ballot_sync(all, tile < up_to);
    if (reached) {
      const int found = __ffs(static_cast<int>(reached)) - 1;
      return {first + found, (tile - __shfl_sync(all, up_to - tiles, found)) * rows};
    }
    tile -= __shfl_sync(all, up_to, 31);
  }
  return {};
}

/// Returns the number of tiles of `rows` rows of all experts in `range`. All lanes of a warp call it together,
/// independently of other warps.
__device__ inline Index count_row_tiles(const Index* offsets, Index experts, Index rows, const RowRange& range = {}) {
  Index tiles = 0;
  for (Index e = threadIdx.x % 32; e < experts; e += 32) tiles += range.tiles(offsets[e + 1] - offsets[e], rows);
  for (int distance = 16; distance > 0; distance /= 2) tiles += __shfl_xor_sync(0xffffffffu, tiles, distance);
  return tiles;
}

}  // namespace gatefold::detail_::device
