#pragma once

#include <cstdint>

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// A tile of bfloat16 in shared memory: rows of 128 bytes, whose 16-byte units change places by the row, so that
/// neither its copies nor ldmatrix (nor wgmma, whose swizzle of 128 bytes this is) meet a bank twice.
///
/// Lines that lie along the depth: row r holds 64 values of line r. Depth along the lines: rows of 64 lines, those of
/// depth 0 to 63 for the first 64 lines, then for the next. Of a tile of 32 lines, a row holds them at depths r and
/// r + 32.
struct Bf16Place {
  static constexpr int depth = 64, row_bytes = 128, units = 8;
  /// Where unit `unit` of a row stands, from the beginning of the tile.
  GATEFOLD_HD static constexpr int at(int row, int unit) { return row * row_bytes + ((unit ^ (row & 7)) << 4); }
  /// along_lines: where the unit that holds `line` at depth k stands in a tile of Lines lines.
  template <int Lines>
  GATEFOLD_HD static constexpr int of_line(int line, int k) {
    return Lines == 32 ? at(k % 32, line / 8 | k / 32 * 4) : at(line / 64 * 64 + k, line % 64 / 8);
  }
};

/// One thread's share of copying tiles of an operand, `Lines` × Bf16Place::depth values, to shared memory,
/// asynchronously; zeros for what does not exist.
/// @tparam Gathers  whether rows of the matrix are looked up
template <Layout L, bool Gathers, int Lines, int Threads>
class Bf16Loader {
  static constexpr int D = Bf16Place::depth, row_step = Threads / Bf16Place::units;
  static constexpr int each = Lines / row_step;                              // along_depth: my lines
  static constexpr int width = Lines < 64 ? Lines : 64, across = width / 8;  // along_lines: lines of a row, their units
  static constexpr int each_depth = width / row_step;                        // my rows of these
  static constexpr int looked_up = L == Layout::along_depth ? each : each_depth;
  static_assert(L == Layout::along_depth ? Lines % row_step == 0 : width % row_step == 0,
                "gatefold: every thread must copy as many units");
  static_assert(L == Layout::along_depth || Lines == 32 || Lines % 64 == 0, "gatefold: rows of 64 lines, or of 32");

 public:
  /// Lines [first, …) of `lines` in all.
  /// @param depth  along_depth: of whole units
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

  /// Ask for the next tile.
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
    if constexpr (L == Layout::along_lines && Gathers) look_up();  // loading the next will not wait for them
  }

 private:
  __device__ static int unit() { return static_cast<int>(threadIdx.x) % Bf16Place::units; }
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / Bf16Place::units + i * row_step; }

  /// along_lines: the first line of my units, and their depth in a tile.
  __device__ static int line() { return unit() % across * static_cast<int>(kBf16Unit); }
  __device__ static int depth(int i) { return row(i) + unit() / across * width; }

  __device__ void copy(unsigned char* to, const Bfloat16* from, bool exists) const {
    __pipeline_memcpy_async(to, exists ? from : from_, 16, exists ? 0 : 16);
  }
  __device__ void look_up() {
#pragma unroll
    for (int i = 0; i < each_depth; ++i) row_[i] = depth(i) < left_ ? rows_[depth(i)] : 0;
    rows_ += D;
  }

  const Bfloat16* from_;  // my unit of the first row of the next tile
  const Index* rows_;     // along_lines, gathered: those of the tile after the next
  Index row_[Gathers ? looked_up : 1];
  int stride_, left_;  // depth from the next tile on
  int lines_;          // that exist, of the tile
};

}  // namespace gatefold::detail_::device
