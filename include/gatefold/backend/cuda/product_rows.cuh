#pragma once

#include <cstdint>

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/cuda/warp.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// A product whose rows are finished where they are summed: scores of few experts, routed in shared memory.
namespace gatefold::device {

/// N values read at once where 16 bytes allow it.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Several {
  T v[N];
};

/// A block sums `rows` whole rows of up to `columns` columns, a thread row_patch × column_patch of them. Then as few lanes
/// as have a column each share a row.
template <int Columns, int RowPatch, int ColumnPatch>
struct RowsShape {
  using Shape = RowsShape;
  using Lanes = WarpPart<(Columns < 32 ? Columns : 32)>;
  static constexpr int rows = 32, columns = Columns, row_patch = RowPatch, column_patch = ColumnPatch;
  static constexpr int across = columns / column_patch, threads = rows / row_patch * across;
};
using FewColumns = RowsShape<8, 1, 2>;
using SomeColumns = RowsShape<32, 2, 4>;
using MostColumns = RowsShape<64, 4, 4>;

/// The shared memory of a block: a ring of tiles of both operands while it sums, then the rows.
template <class Shape, class T>
struct alignas(16) RowsStaging {
  static constexpr int unit = 16 / sizeof(T);      // values that are copied at once
  static constexpr int depth = 128 / sizeof(T);    // of a tile
  static constexpr int pitch = depth + unit;       // rows of a that are read together meet other banks
  static constexpr int tile_values = Shape::rows * pitch + depth * Shape::columns;
  static constexpr int fitting = 49152 / static_cast<int>(tile_values * sizeof(T));
  static constexpr int stages = fitting < 4 ? fitting : 4;
  static_assert(stages >= 2 && Shape::rows * Shape::columns <= stages * tile_values);
  struct Ring {
    T a[stages][Shape::rows][pitch];
    T b[stages][depth][Shape::columns];
  };
  union {
    Ring ring;
    T row[Shape::rows][Shape::columns];
  };
};

/// A matrix with a step between lines and one along the depth; `whole` if units of `unit` values are aligned.
template <class T>
struct Strided {
  const T* data;
  Index line_step, depth_step;
  bool whole;
};

/// Copy a unit from global to shared memory, asynchronously; zeros from the count-th value on.
/// @param step  from value to value; a whole unit has 1, and exists or not
template <int Unit, class T>
__device__ void copy_unit(T* to, const T* from, Index step, int count, bool whole) {
  if (whole) {
    __pipeline_memcpy_async(to, from, 16, count > 0 ? 0 : 16);
    return;
  }
  for (int i = 0; i < Unit; ++i)
    __pipeline_memcpy_async(to + i, from + (i < count ? i * step : 0), sizeof(T), i < count ? 0 : sizeof(T));
}

