#pragma once

#include <cstdint>

#include "gatefold/core/types.hpp"

/// How the tiled product is cut: plain compile-time values, which change speed and never a result.
namespace gatefold::device {

/// A block of threads computes rows × columns of c, `depth` products of every sum at a time; a warp 8 × 4 threads of
/// it, a thread row_parts × column_parts patches of 4 × 4.
/// @tparam Whole   whether it is for operands all of whose fours are whole and aligned
/// @tparam Blocks  how many blocks should fit a multiprocessor: bounds the registers of a thread
template <int Rows, int Columns, int Depth, int RowParts, int ColumnParts, bool Whole, int Blocks>
struct TileShape {
  using Shape = TileShape;
  static constexpr int rows = Rows, columns = Columns, depth = Depth;
  static constexpr int row_parts = RowParts, column_parts = ColumnParts, blocks = Blocks;
  static constexpr bool whole_fours = Whole;
  static constexpr int patch = 4, lane_rows = 8, lane_columns = 4;
  static constexpr int warp_rows = row_parts * patch * lane_rows, warp_columns = column_parts * patch * lane_columns;
  static constexpr int warps_down = rows / warp_rows, warps_across = columns / warp_columns;
  static constexpr int threads = warps_down * warps_across * 32;

  static_assert(rows % warp_rows == 0 && columns % warp_columns == 0, "gatefold: warps must tile the block");
  static_assert(rows * depth / 4 % threads == 0 && columns * depth / 4 % threads == 0,
                "gatefold: every thread must load the same number of fours");
};

/// For many tiles, for few, and for any operands. With two first matrices (a gated unit) a thread keeps both sums.
template <class T, int Matrices>
struct ManyTiles;
template <>
struct ManyTiles<float, 1> : TileShape<128, 128, 16, 2, 2, true, 2> {};
template <>
struct ManyTiles<float, 2> : TileShape<128, 64, 16, 2, 1, true, 2> {};
template <class T, int Matrices>
struct FewTiles;
template <>
struct FewTiles<float, 1> : TileShape<64, 128, 8, 2, 2, true, 4> {};
template <>
struct FewTiles<float, 2> : TileShape<64, 64, 8, 2, 1, true, 4> {};
template <>
struct FewTiles<double, 1> : TileShape<64, 64, 16, 1, 2, true, 2> {};
template <>
struct FewTiles<double, 2> : TileShape<64, 32, 16, 1, 1, true, 2> {};
template <int Matrices>
struct ManyTiles<double, Matrices> : FewTiles<double, Matrices> {};
template <class T, int Matrices>
struct AnyTiles : TileShape<32, 64, 16, 1, 1, false, sizeof(T) == 4 ? 4 : 2> {};

/// Blocks that a kernel promises to leave room for. From Blackwell on ptxas needs more registers for the same text and
/// would spill them.
template <class Shape>
constexpr int promised_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  return Shape::blocks > 1 ? Shape::blocks - 1 : 1;
#else
  return Shape::blocks;
#endif
}

/// How many tiles of the large shape keep a device busy to the end: two rounds of two blocks for each multiprocessor.
inline Index many_tiles(int multiprocessors) { return Index(4) * multiprocessors; }

}  // namespace gatefold::device
