#pragma once

#include <cstdint>

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/core/types.hpp"

namespace gatefold::device {

/// A tile of bfloat16 in shared memory: rows of 128 bytes, whose 16-byte units change places by the row, so that
/// neither its copies nor ldmatrix (nor wgmma, whose swizzle of 128 bytes this is) meet a bank twice.
///
/// Lines that lie along the depth: row r holds 64 values of line r. Depth along the lines: rows of 64 lines, those of
/// depth 0 to 63 for the first 64 lines, then for the next.
struct Bf16Place {
  static constexpr int depth = 64, row_bytes = 128, units = 8;
  /// Where unit `unit` of a row stands, from the beginning of the tile.
  GATEFOLD_HD static constexpr int at(int row, int unit) { return row * row_bytes + ((unit ^ (row & 7)) << 4); }
  /// along_lines: the row of depth k of the 64 lines that `line` is one of.
  GATEFOLD_HD static constexpr int row_of(int line, int k) { return line / 64 * 64 + k; }
};

/// One thread's share of copying tiles of an operand, `Lines` × Bf16Place::depth values, to shared memory,
/// asynchronously; zeros for what does not exist.
/// @tparam Gathers  whether rows of the matrix are looked up
template <Layout L, bool Gathers, int Lines, int Threads>
class Bf16Loader {
  static constexpr int D = Bf16Place::depth, row_step = Threads / Bf16Place::units;
  static constexpr int each = Lines / row_step;    // along_depth: my lines
  static constexpr int each_depth = D / row_step;  // along_lines: my rows of 64 lines
  static constexpr int looked_up = L == Layout::along_depth ? each : each_depth;
  static_assert(Lines % (L == Layout::along_depth ? row_step : 64) == 0 && D % row_step == 0,
                "gatefold: every thread must copy as many units");

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
      from_ = from.data + first + unit() * kBf16Unit;
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
        const Bfloat16* const of_row = from_ + (Gathers ? row_[i] : row(i)) * Index(stride_);
#pragma unroll
        for (int line = 0; line < Lines; line += 64)
          copy(to + Bf16Place::at(Bf16Place::row_of(line, row(i)), unit()), of_row + line,
               row(i) < left_ && line + unit() * static_cast<int>(kBf16Unit) < lines_);
      }
      if constexpr (!Gathers) from_ += Index(D) * stride_;
    }
    left_ -= D;
    if constexpr (L == Layout::along_lines && Gathers) look_up();  // loading the next will not wait for them
  }

 private:
  __device__ static int unit() { return static_cast<int>(threadIdx.x) % Bf16Place::units; }
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / Bf16Place::units + i * row_step; }

  __device__ void copy(unsigned char* to, const Bfloat16* from, bool exists) const {
    __pipeline_memcpy_async(to, exists ? from : from_, 16, exists ? 0 : 16);
  }
  __device__ void look_up() {
#pragma unroll
    for (int i = 0; i < each_depth; ++i) row_[i] = row(i) < left_ ? rows_[row(i)] : 0;
    rows_ += D;
  }

  const Bfloat16* from_;  // my unit of the first row of the next tile
  const Index* rows_;     // along_lines, gathered: those of the tile after the next
  Index row_[Gathers ? looked_up : 1];
  int stride_, left_;  // depth from the next tile on
  int lines_;          // that exist, of the tile
};

}  // namespace gatefold::device
