#pragma once

#include "gatefold/backend/cuda/few_rows.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/mover.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/row_tile.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/cuda/tile.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// The grouped products: kernels that find their expert and their rows in offsets on the device, so that the host never
/// waits for routing, gather rows while they read them, and hand finished sums to an epilogue.
namespace gatefold::device {

/// The shared memory of a block: two tiles of each operand while it sums, then sums on their way to the epilogue.
template <class Shape, int Matrices, class T>
struct alignas(16) Staging {
  struct Operands {
    T a[Shape::depth][Shape::rows + kPadding];
    T b[Matrices][Shape::depth][Shape::columns + kPadding];
  };
  static constexpr int pass_parts = Shape::column_parts < 2 ? 1 : 2;  // column parts at a time
  static constexpr int pass_rows = Shape::rows / Shape::row_parts;
  static constexpr int pass_columns = Shape::columns / Shape::column_parts * pass_parts;
  union {
    Operands buffer[2];
    T sums[Matrices][pass_rows][pass_columns];
  };
  /// Where column x of a pass's row stands: fours are permuted, so that a warp's writes meet all banks.
  __device__ static int column(int row, int x) {
    constexpr int fours = pass_columns / 4;
    return ((x / 4) ^ (row / 4 * 4 % fours)) * 4 + x % 4;
  }
};

/// One block's part of c = op(a) op(b_m): the sums of a tile, and what an epilogue makes of them.
/// @order  one chain of fused multiply-adds over k, ascending from 0: the same for every shape, so that an element
///         depends on its own row and column alone
template <class Shape, int Matrices, class T, class E>
__device__ void compute_tile(Staging<Shape, Matrices, T>& shared, const Operand<T>& a, const Each<T, Matrices>& b,
                             Index rows, Index columns, Index depth, Index row, Index column, T* c, Index expert,
                             Index first_slot, const E& epilogue) {
  constexpr int patch = Shape::patch, D = Shape::depth;
  constexpr int row_step = patch * Shape::lane_rows, column_step = patch * Shape::lane_columns;  // patch to patch
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int my_row = warp / Shape::warps_across * Shape::warp_rows + lane / Shape::lane_columns * patch;
  const int my_column = warp % Shape::warps_across * Shape::warp_columns + lane % Shape::lane_columns * patch;

  T sum[Matrices][Shape::row_parts * patch][Shape::column_parts * patch] = {};
  Mover<T, Shape::whole_fours, Shape::rows, D, Shape::threads> a_mover;
  Mover<T, Shape::whole_fours, Shape::columns, D, Shape::threads> b_mover[Matrices];
  a_mover.begin(a, row, rows, depth);
  for (int m = 0; m < Matrices; ++m) b_mover[m].begin(b.of[m], column, columns, depth);

  const auto load = [&] {
    a_mover.load();
    for (int m = 0; m < Matrices; ++m) b_mover[m].load();
  };
  const auto store = [&](int buffer) {
    a_mover.store(shared.buffer[buffer].a);
    for (int m = 0; m < Matrices; ++m) b_mover[m].store(shared.buffer[buffer].b[m]);
  };
  load();
  store(0);
  __syncthreads();
  int buffer = 0;
  for (int left = static_cast<int>(depth); left > 0; left -= D, buffer ^= 1) {
    const bool more = left > D;
    if (more) load();
#pragma unroll
    for (int d = 0; d < D; ++d) {
      T from_a[Shape::row_parts * patch];
#pragma unroll
      for (int i = 0; i < Shape::row_parts * patch; ++i)
        from_a[i] = shared.buffer[buffer].a[d][my_row + i / patch * row_step + i % patch];
#pragma unroll
      for (int m = 0; m < Matrices; ++m) {
        T from_b[Shape::column_parts * patch];
#pragma unroll
        for (int j = 0; j < Shape::column_parts * patch; ++j)
          from_b[j] = shared.buffer[buffer].b[m][d][my_column + j / patch * column_step + j % patch];
#pragma unroll
        for (int i = 0; i < Shape::row_parts * patch; ++i)
#pragma unroll
          for (int j = 0; j < Shape::column_parts * patch; ++j) sum[m][i][j] = fma(from_a[i], from_b[j], sum[m][i][j]);
      }
    }
    if (more) store(buffer ^ 1);
    __syncthreads();
  }

  // Through shared memory, so that neighbours in c are written by neighbours and the epilogue is compiled once.
  constexpr int parts = shared.pass_parts, pass_warp = parts * column_step;  // a warp's columns of a pass
  const int to_row = my_row / Shape::warp_rows * row_step + lane / Shape::lane_columns * patch;
  const int to_column = my_column / Shape::warp_columns * pass_warp + lane % Shape::lane_columns * patch;
#pragma unroll
  for (int down = 0; down < Shape::row_parts; ++down)
#pragma unroll
    for (int across = 0; across < Shape::column_parts; across += parts) {
      if (down + across > 0) __syncthreads();
#pragma unroll
      for (int m = 0; m < Matrices; ++m)
#pragma unroll
        for (int i = 0; i < patch; ++i)
#pragma unroll
          for (int j = 0; j < parts * patch; ++j)
            shared.sums[m][to_row + i][shared.column(to_row + i, to_column + j / patch * column_step) + j % patch] =
                sum[m][down * patch + i][across * patch + j];
      __syncthreads();
#pragma unroll 4
      for (int at = threadIdx.x; at < shared.pass_rows * shared.pass_columns; at += Shape::threads) {
        const int y = at / shared.pass_columns, x = at % shared.pass_columns;
        const Index r = row + y / row_step * Shape::warp_rows + down * row_step + y % row_step;
        const Index j = column + x / pass_warp * Shape::warp_columns + across * column_step + x % pass_warp;
        if (r >= rows || j >= columns) continue;
        const T* v = &shared.sums[0][y][shared.column(y, x)];
        c[r * columns + j] = finished<Matrices>(epilogue, expert, first_slot + r, j, *v,
                                                v[(Matrices - 1) * shared.pass_rows * shared.pass_columns]);
      }
    }
}

/// c[s] = epilogue(a[row(s)] op(b_e), …): one block for each tile of an expert's rows and columns.
/// @param b_step  bytes of b from expert to expert
template <class Shape, int Matrices, class T, class E>
static __global__ void __launch_bounds__(Shape::threads, promised_blocks<Shape>())
    slots_are_rows_kernel(Operand<T> a, Each<T, Matrices> b, Index b_step, const Index* offsets, Index experts,
                          Index columns, Index depth, T* c, E epilogue) {
  const Index column_tiles = (columns + Shape::columns - 1) / Shape::columns;
  const RowTile tile = find_row_tile(offsets, experts, Shape::rows, blockIdx.x / column_tiles);
  if (tile.expert < 0) return;
  const Index first = offsets[tile.expert], count = offsets[tile.expert + 1] - first;
  a.layout = Layout::along_depth;  // it always is: now the compiler knows
  for (Operand<T>& matrix : b.of) {
    matrix.rows = nullptr;
    matrix.data += tile.expert * b_step;
  }
  __shared__ Staging<Shape, Matrices, T> shared;
  compute_tile(shared, a.skip(first), b, count, columns, depth, tile.row, blockIdx.x % column_tiles * Shape::columns,
               c + first * columns, tile.expert, first, epilogue);
}

/// c[e] = epilogue(Σ_s a[row(s)]ᵀ b[s], …) over the slots of expert e: one block for each tile of c[e].
template <class Shape, class T, class E>
static __global__ void __launch_bounds__(Shape::threads, promised_blocks<Shape>())
    slots_are_depth_kernel(Operand<T> a, Each<T, 1> b, const Index* offsets, Index rows, Index columns, T* c,
                           E epilogue) {
  const Index row_tiles = (rows + Shape::rows - 1) / Shape::rows;
  const Index column_tiles = (columns + Shape::columns - 1) / Shape::columns;
  const Index column = blockIdx.x % column_tiles, row = blockIdx.x / column_tiles % row_tiles;
  const Index expert = blockIdx.x / (column_tiles * row_tiles);
  const Index first = offsets[expert], count = offsets[expert + 1] - first;
  if (count == 0) return;
  a.layout = b.of[0].layout = Layout::along_lines;
  b.of[0].rows = nullptr;
  b.of[0] = b.of[0].skip(first);
  __shared__ Staging<Shape, 1, T> shared;
  compute_tile(shared, a.skip(first), b, rows, columns, count, row * Shape::rows, column * Shape::columns,
               c + expert * rows * columns, expert, expert * rows, epilogue);
}

inline constexpr int kSumRows = kRows, kSumColumns = Warp::size;

/// db[e] += Σ_s dc[s]: one block for each expert and kSumColumns columns.
/// @order  slots of an expert in kSumRows interleaved chains, then the chains in order
template <class T>
static __global__ void __launch_bounds__(kThreads)
    grouped_sum_kernel(const Index* offsets, const T* dc, Index columns, T* db) {
  __shared__ T chain[kSumRows][kSumColumns];
  const Index strips = (columns + kSumColumns - 1) / kSumColumns, expert = blockIdx.x / strips;
  const int x = threadIdx.x % kSumColumns, y = threadIdx.x / kSumColumns;
  const Index column = blockIdx.x % strips * kSumColumns + x, end = offsets[expert + 1];
  T sum = 0;
  if (column < columns)
    for (Index s = offsets[expert] + y; s < end; s += kSumRows) sum += dc[s * columns + column];
  chain[y][x] = sum;
  __syncthreads();
  if (y > 0 || column >= columns || offsets[expert] == end) return;
  for (int i = 1; i < kSumRows; ++i) sum += chain[i][x];
  db[expert * columns + column] += sum;
}

/// @param slots  how many there may be: tells few rows from many, and how many tiles of rows there may be
template <int Matrices, class T, class Context, class E>
void slots_are_rows(Context& ctx, const Operand<T>& a, const Each<T, Matrices>& b, Index b_step, const Index* offsets,
                    Index experts, Index slots, Index columns, Index depth, T* c, const E& epilogue) {
  if (experts == 0 || slots == 0 || columns == 0) return;
  const auto row_tiles = [&](Index rows) { return slots / rows + (experts < slots ? experts : slots); };  // at most
  const auto run = [&]<class Shape>(Shape) {
    slots_are_rows_kernel<Shape, Matrices>
        <<<grid(blocks(columns, Shape::columns) * row_tiles(Shape::rows)), Shape::threads, 0, ctx.stream()>>>(
            a, b, b_step, offsets, experts, columns, depth, c, epilogue);
  };
  constexpr Index few = 32;  // rows of an expert, on average: then reading the weights is what takes time
  using Many = ManyTiles<T, Matrices>;
  bool whole = columns % 4 == 0 && depth % 4 == 0 && a.aligned;
  for (const Operand<T>& matrix : b.of) whole = whole && matrix.aligned;
  if (!whole) {
    run(typename AnyTiles<T, Matrices>::Shape{});
  } else if (slots <= few * experts && b.of[0].layout != Layout::along_depth) {
    few_rows_kernel<Matrices>
        <<<grid(blocks(columns, Strip::columns) * row_tiles(Strip::rows)), Strip::threads, 0, ctx.stream()>>>(
            a, b, b_step, offsets, experts, columns, depth, c, epilogue);
  } else if (slots / Many::rows * blocks(columns, Many::columns) < many_tiles(ctx.multiprocessors())) {
    run(typename FewTiles<T, Matrices>::Shape{});
  } else {
    run(typename Many::Shape{});
  }
  expect_launched("Cuda::grouped_gemm");
}

template <class T, class Context, class E>
void slots_are_depth(Context& ctx, const Operand<T>& a, const Operand<T>& b, const Index* offsets, Index experts,
                     Index rows, Index columns, T* c, const E& epilogue) {
  if (experts == 0 || rows == 0 || columns == 0) return;
  const auto tiles = [&]<class Shape>(Shape) {
    return experts * blocks(rows, Shape::rows) * blocks(columns, Shape::columns);
  };
  const auto run = [&]<class Shape>(Shape shape) {
    slots_are_depth_kernel<Shape><<<grid(tiles(shape)), Shape::threads, 0, ctx.stream()>>>(a, Each<T, 1>{b}, offsets,
                                                                                           rows, columns, c, epilogue);
  };
  if (rows % 4 != 0 || columns % 4 != 0 || !a.aligned || !b.aligned) {
    run(typename AnyTiles<T, 1>::Shape{});
  } else if (tiles(ManyTiles<T, 1>{}) < many_tiles(ctx.multiprocessors())) {
    run(typename FewTiles<T, 1>::Shape{});
  } else {
    run(typename ManyTiles<T, 1>::Shape{});
  }
  expect_launched("Cuda::grouped_outer");
}

template <class T>
void grouped_sum(cudaStream_t stream, const Index* offsets, Index experts, const T* dc, Index columns, T* db) {
  if (experts == 0 || columns == 0) return;
  grouped_sum_kernel<<<grid(blocks(columns, kSumColumns) * experts), kThreads, 0, stream>>>(offsets, dc, columns, db);
  expect_launched("Cuda::grouped_sum");
}

}  // namespace gatefold::device