/// c = epilogue(a b), and f(lanes, n, row) for each of its rows: one block for each Shape::rows of them.
/// @param c  null: not kept
/// @order  one chain of fused multiply-adds over k, ascending from 0, as in product.cuh
template <class Shape, class T, class E, class F>
static __global__ void __launch_bounds__(Shape::threads)
    product_rows_kernel(Strided<T> a, Strided<T> b, Index lines, int columns, Index depth, T* c, E epilogue, F f) {
  using Staging = RowsStaging<Shape, T>;
  constexpr int unit = Staging::unit, D = Staging::depth, stages = Staging::stages;
  __shared__ Staging shared;
  const Index first = Index(blockIdx.x) * Shape::rows;
  const int thread = static_cast<int>(threadIdx.x);
  const int tiles = static_cast<int>((depth + D - 1) / D);

  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      const int stage = tile % stages;
      const Index begin = Index(tile) * D;
      const int left = static_cast<int>(depth - begin < D ? depth - begin : D);
#pragma unroll
      for (int i = thread; i < Shape::rows * D / unit; i += Shape::threads) {
        const int row = i / (D / unit), k = i % (D / unit) * unit;
        const Index line = first + row < lines ? first + row : lines - 1;
        copy_unit<unit>(&shared.ring.a[stage][row][k], a.data + line * a.line_step + (k < left ? begin + k : 0), 1,
                        left - k, a.whole);
      }
      for (int i = thread; i < D * Shape::columns / unit; i += Shape::threads) {
        const int k = i / (Shape::columns / unit), j = i % (Shape::columns / unit) * unit;
        const int count = k < left ? columns - j : 0;
        copy_unit<unit>(&shared.ring.b[stage][k][j],
                        count > 0 ? b.data + (begin + k) * b.depth_step + j * b.line_step : b.data, b.line_step, count,
                        b.whole);
      }
    }
    __pipeline_commit();
  };

  const int my_row = thread / Shape::across * Shape::row_patch, my_column = thread % Shape::across * Shape::column_patch;
  T sum[Shape::row_patch][Shape::column_patch] = {};
  for (int tile = 0; tile < stages - 1; ++tile) fetch(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    __pipeline_wait_prior(stages - 2);
    __syncthreads();
    fetch(tile + stages - 1);
    const int stage = tile % stages;
#pragma unroll
    for (int k = 0; k < D; k += unit) {
      Several<T, unit> from_a[Shape::row_patch];
#pragma unroll
      for (int i = 0; i < Shape::row_patch; ++i)
        from_a[i] = *reinterpret_cast<const Several<T, unit>*>(&shared.ring.a[stage][my_row + i][k]);
#pragma unroll
      for (int d = 0; d < unit; ++d) {
        const auto from_b =
            *reinterpret_cast<const Several<T, Shape::column_patch>*>(&shared.ring.b[stage][k + d][my_column]);
#pragma unroll
        for (int i = 0; i < Shape::row_patch; ++i)
#pragma unroll
          for (int j = 0; j < Shape::column_patch; ++j) sum[i][j] = fma(from_a[i].v[d], from_b.v[j], sum[i][j]);
      }
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();  // the ring has been read

#pragma unroll
  for (int j = 0; j < Shape::column_patch; ++j)
#pragma unroll
    for (int i = 0; i < Shape::row_patch; ++i) {
      const Index n = first + my_row + i, column = my_column + j;
      if (n >= lines || column >= columns) continue;
      const T v = epilogue(OneElement<T>{}, Index(0), n, column, sum[i][j]);
      shared.row[my_row + i][column] = v;
      if (c) c[n * columns + column] = v;
    }
  __syncthreads();
  constexpr int lanes = Shape::Lanes::size;
  for (int row = thread / lanes; row < Shape::rows && first + row < lines; row += Shape::threads / lanes)
    f(typename Shape::Lanes{thread % lanes}, first + row, &shared.row[row][0]);
}

/// @param a  [lines, depth]
/// @param b  [depth, columns], or [columns, depth] with tb; 1 <= columns <= MostColumns::columns
template <class T, class E, class F>
void product_rows(cudaStream_t stream, Index lines, Index columns, Index depth, const T* a, const T* b, bool tb, T* c,
                  const E& epilogue, const F& f) {
  if (lines == 0) return;
  constexpr Index unit = 16 / sizeof(T);
  const auto aligned = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const Strided<T> from_a{a, depth, 1, depth % unit == 0 && aligned(a)},
      from_b{b, tb ? depth : 1, tb ? 1 : columns, !tb && columns % unit == 0 && aligned(b)};
  const auto run = [&]<class Shape>(Shape) {
    product_rows_kernel<Shape><<<grid(blocks(lines, Shape::rows)), Shape::threads, 0, stream>>>(
        from_a, from_b, lines, static_cast<int>(columns), depth, c, epilogue, f);
  };
  if (columns <= FewColumns::columns) {
    run(FewColumns{});
  } else if (columns <= SomeColumns::columns) {
    run(SomeColumns{});
  } else {
    run(MostColumns{});
  }
  expect_launched("Cuda::gemm_rows");
}

}  // namespace gatefold::device
