#pragma once

#include <cstdint>

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// The places of values in a tile of bfloat16 in shared memory. The tile has rows of 128 bytes, whose 16-byte units are
/// permuted depending on the row. Copies and ldmatrix therefore have no bank conflicts. It is also the 128-byte swizzle
/// of wgmma.
///
/// With the layout along_depth, row r holds 64 values of line r. With along_lines, row k holds the values of 64 lines
/// at depth k; the rows of the first 64 lines come before the rows of the next 64 lines. In a tile of only 32 lines,
/// row r holds the values at depths r and r + 32.
struct Bf16Place {
  static constexpr int depth = 64, row_bytes = 128, units = 8;
  /// Returns the offset in bytes of unit `unit` of a row from the beginning of the tile.
  GATEFOLD_HD static constexpr int at(int row, int unit) { return row * row_bytes + ((unit ^ (row & 7)) << 4); }
  /// Returns, for the layout along_lines, the offset of the unit that holds `line` at depth k, in a tile of Lines
  /// lines.
  template <int Lines>
  GATEFOLD_HD static constexpr int of_line(int line, int k) {
    return Lines == 32 ? at(k % 32, line / 8 | k / 32 * 4) : at(line / 64 * 64 + k, line % 64 / 8);
  }
};

/// One thread's share of copying tiles of an operand, `Lines` × Bf16Place::depth values, to shared memory. The copies
/// are asynchronous; values outside of the matrix become 0.
/// @tparam Gathers  whether row i of the operand is stored in row rows[i] of the matrix (Bf16Matrix::rows)
template <Layout L, bool Gathers, int Lines, int Threads>
class Bf16Loader {
  static constexpr int D = Bf16Place::depth, row_step = Threads / Bf16Place::units;
  static constexpr int each = Lines / row_step;  // along_depth: number of lines of a thread
  // along_lines: at one depth, a row of the tile holds the values of `width` lines, in `across` units of 8 values.
  static constexpr int width = Lines < 64 ? Lines : 64, across = width / 8;
  static constexpr int each_depth = width / row_step;  // along_lines: number of rows of a thread
  static constexpr int looked_up = L == Layout::along_depth ? each : each_depth;
  static_assert(L == Layout::along_depth ? Lines % row_step == 0 : width % row_step == 0,
                "gatefold: every thread must copy the same number of units");
  static_assert(L == Layout::along_depth || Lines == 32 || Lines % 64 == 0,
                "gatefold: Lines must be 32 or a multiple of 64");

 public:
  /// Prepares for copying tiles that begin at line `first` of an operand with `lines` lines.
  /// @param depth  depth of the operand; a whole number of units if the layout is along_depth
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

  /// Starts the copies of the next tile.
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
    if constexpr (L == Layout::along_lines && Gathers) look_up();  // early, so that the next load() does not wait
  }

 private:
  __device__ static int unit() { return static_cast<int>(threadIdx.x) % Bf16Place::units; }
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / Bf16Place::units + i * row_step; }

  /// Returns, for along_lines, the first line of this thread's units.
  __device__ static int line() { return unit() % across * static_cast<int>(kBf16Unit); }
  /// Returns, for along_lines, the depth of this thread's i-th unit within a tile.
  __device__ static int depth(int i) { return row(i) + unit() / across * width; }

  __device__ void copy(unsigned char* to, const Bfloat16* from, bool exists) const {
    __pipeline_memcpy_async(to, exists ? from : from_, 16, exists ? 0 : 16);
  }
  __device__ void look_up() {
#pragma unroll
    for (int i = 0; i < each_depth; ++i) row_[i] = depth(i) < left_ ? rows_[depth(i)] : 0;
    rows_ += D;
  }

  const Bfloat16* from_;  // this thread's unit of the first row of the next tile
  const Index* rows_;     // along_lines, gathered: row numbers of the tile after the next
  Index row_[Gathers ? looked_up : 1];
  int stride_, left_;  // left_: depth that is left from the next tile on
  int lines_;          // number of lines of the tile that exist
};

}  // namespace gatefold::detail_::device
