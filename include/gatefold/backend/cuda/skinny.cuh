#pragma once

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/row_tile.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/cuda/tile_loader.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

/// The grouped product (one matrix product for each expert) for experts with few rows, as in decoding. It takes about
/// as long as reading the weights once. Asynchronous copies into a ring buffer in shared memory keep many bytes in
/// flight, while the threads sum the tiles that have arrived.
namespace gatefold::detail_::device {

/// Tile sizes. A thread block computes up to `rows` rows of one expert and `columns` columns; a thread computes sums of
/// one of these columns. From one tile of the factors, each sum gets `depth` products.
template <int Columns, int Depth>
struct Strip {
  static constexpr int rows = 16, columns = Columns, threads = 128, depth = Depth;
  static constexpr int row_step = threads / columns;  // number of threads that share a column
  static constexpr int blocks = 4;  // number of blocks that fit on a multiprocessor of Hopper at a time
};
using WideStrip = Strip<32, 32>;
using NarrowStrip = Strip<16, 64>;  // narrower strips, used if WideStrip gives too few blocks to keep the memory busy

template <class Strip, class T, int Matrices>
struct Ring {
  static constexpr int stages =
      49152 / static_cast<int>((Strip::rows + Matrices * Strip::columns) * Strip::depth * sizeof(T));
  T a[stages][Strip::rows][Strip::depth];
  // If the weights b are rounded, their Bfloat16 values use only the first half of each b[stage][matrix].
  T b[stages][Matrices][Strip::depth][Strip::columns];
};

/// The inputs of one thread block of skinny_kernel, with the functions that compute its sums and results.
template <class T, int Matrices>
struct SkinnyBlock {
  Operand<T> a;
  Each<T, Matrices> b;
  // `first` is the expert's first row in c. `row` and `column` are the first row and column of the block within the
  // expert's part of c. `columns` is the number of columns of c, and `depth` the number of products in each sum.
  Index first, row, column, columns, depth;
  int rows;  // number of rows that the block computes, at most Strip::rows

  /// Computes this thread's sums of one column, in up to MyRows rows. The first of these rows is threadIdx.x /
  /// Strip::columns; the following ones are Strip::row_step rows apart.
  template <class W, int MyRows, class Strip>
  __device__ void sum(Ring<Strip, T, Matrices>& ring, T (&sum)[Matrices][MyRows]) const {
    constexpr int stages = Ring<Strip, T, Matrices>::stages, D = Strip::depth;
    const int thread = static_cast<int>(threadIdx.x), my_row = thread / Strip::columns,
              my_column = thread % Strip::columns;
    // Each thread copies groups of four neighbouring values. In a, the values of a group are in the same row. In each
    // matrix of b, they have the same depth and are in neighbouring columns.
    constexpr int a_across = D / 4, a_step = Strip::threads / a_across;
    constexpr int a_fours = divide_up(Strip::rows, a_step);
    constexpr int b_across = Strip::columns / 4, b_step = Strip::threads / b_across;
    const int a_line = thread / a_across, a_depth = thread % a_across * 4;
    const int b_depth = thread / b_across, b_column = thread % b_across * 4;
    const char* from_a[a_fours];
    for (int i = 0; i < a_fours; ++i)
      if (const int line = a_line + i * a_step; line < rows)
        from_a[i] = a.data + (a.rows ? a.rows[row + line] : row + line) * a.stride;
    const Index last = columns - 4, four = column + b_column < last ? column + b_column : last;
    const int tiles = static_cast<int>(divide_up(depth, D));

    const auto fetch = [&](int tile) {
      if (tile < tiles) {
        const int stage = tile % stages, left = static_cast<int>(depth) - tile * D;
        const Index k = Index(tile) * D;
#pragma unroll
        for (int i = 0; i < a_fours; ++i)
          if (const int line = a_line + i * a_step; line < rows)
            copy_four<T>(&ring.a[stage][line][a_depth], from_a[i] + (k + a_depth) * static_cast<Index>(sizeof(T)),
                         a_depth < left);
        for (int m = 0; m < Matrices; ++m) {
          auto* to = reinterpret_cast<W*>(&ring.b[stage][m][0][0]) + b_column;
          const char* from = b.of[m].data + k * b.of[m].stride + four * static_cast<Index>(sizeof(W));
#pragma unroll
          for (int y = b_depth; y < D; y += b_step)
            copy_four<W>(to + y * Strip::columns, from + y * b.of[m].stride, y < left);
        }
      }
      __pipeline_commit();
    };

    for (int tile = 0; tile < stages - 1; ++tile) fetch(tile);
    for (int tile = 0; tile < tiles; ++tile) {
      __pipeline_wait_prior(stages - 2);
      __syncthreads();
      fetch(tile + stages - 1);
      if (my_row >= rows) continue;
      const int stage = tile % stages;
#pragma unroll
      for (int k = 0; k < D; k += 4) {
        Four<T> of_a[MyRows];
#pragma unroll
        for (int i = 0; i < MyRows; ++i)
          of_a[i] = *reinterpret_cast<const Four<T>*>(&ring.a[stage][my_row + i * Strip::row_step][k]);
#pragma unroll
        for (int m = 0; m < Matrices; ++m) {
          const auto* from = reinterpret_cast<const W*>(&ring.b[stage][m][0][0]);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const T of_b = T(from[(k + j) * Strip::columns + my_column]);
#pragma unroll
            for (int i = 0; i < MyRows; ++i) sum[m][i] = fma(of_a[i].v[j], of_b, sum[m][i]);
          }
        }
      }
    }
    __pipeline_wait_prior(0);
  }

