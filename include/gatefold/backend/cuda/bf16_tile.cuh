#pragma once

#include <cstdint>
#include <type_traits>

#include "gatefold/backend/cuda/bf16_loader.cuh"
#include "gatefold/backend/cuda/epilogue.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/tensor_core.cuh"
#include "gatefold/core/types.hpp"

/// A tile of the product of two bfloat16 matrices. One thread block computes it on tensor cores and sums in float.
namespace gatefold::detail_::device {

/// Sizes of a tile of a product. A thread block computes rows × columns sums; if it computes two result matrices at
/// once, each has half of the columns. A warp computes warp_rows × warp_columns of these sums.
template <int Rows, int Columns, int WarpRows, int WarpColumns, int Stages, int Blocks>
struct Bf16Shape {
  static constexpr int rows = Rows, columns = Columns, warp_rows = WarpRows, warp_columns = WarpColumns;
  // stages: number of tiles of the factors in the ring buffer in shared memory. blocks: number of thread blocks that
  // should fit a multiprocessor at a time, which limits the registers of a thread.
  static constexpr int stages = Stages, blocks = Blocks;
  static constexpr int warps_across = columns / warp_columns, threads = rows / warp_rows * warps_across * 32;
};
using Bf16ManyRows = Bf16Shape<128, 128, 64, 64, 3, 2>;
using Bf16SomeRows = Bf16Shape<64, 128, 32, 64, 3, 2>;
using Bf16Skinny = Bf16Shape<16, 128, 16, 32, 4, 3>;
// Narrower shapes than Bf16Skinny, for products with one result matrix. They are used if Bf16Skinny would give too few
// tiles to keep the device busy.
using Bf16SkinnyNarrow = Bf16Shape<16, 64, 16, 16, 8, 2>;
using Bf16SkinnyNarrowest = Bf16Shape<16, 32, 16, 16, 16, 2>;

/// The position of a thread block's tile in the result c of a grouped product.
struct Bf16TilePlace {
  Index expert, first;  // first: the row number that the epilogue gets for the expert's first row
  Index rows, columns;  // number of rows and columns of the expert's part of the result c
  Index row, column;    // first row and column of the tile within the expert's part of c
};

/// The sums of one tile of a product. A thread block computes the tile, and each thread keeps its sums in registers.
/// @tparam OfA, OfB  layouts of the two factors in memory
template <class Shape, Layout OfA, Layout OfB, int Matrices>
class Bf16Tile {
  static constexpr int D = Bf16Place::depth, stages = Shape::stages;
  static constexpr int columns = Shape::columns / Matrices;  // columns of one matrix
  static constexpr int warp_columns = Shape::warp_columns / Matrices;
  static constexpr int down = Shape::warp_rows / 16, across = warp_columns / 8;
  static constexpr int a_bytes = Shape::rows * Bf16Place::row_bytes, b_bytes = columns * Bf16Place::row_bytes;
  static constexpr int stage_bytes = a_bytes + Matrices * b_bytes;
  static constexpr int pass_rows = Shape::rows / Shape::warp_rows * 16, pitch = columns + 8;
  static_assert(warp_columns % 16 == 0,
                "gatefold: warp_columns must be a multiple of 16, because ldmatrix loads 16 columns");

 public:
  /// The size of the shared memory that a block needs, in bytes.
  static constexpr int bytes = stages * stage_bytes;
  static_assert(Matrices * pass_rows * pitch * 4 <= bytes);

  /// Multiplies `a` by each second factor b, and adds the products to the sums. Each sum gets `depth` products.
  /// @param b  an array with one second factor for each result matrix
  /// @order  groups of 16 products in ascending order of the depth (the position in the sum). The tensor core adds each
  ///         group to a float. The order is the same for every shape, so that an element depends only on its own row
  ///         and column
  template <bool GathersA, bool GathersB>
  __device__ void sum(unsigned char* ring, const Bf16TilePlace& place, const Bf16Matrix& a, const Bf16Matrix* b,
                      Index depth) {
    Bf16Loader<OfA, GathersA, Shape::rows, Shape::threads> a_loader;
    Bf16Loader<OfB, GathersB, columns, Shape::threads> b_loader[Matrices];
    a_loader.begin(a, place.row, place.rows, OfA == Layout::along_depth ? bf16_stride(depth) : depth);
    for (int m = 0; m < Matrices; ++m)
      b_loader[m].begin(b[m], place.column, place.columns, OfB == Layout::along_depth ? bf16_stride(depth) : depth);
    const auto load = [&](int stage) {
      a_loader.load(ring + stage * stage_bytes);
#pragma unroll
      for (int m = 0; m < Matrices; ++m) b_loader[m].load(ring + stage * stage_bytes + a_bytes + m * b_bytes);
    };
    const int steps = static_cast<int>(divide_up(depth, D));
    for (int stage = 0; stage < stages - 1; ++stage) {
      if (stage < steps) load(stage);
      __pipeline_commit();
    }
    const bool busy = place.row + warp_row() < place.rows;
    int stage = 0, free = stages - 1;
    for (int left = steps; left > 0; --left) {
      wait_for_copies<stages - 2>();
      __syncthreads();
      if (left >= stages) load(free);
      __pipeline_commit();
      if (busy) multiply(shared_address(ring) + static_cast<std::uint32_t>(stage * stage_bytes));
      free = stage;
      stage = stage + 1 < stages ? stage + 1 : 0;
    }
    wait_for_copies<0>();
    __syncthreads();  // finish() overwrites the ring buffer, so all threads must have read it
  }

