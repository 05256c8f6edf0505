#pragma once

#include <cstdint>

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// The layout of a tile of bfloat16 values in shared memory. A row of the tile has 128 bytes: eight units of 16 bytes,
/// which are permuted depending on the row number. Copies and ldmatrix instructions therefore have no bank conflicts.
/// The permutation is the 128-byte swizzle of Hopper's wgmma instructions.
///
/// A line is a row of a product's first factor or a column of the second; the depth is the position in a line. With the
/// layout along_depth, row r holds 64 values of line r. With along_lines, row k holds the values of 64 lines at depth
/// k; the rows of the first 64 lines come before the rows of the next 64 lines. In a tile of only 32 lines, row r holds
/// the values at depths r and r + 32.
struct Bf16Place {
  static constexpr int depth = 64, row_bytes = 128, units = 8;
  /// Returns the offset of the 16-byte unit number `unit` of a row, in bytes from the beginning of the tile.
  GATEFOLD_HD static constexpr int at(int row, int unit) { return row * row_bytes + ((unit ^ (row & 7)) << 4); }
  /// Returns the offset in bytes of the 16-byte unit that holds the value of `line` at depth k, in a tile of `Lines`
  /// lines. The layout is along_lines: neighbouring lines are contiguous.
  template <int Lines>
  GATEFOLD_HD static constexpr int of_line(int line, int k) {
    return Lines == 32 ? at(k % 32, line / 8 | k / 32 * 4) : at(line / 64 * 64 + k, line % 64 / 8);
  }
};

/// Copies one thread's share of a matrix to shared memory, in tiles of `Lines` × Bf16Place::depth values. The copies
/// are asynchronous. Values outside of the matrix become 0.
/// @tparam Gathers  whether row i of the product's factor is row rows[i] of the matrix in memory (Bf16Matrix::rows)
template <Layout L, bool Gathers, int Lines, int Threads>
class Bf16Loader {
  static constexpr int D = Bf16Place::depth, row_step = Threads / Bf16Place::units;
  // Layout along_depth: the values of a line of the tile are contiguous in memory. A thread copies one unit of 16 bytes
  // from each of `each` lines.
  static constexpr int each = Lines / row_step;
  // Layout along_lines: `width` neighbouring lines have their values of the same depth next to each other in memory.
  // These values are `across` units of 16 bytes. For every `width` lines of the tile, a thread copies one unit at each
  // of `each_depth` depths.
  static constexpr int width = Lines < 64 ? Lines : 64, across = width / 8;
  static constexpr int each_depth = width / row_step;
  static constexpr int looked_up = L == Layout::along_depth ? each : each_depth;
  static_assert(L == Layout::along_depth ? Lines % row_step == 0 : width % row_step == 0,
                "gatefold: every thread must copy the same number of units");
  static_assert(L == Layout::along_depth || Lines == 32 || Lines % 64 == 0,
                "gatefold: Lines must be 32 or a multiple of 64");

 public:
  /// Prepares to copy tiles of the matrix `from`, beginning at line `first`. A line is a row of a product's first
  /// factor or a column of the second.
  /// @param lines  number of lines
  /// @param depth  number of values in a line; a multiple of kBf16Unit (8) if the values of a line are contiguous
  __device__ void begin(const Bf16Matrix& from, Index first, Index lines, Index depth) {
    stride_ = static_cast<int>(from.stride);
    left_ = static_cast<int>(depth);
    lines_ = lines - first < Lines ? static_cast<int>(lines - first) : Lines;
    if constexpr (L == Layout::along_depth) {
      from_ = from.data + unit() * kBf16Unit;
      if constexpr (Gathers) {
#pragma unroll
        for (int i = 0; i < each; ++i) row_[i] = row(i) < lines_ ? from.rows[first + row(i)] : 0;
      } else {
        from_ += first * from.stride;
      }
    } else {
      from_ = from.data + first + line();
      if constexpr (Gathers) {
        rows_ = from.rows;
        look_up();
      }
    }
  }

  /// Starts this thread's asynchronous copies of the next tile to shared memory.
  __device__ void load(unsigned char* to) {
    if constexpr (L == Layout::along_depth) {
      const bool inside = unit() * static_cast<int>(kBf16Unit) < left_;
#pragma unroll
      for (int i = 0; i < each; ++i)
        copy(to + Bf16Place::at(row(i), unit()), from_ + (Gathers ? row_[i] : row(i)) * Index(stride_),
             inside && row(i) < lines_);
      from_ += D;
    } else {
#pragma unroll
      for (int i = 0; i < each_depth; ++i) {
        const Bfloat16* const of_row = from_ + (Gathers ? row_[i] : depth(i)) * Index(stride_);
#pragma unroll
        for (int more = 0; more < Lines; more += width)
          copy(to + Bf16Place::of_line<Lines>(more + line(), depth(i)), of_row + more,
               depth(i) < left_ && more + line() < lines_);
      }
      if constexpr (!Gathers) from_ += Index(D) * stride_;
    }
    left_ -= D;
    // Reads the row numbers of the next tile now, so that the next load() does not wait for them.
    if constexpr (L == Layout::along_lines && Gathers) look_up();
  }

 private:
  __device__ static int unit() { return static_cast<int>(threadIdx.x) % Bf16Place::units; }
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / Bf16Place::units + i * row_step; }

  /// Returns the first of the 8 lines whose values are in this thread's units, for the layout along_lines (neighbouring
  /// lines are contiguous).
  __device__ static int line() { return unit() % across * static_cast<int>(kBf16Unit); }
  /// Returns the depth (position in the lines) of this thread's i-th unit within a tile, for the layout along_lines
  /// (neighbouring lines are contiguous).
  __device__ static int depth(int i) { return row(i) + unit() / across * width; }

  __device__ void copy(unsigned char* to, const Bfloat16* from, bool exists) const {
    __pipeline_memcpy_async(to, exists ? from : from_, 16, exists ? 0 : 16);
  }
  __device__ void look_up() {
#pragma unroll
    for (int i = 0; i < each_depth; ++i) row_[i] = depth(i) < left_ ? rows_[depth(i)] : 0;
    rows_ += D;
  }

  // State of this thread's copies. from_ is the address of this thread's 16-byte unit in the first row of the next
  // tile, or in row 0 of the matrix if rows are gathered. rows_ points to the row numbers of the tile after the next
  // one. It is used only if rows are gathered and the layout is along_lines. left_ is the number of values of a line
  // that are not copied yet. lines_ is the number of lines of a tile that exist in the matrix.
  const Bfloat16* from_;
  const Index* rows_;
  Index row_[Gathers ? looked_up : 1];
  int stride_, left_;
  int lines_;
};

}  // namespace gatefold::detail_::device
