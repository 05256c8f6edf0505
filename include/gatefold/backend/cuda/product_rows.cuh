#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/cuda/warp.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// A matrix product that also processes each complete row of its result, for example the scores of a router. The kernel
/// that computes the product processes rows of few columns in shared memory. Longer rows are copied to shared memory by
/// a second kernel.
namespace gatefold::detail_::device {

/// N neighbouring values. They are aligned so that one instruction reads them if they fit 16 bytes.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Several {
  T v[N];
};

/// Tile sizes. A thread block computes `rows` whole rows of the result, of up to `columns` columns; a thread computes
/// row_patch × column_patch of these sums. Then `Size` lanes (threads of a warp) process each row together. `Size` is
/// small, so that a warp processes several rows at once and less time is lost with work that every lane of a row
/// repeats.
template <int Rows, int Columns, int RowPatch, int ColumnPatch, int Size>
struct RowsShape {
  using Lanes = WarpPart<Size>;
  static constexpr int rows = Rows, columns = Columns, row_patch = RowPatch, column_patch = ColumnPatch;
  static constexpr int across = columns / column_patch, threads = rows / row_patch * across;
};
// A thread block of the shape [rows, columns] reads its rows of the first factor a, and all columns of the second
// factor b at the same depth. Therefore it reads columns / rows times as much of b as of a, at most a quarter. Skinny
// shapes have fewer rows, so this ratio is larger. They are used if the other shapes would give fewer blocks than there
// are multiprocessors.
using FewColumns = RowsShape<64, 8, 2, 2, 2>;
using SkinnyOfFewColumns = RowsShape<8, 8, 1, 1, 2>;
using SeveralColumns = RowsShape<64, 16, 2, 4, 4>;
using SkinnyOfSeveralColumns = RowsShape<8, 16, 1, 2, 4>;
using SomeColumns = RowsShape<128, 32, 8, 4, 4>;
using SkinnyOfSomeColumns = RowsShape<32, 32, 2, 4, 4>;
using MostColumns = RowsShape<256, 64, 8, 8, 4>;
using SkinnyOfMostColumns = RowsShape<32, 64, 4, 4, 4>;

/// The shared memory of a thread block. It holds a ring buffer with tiles of both factors while the block multiplies,
/// and then `kept` complete rows of the result at a time.
template <class Shape, class T>
struct alignas(16) RowsStaging {
  static constexpr int most_values = 49152 / sizeof(T);
  static constexpr int unit = 16 / sizeof(T);  // number of values in 16 bytes, which are copied at once
  static constexpr int values_of(int depth) { return Shape::rows * (depth + unit) + depth * Shape::columns; }
  /// Returns the depth of a tile (the number of products that each sum gets from it): the largest depth, of at most
  /// `units` units of 16 bytes, with which four tiles fit the shared memory. For a depth of 8 units, two tiles are
  /// enough; a depth of 4 units is always accepted. Blocks of few rows have deep tiles, because a block waits once for
  /// each tile.
  static constexpr int depth_of(int units) {
    return units == 4 || (units == 8 ? 2 : 4) * values_of(units * unit) <= most_values ? units * unit
                                                                                       : depth_of(units / 2);
  }
  static constexpr int depth = depth_of(32);  // depth of a tile
  // The length of a row of `a` in shared memory. Rows are padded, because rows that are read together would otherwise
  // have bank conflicts.
  static constexpr int pitch = depth + unit;
  static constexpr int fitting = most_values / values_of(depth);
  static constexpr int stages = fitting < 4 ? fitting : 4;
  static constexpr int row_pitch = Shape::columns + Shape::Lanes::size;  // padded to avoid bank conflicts between rows
  static constexpr int fitting_rows(int rows) {
    return rows * row_pitch <= stages * values_of(depth) ? rows : fitting_rows(rows / 2);
  }
  static constexpr int kept = fitting_rows(Shape::rows);
  static_assert(stages >= 2 && kept % Shape::row_patch == 0);
  struct Ring {
    T a[stages][Shape::rows][pitch];
    T b[stages][depth][Shape::columns];
  };
  union {
    Ring ring;
    T row[kept][row_pitch];
  };
};