  /// Computes this thread's sums in one column and up to MyRows rows, applies the epilogue to them, and stores the
  /// results in c.
  template <int MyRows, class Strip, class E>
  __device__ void run(Ring<Strip, T, Matrices>& ring, Index expert, T* c, const E& epilogue) const {
    T v[Matrices][MyRows] = {};
    if (b.of[0].layout == Layout::rounded) {
      sum<Bfloat16, MyRows>(ring, v);
    } else {
      sum<T, MyRows>(ring, v);
    }
    const int my_row = static_cast<int>(threadIdx.x) / Strip::columns;
    const Index j = column + static_cast<int>(threadIdx.x) % Strip::columns;
    if (j >= columns) return;
    for (int i = 0; i < MyRows && my_row + i * Strip::row_step < rows; ++i) {
      const Index s = first + row + my_row + i * Strip::row_step;
      c[s * columns + j] = finished<Matrices>(epilogue, expert, s, j, v[0][i], v[Matrices - 1][i]);
    }
  }
};

/// The largest number of rows of an expert for which skinny_kernel is used. With so few rows, most of the time is spent
/// reading the expert's weights.
inline constexpr Index kSkinnyRows = 32;

/// Computes the grouped product c[s] = epilogue(a[row(s)] b_e) for the experts e with few rows. s is a slot (one row of
/// work) of expert e; row(s) is the row of `a` that it reads. There is one thread block for each strip of columns and
/// each Strip::rows rows of an expert.
/// @param b  the weights. Their layout is along_lines or rounded; all groups of four are whole and aligned
template <class Strip, int Matrices, class T, class E>
static __global__ void __launch_bounds__(Strip::threads)
    skinny_kernel(Operand<T> a, Each<T, Matrices> b, Index b_step, const Index* offsets, Index experts, Index columns,
                  Index depth, T* c, E epilogue) {
  __shared__ __align__(16) Ring<Strip, T, Matrices> ring;
  const Index strips = divide_up(columns, Strip::columns);
  const RowTile tile = find_row_tile(offsets, experts, Strip::rows, blockIdx.x / strips, RowRange{0, kSkinnyRows});
  if (tile.expert < 0) return;
  const Index first = offsets[tile.expert], left = offsets[tile.expert + 1] - first - tile.row;
  for (Operand<T>& matrix : b.of) matrix.data += tile.expert * b_step;
  const int rows = left < Strip::rows ? static_cast<int>(left) : Strip::rows;
  const SkinnyBlock<T, Matrices> few{a.skip(first), b,     first, tile.row, blockIdx.x % strips * Strip::columns,
                                     columns,       depth, rows};
  // If there are few rows, each thread computes only one sum for each matrix, because unneeded multiply-adds would take
  // longer than reading the weights.
  constexpr int most = Strip::rows / Strip::row_step;
  if (rows <= Strip::row_step) {
    few.template run<1>(ring, tile.expert, c, epilogue);
  } else {
    few.template run<most>(ring, tile.expert, c, epilogue);
  }
}

}  // namespace gatefold::detail_::device