  /// Applies an epilogue (for example bias and activation) to the sums, and stores the results in c. The sums pass
  /// through shared memory, so that neighbouring threads write neighbouring values and the compiler generates the
  /// epilogue's code only once. In bfloat16 results, values after the last column, up to the end of the row, become 0.
  /// @param c  the expert's part of c, in rows of `stride` values
  template <class C, class E>
  __device__ void finish(unsigned char* ring, const Bf16TilePlace& place, C* c, Index stride, const E& epilogue) const {
    // The sums in shared memory: an array [Matrices][pass_rows][pitch] with rows of `pitch` floats.
    auto* const staged = reinterpret_cast<float*>(ring);
    constexpr int matrix = pass_rows * pitch;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < down; ++i) {
      const int row = warp_row() / Shape::warp_rows * 16 + lane / 4, column = warp_column() + lane % 4 * 2;
#pragma unroll
      for (int m = 0; m < Matrices; ++m)
#pragma unroll
        for (int j = 0; j < across; ++j)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float* const to = staged + m * matrix + (row + 8 * half) * pitch + column + 8 * j;
            to[0] = sum_[m][i][j][2 * half];
            to[1] = sum_[m][i][j][2 * half + 1];
          }
      __syncthreads();
      constexpr int run = 8, runs = columns / run;
#pragma unroll 1
      for (int at = static_cast<int>(threadIdx.x); at < pass_rows * runs; at += Shape::threads) {
        const int y = at / runs, x = at % runs * run;
        const Index r = place.row + y / 16 * Shape::warp_rows + i * 16 + y % 16, j = place.column + x;
        const bool exists = r < place.rows && j < stride;
        if (!std::is_same_v<C, ColumnSum> && !exists) continue;
        Elements<run> sums[Matrices];
#pragma unroll
        for (int m = 0; m < Matrices; ++m) sums[m] = ElementsAccess<run>{}.load(staged + m * matrix + y * pitch + x);
        C* const of_row = c + r * row_elements<C>(stride);
        if constexpr (std::is_same_v<C, ColumnSum>) {
          // finish_column_sum exchanges values between the lanes of a warp. Every lane calls it, also for values that
          // do not exist.
          static_assert(pass_rows * runs % Shape::threads == 0 && runs % 4 == 0);
          finish_column_sum<Matrices>(epilogue, exists, place.expert, place.first + r, j, place.columns, sums, of_row);
        } else {
          finish_row_part<Matrices>(epilogue, place.expert, place.first + r, j, place.columns, sums, of_row, stride);
        }
      }
      __syncthreads();
    }
  }

 private:
  /// Returns the first row of this warp's part of the tile.
  __device__ static int warp_row() {
    return static_cast<int>(threadIdx.x) / 32 / Shape::warps_across * Shape::warp_rows;
  }
  /// Returns the first column of this warp's part of the tile.
  __device__ static int warp_column() {
    return static_cast<int>(threadIdx.x) / 32 % Shape::warps_across * warp_columns;
  }
  /// Multiplies the tiles of both factors that are in one stage of the ring buffer in shared memory, and adds the
  /// products to the sums.
  /// @param from  address of that stage
  __device__ void multiply(std::uint32_t from) {
    // One ldmatrix instruction loads 16 × 16 values as four matrices of 8 × 8. Each lane passes the address of one row
    // of one of these matrices. The matrices are the quarters of the 16 × 16 values: for a, the second matrix is 8 rows
    // below the first; for b, it is 8 positions further along the depth (the dimension that is summed).
    const int lane = static_cast<int>(threadIdx.x) % 32, low = lane % 8, second = lane / 8 % 2, third = lane / 16;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      std::uint32_t of_a[down][4];
#pragma unroll
      for (int i = 0; i < down; ++i) {
        const int line = warp_row() + i * 16;
        if constexpr (OfA == Layout::along_depth) {
          load_matrices<false>(of_a[i], from + Bf16Place::at(line + low + 8 * second, k / 8 | third));
        } else {
          load_matrices<true>(of_a[i], from + Bf16Place::of_line<Shape::rows>(line | 8 * second, k + low + 8 * third));
        }
      }
#pragma unroll
      for (int m = 0; m < Matrices; ++m)
#pragma unroll
        for (int j = 0; j < across; j += 2) {
          const int line = warp_column() + j * 8;
          const std::uint32_t of_matrix = from + static_cast<std::uint32_t>(a_bytes + m * b_bytes);
          std::uint32_t of_b[4];
          if constexpr (OfB == Layout::along_depth) {
            load_matrices<false>(of_b, of_matrix + Bf16Place::at(line + low + 8 * third, k / 8 | second));
          } else {
            load_matrices<true>(of_b, of_matrix + Bf16Place::of_line<columns>(line | 8 * third, k + low + 8 * second));
          }
#pragma unroll
          for (int i = 0; i < down; ++i) {
            multiply_add(sum_[m][i][j], of_a[i], of_b[0], of_b[1]);
            multiply_add(sum_[m][i][j + 1], of_a[i], of_b[2], of_b[3]);
          }
        }
    }
  }

  float sum_[Matrices][down][across][4] = {};
};

}  // namespace gatefold::detail_::device