/// A factor of a product. `line_step` is the distance between neighbouring lines (rows of the first factor, columns of
/// the second), and `depth_step` the distance between neighbouring values of a line, both in values. A thread copies
/// units of 16 bytes: values of one line of the first factor, or values of neighbouring lines of the second factor at
/// one depth. `whole` is true if all units are contiguous, complete and aligned.
template <class T>
struct Strided {
  const T* data;
  Index line_step, depth_step;
  bool whole;
};

/// Copies a unit of 16 bytes from global to shared memory, asynchronously. Only the first `count` values of the unit
/// exist; the others become 0.
/// @param step   distance from value to value in `from`, in values
/// @param whole  whether to copy all 16 bytes at once; step is then 1, and the values exist either all or not at all
template <class T>
__device__ void copy_unit(T* to, const T* from, Index step, int count, bool whole) {
  if (whole) {
    __pipeline_memcpy_async(to, from, 16, count > 0 ? 0 : 16);
    return;
  }
  for (int i = 0; i < static_cast<int>(16 / sizeof(T)); ++i)
    __pipeline_memcpy_async(to + i, from + (i < count ? i * step : 0), sizeof(T), i < count ? 0 : sizeof(T));
}

/// Copies one thread's share of both factors into the ring buffer in shared memory, one tile after the other.
template <class Shape, class T>
class RingFiller {
  using Staging = RowsStaging<Shape, T>;
  static constexpr int unit = Staging::unit, D = Staging::depth, threads = Shape::threads;
  static constexpr int a_across = D / unit, a_units = Shape::rows * a_across / threads;
  static constexpr int b_across = Shape::columns / unit, b_units = divide_up(D * b_across, threads);
  static_assert(threads % a_across == 0 && threads % b_across == 0,
                "gatefold: every thread must copy units of one column");
  static_assert(Shape::rows * a_across % threads == 0,
                "gatefold: every thread must copy the same number of units of a");

 public:
  __device__ RingFiller(const Strided<T>& a, const Strided<T>& b, Index first, Index lines, int columns, int depth)
      : b_line_step_(b.line_step), b_step_(b.depth_step), left_(depth), a_whole_(a.whole), b_whole_(b.whole) {
    a_rows_ = lines - first < Shape::rows ? static_cast<int>(lines - first) : Shape::rows;
#pragma unroll
    for (int i = 0; i < a_units; ++i)
      a_[i] = a.data + (first + (a_row(i) < a_rows_ ? a_row(i) : 0)) * a.line_step + a_depth();
    b_columns_ = columns - b_column();
    b_ = b.data + b_depth(0) * b.depth_step + (b_columns_ > 0 ? b_column() * b.line_step : 0);
  }

  __device__ void fill(typename Staging::Ring& ring, int stage) {
#pragma unroll
    for (int i = 0; i < a_units; ++i) {
      const int count = a_row(i) < a_rows_ ? left_ - a_depth() : 0;
      copy_unit(&ring.a[stage][a_row(i)][a_depth()], count > 0 ? a_[i] : a_[i] - a_depth(), 1, count, a_whole_);
      a_[i] += D;
    }
#pragma unroll
    for (int i = 0; i < b_units; ++i) {
      if (D * b_across % threads != 0 && b_depth(i) >= D) break;
      const bool exists = b_depth(i) < left_;
      copy_unit(&ring.b[stage][b_depth(i)][b_column()], b_ + (exists ? b_depth(i) - b_depth(0) : -b_depth(0)) * b_step_,
                b_line_step_, exists ? b_columns_ : 0, b_whole_);
    }
    b_ += D * b_step_;
    left_ -= D;
  }

 private:
  __device__ static int a_row(int i) { return static_cast<int>(threadIdx.x) / a_across + i * (threads / a_across); }
  __device__ static int a_depth() { return static_cast<int>(threadIdx.x) % a_across * unit; }
  __device__ static int b_depth(int i) { return static_cast<int>(threadIdx.x) / b_across + i * (threads / b_across); }
  __device__ static int b_column() { return static_cast<int>(threadIdx.x) % b_across * unit; }

