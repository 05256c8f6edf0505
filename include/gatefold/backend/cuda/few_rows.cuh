#pragma once

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/row_tile.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// The grouped product where experts have few rows, as in decoding: its time is that of reading the weights once. A
/// ring of tiles in shared memory keeps many bytes under way, while four warps sum what has come.
namespace gatefold::device {

/// Rows of one expert and columns of a block, and depth of a tile of the ring.
struct Strip {
  static constexpr int rows = 16, columns = 32, depth = 32, threads = 128;
  static constexpr int warp_rows = rows / (threads / 32);
};

template <class T, int Matrices>
struct Ring {
  static constexpr int kStages =
      49152 / static_cast<int>((Strip::rows + Matrices * Strip::columns) * Strip::depth * sizeof(T));
  T a[kStages][Strip::rows][Strip::depth];
  T b[kStages][Matrices][Strip::depth][Strip::columns];  // or Bfloat16, in the first half
};

/// Copy a four from global to shared memory, asynchronously; zeros where it does not exist.
template <class W>
__device__ void copy_four(void* to, const void* from, bool exists) {
  constexpr std::size_t size = sizeof(Four<W>), step = size < 16 ? size : 16;
  for (std::size_t i = 0; i < size; i += step)
    __pipeline_memcpy_async(static_cast<char*>(to) + i, static_cast<const char*>(from) + i, step, exists ? 0 : step);
}

/// The sums of my column and my rows.
/// @order  one chain of fused multiply-adds over k, ascending from 0, as in product.cuh
template <class W, int Matrices, class T>
__device__ void sum_strip(Ring<T, Matrices>& ring, const Operand<T>& a, const Each<T, Matrices>& b, Index row,
                          Index rows, Index column, Index columns, Index depth, T (&sum)[Matrices][Strip::warp_rows]) {
  constexpr int kStages = Ring<T, Matrices>::kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool busy = row + warp * Strip::warp_rows < rows;

  // my four of a: one row of the strip and four of the depth
  const int a_line = threadIdx.x / (Strip::depth / 4), a_depth = threadIdx.x % (Strip::depth / 4) * 4;
  const Index line = row + a_line < rows ? row + a_line : rows - 1;
  const char* my_a = a.data + (a.rows ? a.rows[line] : line) * a.stride + a_depth * static_cast<int>(sizeof(T));
  // my fours of b: four columns of some rows of each matrix
  constexpr int kAcross = Strip::columns / 4, kDown = Strip::threads / kAcross;
  const int b_column = threadIdx.x % kAcross * 4, b_depth = threadIdx.x / kAcross;
  const Index last = columns - 4, first_column = column + b_column < last ? column + b_column : last;
  const int tiles = static_cast<int>((depth + Strip::depth - 1) / Strip::depth);

  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      const int stage = tile % kStages;
      const Index k = Index(tile) * Strip::depth;
      copy_four<T>(&ring.a[stage][a_line][a_depth],
                   k + a_depth < depth ? my_a + k * static_cast<int>(sizeof(T)) : a.data, k + a_depth < depth);
      for (int m = 0; m < Matrices; ++m) {
        auto* to = reinterpret_cast<W*>(&ring.b[stage][m][0][0]);
#pragma unroll
        for (int y = b_depth; y < Strip::depth; y += kDown) {
          const bool exists = k + y < depth;
          copy_four<W>(
              to + y * Strip::columns + b_column,
              b.of[m].data + (exists ? k + y : 0) * b.of[m].stride + first_column * static_cast<int>(sizeof(W)),
              exists);
        }
      }
    }
    __pipeline_commit();
  };

  for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    fetch(tile + kStages - 1);
    if (!busy) continue;
    const int stage = tile % kStages;
#pragma unroll
    for (int k = 0; k < Strip::depth; k += 4) {
      Four<T> from_a[Strip::warp_rows];
#pragma unroll
      for (int i = 0; i < Strip::warp_rows; ++i)
        from_a[i] = *reinterpret_cast<const Four<T>*>(&ring.a[stage][warp * Strip::warp_rows + i][k]);
#pragma unroll
      for (int m = 0; m < Matrices; ++m) {
        const auto* of = reinterpret_cast<const W*>(&ring.b[stage][m][0][0]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const T from_b = T(of[(k + j) * Strip::columns + lane]);
#pragma unroll
          for (int i = 0; i < Strip::warp_rows; ++i) sum[m][i] = fma(from_a[i].v[j], from_b, sum[m][i]);
        }
      }
    }
  }
  __pipeline_wait_prior(0);
}

/// c[s] = epilogue(a[row(s)] b_e, …): one block for each strip of columns and each Strip::rows rows of an expert.
/// @param b  along_lines or rounded, whole fours
template <int Matrices, class T, class E>
static __global__ void __launch_bounds__(Strip::threads)
    few_rows_kernel(Operand<T> a, Each<T, Matrices> b, Index b_step, const Index* offsets, Index experts, Index columns,
                    Index depth, T* c, E epilogue) {
  __shared__ __align__(16) Ring<T, Matrices> ring;
  const Index strips = (columns + Strip::columns - 1) / Strip::columns;
  const RowTile tile = find_row_tile(offsets, experts, Strip::rows, blockIdx.x / strips);
  if (tile.expert < 0) return;
  const Index first = offsets[tile.expert], count = offsets[tile.expert + 1] - first;
  const Index column = blockIdx.x % strips * Strip::columns;
  for (Operand<T>& matrix : b.of) matrix.data += tile.expert * b_step;

  T sum[Matrices][Strip::warp_rows] = {};
  if (b.of[0].layout == Layout::rounded) {
    sum_strip<Bfloat16>(ring, a.skip(first), b, tile.row, count, column, columns, depth, sum);
  } else {
    sum_strip<T>(ring, a.skip(first), b, tile.row, count, column, columns, depth, sum);
  }
  const Index j = column + threadIdx.x % 32;
  for (int i = 0; i < Strip::warp_rows; ++i) {
    const Index r = tile.row + threadIdx.x / 32 * Strip::warp_rows + i, s = first + r;
    if (r >= count || j >= columns) break;
    c[s * columns + j] = finished<Matrices>(epilogue, tile.expert, s, j, sum[0][i], sum[Matrices - 1][i]);
  }
}

}  // namespace gatefold::device
