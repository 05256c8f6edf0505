#pragma once

#include <cstdint>

#include "gatefold/core/types.hpp"

/// Tile sizes of the matrix products of float and double. The sizes are compile-time constants, and a launch chooses
/// one of the tile shapes. The choice changes the speed, but never a result.
namespace gatefold::detail_::device {

/// Sizes of a tile of a product. A thread block computes rows × columns values of c, with `depth` products of every sum
/// at a time. A warp has 8 × 4 threads. A thread has row_parts × column_parts patches of 4 × 4 values.
/// @tparam Whole   whether all groups of four values of the factors must be complete and aligned
/// @tparam Blocks  the number of blocks that should fit a multiprocessor; it limits the registers of a thread
template <int Rows, int Columns, int Depth, int RowParts, int ColumnParts, bool Whole, int Blocks>
struct TileShape {
  using Shape = TileShape;
  static constexpr int rows = Rows, columns = Columns, depth = Depth;
  static constexpr int row_parts = RowParts, column_parts = ColumnParts, blocks = Blocks;
  static constexpr bool whole = Whole;
  // The device counts as busy if the number of thread blocks is at least this many tenths of the blocks that fit the
  // device at a time.
  static constexpr int tenths = blocks > 2 ? 5 : 9;
  static constexpr int patch = 4, lane_rows = 8, lane_columns = 4;
  static constexpr int warp_rows = row_parts * patch * lane_rows, warp_columns = column_parts * patch * lane_columns;
  static constexpr int warps_down = rows / warp_rows, warps_across = columns / warp_columns;
  static constexpr int threads = warps_down * warps_across * 32;

  static_assert(rows % warp_rows == 0 && columns % warp_columns == 0, "gatefold: warps must tile the block");
};

/// Tile shapes for products with many, some or few tiles. FewTiles is also used for factors with groups of four values
/// that are incomplete or not aligned. If a product has two result matrices (a gated unit), a thread keeps the sums of
/// both.
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
/// The tile shape of products with weights of 8 or 4 bits. With 4 blocks, ptxas spills registers if there are two
/// result matrices.
using QuantisedTiles = TileShape<32, 64, 16, 1, 1, false, 3>;

/// Returns how many thread blocks of a kernel must fit a multiprocessor at a time, which limits the registers of a
/// thread. The number is Shape::blocks, or one less (but at least 1) if ptxas would otherwise spill registers:
///
/// - on Blackwell and newer devices, for all blocks;
/// - on sm_90, for blocks that stay resident and keep the sums of two matrices, if Shape::blocks is more than 2 and
///   Shape::whole is true;
/// - on sm_8x, for blocks that stay resident, if they keep the sums of two matrices or if Shape::blocks is 2;
/// - on Turing, for all blocks that stay resident. Turing has less shared memory, so fewer blocks fit in any case.
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

/// Returns the number of thread blocks with this tile shape that fit a device at a time.
template <class Shape>
constexpr Index blocks_at_once(int multiprocessors) {
  return Index(Shape::blocks) * multiprocessors;
}

/// A device runs the thread blocks of a kernel in rounds of as many blocks as fit at a time. With at least this many
/// rounds, it costs little that the last round does not fill the device.
inline constexpr Index kManyRounds = 12;

/// Returns whether `tiles` tiles keep most of a device busy. If not, the product should use smaller tiles.
template <class Shape>
constexpr bool fills_device(Index tiles, int multiprocessors) {
  return tiles * 10 >= blocks_at_once<Shape>(multiprocessors) * Shape::tenths;
}

}  // namespace gatefold::detail_::device