  // State of this thread's copies. a_ are the addresses of this thread's units of 16 bytes in the next tile of a. b_ is
  // the address of its first unit in the next tile of b.
  const T *a_[a_units], *b_;
  Index b_line_step_, b_step_;
  // a_rows_ is the number of rows of a that the thread block has. b_columns_ is the number of columns of b from this
  // thread's first column on. left_ is the number of values of a line that are not copied yet.
  int a_rows_, b_columns_, left_;
  bool a_whole_, b_whole_;
};

/// Computes the product c = epilogue(a b), and calls f(lanes, n, row) for each row n of c. `row` points to the values
/// of the row in shared memory; `lanes` are the threads that process it together. There is one thread block for each
/// Shape::rows rows.
/// @param c  the result, or null if it is not stored
/// @order  one chain of fused multiply-adds over k, ascending from 0, as in product.cuh
template <class Shape, class T, class E, class F>
static __global__ void __launch_bounds__(Shape::threads, 1)
    product_rows_kernel(Strided<T> a, Strided<T> b, Index lines, int columns, int depth, T* c, E epilogue, F f) {
  using Staging = RowsStaging<Shape, T>;
  constexpr int unit = Staging::unit, D = Staging::depth, stages = Staging::stages;
  __shared__ Staging shared;
  const Index first = Index(blockIdx.x) * Shape::rows;
  const int thread = static_cast<int>(threadIdx.x);
  const int my_row = thread / Shape::across * Shape::row_patch,
            my_column = thread % Shape::across * Shape::column_patch;

  RingFiller<Shape, T> filler(a, b, first, lines, columns, depth);
  T sum[Shape::row_patch][Shape::column_patch] = {};
  for (int stage = 0; stage < stages - 1; ++stage) {
    if (stage * D < depth) filler.fill(shared.ring, stage);
    __pipeline_commit();
  }
  int stage = 0, free = stages - 1;
  for (int left = depth; left > 0; left -= D) {
    __pipeline_wait_prior(stages - 2);
    __syncthreads();
    if (left > (stages - 1) * D) filler.fill(shared.ring, free);
    __pipeline_commit();
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
    free = stage;
    stage = stage + 1 < stages ? stage + 1 : 0;
  }
  __pipeline_wait_prior(0);
  // Waits until all threads have read the ring buffer in shared memory, because the rows of the result overwrite it.
  __syncthreads();

  const int my_rows =
      lines - first - my_row < Shape::row_patch ? static_cast<int>(lines - first) - my_row : Shape::row_patch;
  for (int begin = 0; begin < Shape::rows; begin += Staging::kept) {
    // Waits until all threads have read the previous rows in shared memory, because the next rows overwrite them.
    if (begin > 0) __syncthreads();
    if (Staging::kept == Shape::rows || my_row / Staging::kept * Staging::kept == begin) {
#pragma unroll
      for (int j = 0; j < Shape::column_patch; ++j) {
        const int column = my_column + j;
        if (column >= columns) break;
#pragma unroll
        for (int i = 0; i < Shape::row_patch; ++i) {
          if (i >= my_rows) break;
          const Index n = first + my_row + i;
          const T v = epilogue(OneElement<T>{}, Index(0), n, Index(column), sum[i][j]);
          shared.row[my_row - begin + i][column] = v;
          if (c) c[n * columns + column] = v;
        }
      }
    }
    __syncthreads();
    constexpr int lanes = Shape::Lanes::size;
    for (int row = thread / lanes; row < Staging::kept && first + begin + row < lines; row += Shape::threads / lanes)
      f(typename Shape::Lanes{thread % lanes}, first + begin + row, &shared.row[row][0]);
  }
}

/// Returns whether `lines` rows are enough to give each multiprocessor a thread block of Shape::rows rows.
template <class Shape>
bool rows_for_each(Index lines, int multiprocessors) {
  return blocks(lines, Shape::rows) >= multiprocessors;
}

