#pragma once

#include <cstdint>

#include "gatefold/core/types.hpp"

/// How the tiled product is cut: plain compile-time values, which change speed and never a result.
namespace gatefold::detail_::device {

/// A block of threads computes rows × columns of c, `depth` products of every sum at a time; a warp 8 × 4 threads of
/// it, a thread row_parts × column_parts patches of 4 × 4.
/// @tparam Whole   whether it is for operands all of whose fours are whole and aligned
/// @tparam Blocks  how many blocks should fit a multiprocessor: bounds the registers of a thread
template <int Rows, int Columns, int Depth, int RowParts, int ColumnParts, bool Whole, int Blocks>
struct TileShape {
  using Shape = TileShape;
  static constexpr int rows = Rows, columns = Columns, depth = Depth;
  static constexpr int row_parts = RowParts, column_parts = ColumnParts, blocks = Blocks;
  static constexpr bool whole = Whole;
  static constexpr int tenths = blocks > 2 ? 5 : 9;  // of the blocks a device has room for, that are enough
  static constexpr int patch = 4, lane_rows = 8, lane_columns = 4;
  static constexpr int warp_rows = row_parts * patch * lane_rows, warp_columns = column_parts * patch * lane_columns;
  static constexpr int warps_down = rows / warp_rows, warps_across = columns / warp_columns;
  static constexpr int threads = warps_down * warps_across * 32;

  static_assert(rows % warp_rows == 0 && columns % warp_columns == 0, "gatefold: warps must tile the block");
};

/// For many tiles, for some, and for few or any operands. With two first matrices (a gated unit) a thread keeps both
/// sums.
template <class T, int Matrices>
struct ManyTiles;
template <>
struct ManyTiles<float, 1> : TileShape<128, 128, 16, 2, 2, true, 2> {};
template <>
struct ManyTiles<float, 2> : TileShape<128, 64, 16, 2, 1, true, 2> {};
template <class T, int Matrices>
struct SomeTiles;
template <>
struct SomeTiles<float, 1> : TileShape<64, 128, 8, 2, 2, true, 4> {};
template <>
struct SomeTiles<float, 2> : TileShape<64, 64, 8, 2, 1, true, 4> {};
template <>
struct SomeTiles<double, 1> : TileShape<64, 64, 8, 1, 2, true, 2> {};
template <>
struct SomeTiles<double, 2> : TileShape<64, 32, 8, 1, 1, true, 2> {};
template <int Matrices>
struct ManyTiles<double, Matrices> : SomeTiles<double, Matrices> {};
template <class T, int Matrices>
struct FewTiles : TileShape<32, 64, 16, 1, 1, false, sizeof(T) == 4 ? 4 : 2> {};

/// Blocks that a kernel promises to leave room for: one fewer where ptxas needs more registers than are left to it, and
/// would spill. It does for blocks that stay, on sm_90 only where they keep the sums of two matrices, and from
/// Blackwell on for the others too. Turing's shared memory holds fewer in any case.
template <class Shape, int Matrices, bool Stay>
constexpr int promised_blocks() {
  constexpr int fewer = Shape::blocks > 1 ? Shape::blocks - 1 : 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  return fewer;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return Stay ? fewer : Shape::blocks;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
  return Stay && (Shape::blocks == 2 || Matrices == 2) ? fewer : Shape::blocks;
#else
  return Stay && Matrices == 2 && Shape::blocks > 2 && Shape::whole ? fewer : Shape::blocks;
#endif
}

/// How many blocks of a shape a device of its kind has room for at a time.
template <class Shape>
constexpr Index blocks_at_once(int multiprocessors) {
  return Index(Shape::blocks) * multiprocessors;
}

/// Rounds of blocks from which on a last one that is not full is a small part.
inline constexpr Index kManyRounds = 12;

/// Whether so many tiles keep most of a device busy; where not, smaller ones do.
template <class Shape>
constexpr bool fills_device(Index tiles, int multiprocessors) {
  return tiles * 10 >= blocks_at_once<Shape>(multiprocessors) * Shape::tenths;
}

}  // namespace gatefold::detail_::device