/// Computes the product c = epilogue(a b), and calls f(lanes, n, row) for each row n of c: `row` points to its values,
/// and `lanes` are the threads that process it together. The function launches product_rows_kernel with a shape that
/// fits the sizes.
/// @param a  [lines, depth]
/// @param b  [depth, columns]; if `tb` is true, [columns, depth]. columns is at least 1 and at most
///           MostColumns::columns
/// @param multiprocessors  the number of multiprocessors, each of which should have a block
template <class T, class E, class F>
void product_rows(cudaStream_t stream, int multiprocessors, Index lines, Index columns, Index depth, const T* a,
                  const T* b, bool tb, T* c, const E& epilogue, const F& f) {
  if (lines == 0) return;
  constexpr Index unit = 16 / sizeof(T);
  const auto aligned = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const Strided<T> from_a{a, depth, 1, depth % unit == 0 && aligned(a)},
      from_b{b, tb ? depth : 1, tb ? 1 : columns, !tb && columns % unit == 0 && aligned(b)};
  const auto run = [&]<class Shape>(Shape) {
    product_rows_kernel<Shape><<<grid(blocks(lines, Shape::rows)), Shape::threads, 0, stream>>>(
        from_a, from_b, lines, static_cast<int>(columns), static_cast<int>(depth), c, epilogue, f);
  };
  const auto run_one_of = [&]<class Shape, class SkinnyShape>(Shape shape, SkinnyShape skinny) {
    if (rows_for_each<Shape>(lines, multiprocessors)) {
      run(shape);
    } else {
      run(skinny);
    }
  };
  if (columns <= FewColumns::columns) {
    run_one_of(FewColumns{}, SkinnyOfFewColumns{});
  } else if (columns <= SeveralColumns::columns) {
    run_one_of(SeveralColumns{}, SkinnyOfSeveralColumns{});
  } else if (columns <= SomeColumns::columns) {
    run_one_of(SomeColumns{}, SkinnyOfSomeColumns{});
  } else {
    run_one_of(MostColumns{}, SkinnyOfMostColumns{});
  }
  expect_launched("Cuda::gemm_rows");
}

/// Applies an epilogue to the finished sums [lines, columns] of a product, c = epilogue(sums), and calls f(lanes, n,
/// row) for each row n. `row` points to a copy of the results in shared memory. There is one warp for each row.
/// @param c  the result, or null if it is not stored
template <class T, class E, class F>
static __global__ void __launch_bounds__(kThreads, kRowBlocks)
    copied_rows_kernel(Index lines, int columns, const T* sums, T* c, E epilogue, F f) {
  extern __shared__ __align__(16) unsigned char copies[];
  const int lane = static_cast<int>(threadIdx.x) % Warp::size, mine = static_cast<int>(threadIdx.x) / Warp::size;
  const Index n = Index(blockIdx.x) * kRows + mine;
  if (n >= lines) return;
  T* row = reinterpret_cast<T*>(copies) + mine * columns;
  for (int j = lane; j < columns; j += Warp::size) {
    const T v = epilogue(OneElement<T>{}, Index(0), n, Index(j), sums[n * columns + j]);
    row[j] = v;
    if (c) c[n * columns + j] = v;
  }
  __syncwarp();
  f(Warp{lane}, n, row);
}

/// The largest number of columns of a row for which the shared memory of a thread block can hold one row for each of
/// its warps.
template <class T>
inline constexpr Index most_copied_columns = 49152 / kRows / static_cast<int>(sizeof(T));

template <class T, class E, class F>
void copied_rows(cudaStream_t stream, Index lines, Index columns, const T* sums, T* c, const E& epilogue, const F& f) {
  if (lines == 0) return;
  copied_rows_kernel<<<grid(blocks(lines, kRows)), kThreads, sizeof(T) * kRows* static_cast<std::size_t>(columns),
                       stream>>>(lines, static_cast<int>(columns), sums, c, epilogue, f);
  expect_launched("Cuda::gemm_rows");
}

}  // namespace gatefold::detail_::device
