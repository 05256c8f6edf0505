#pragma once

#include <array>
#include <cstddef>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/bf16_tile.cuh"
#include "gatefold/backend/cuda/device_code.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/outer_product.cuh"
#include "gatefold/backend/cuda/row_tile.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/types.hpp"

/// Grouped products (one matrix product for each expert) of bfloat16 matrices on tensor cores. As in product.cuh, the
/// kernels read from device memory which rows belong to each expert, and gather these rows while they copy them.
namespace gatefold::detail_::device {

/// Holds `Count` bfloat16 matrices of the same shape.
template <int Count>
struct EachBf16 {
  Bf16Matrix of[Count];
};

/// The number of result matrices that a kernel computes at the same time and passes to one epilogue. It is `Count` if
/// one first factor is multiplied by `Count` second factors (two for a gated unit). It is 1 for a sum of `Terms`
/// products, which has as many first as second factors.
template <int Terms, int Count>
inline constexpr int matrices_of = Count / Terms;

/// Computes a grouped product: c[s] = epilogue(a[row(s)] op(b_e)) for each slot s (one row of work of expert e), or
/// epilogue(Σ_t a_t[row(s)] op(b_te)) for a sum of products. row(s) is the row of `a` that the slot reads; op(b) is b
/// or its transpose. There is one thread block for each tile of c.
/// @param b_step  number of values of b from one expert to the next
/// @param stride  number of values in a row of c
template <class Shape, Layout OfB, bool Gathers, int Terms, int Count, class C, class E>
static __global__ void __launch_bounds__(GATEFOLD_TENSOR_CORES ? Shape::threads : kNoCode, Shape::blocks)
    bf16_rows_kernel(EachBf16<Terms> a, EachBf16<Count> b, Index b_step, const Index* offsets, Index experts,
                     Index columns, Index depth, C* c, Index stride, E epilogue) {
  extern __shared__ __align__(128) unsigned char bf16_ring[];
  constexpr int Matrices = matrices_of<Terms, Count>, tile_columns = Shape::columns / Matrices;
  const Index column_tiles = divide_up(stride, tile_columns);
  // The position of the tile is in shared memory, because the registers are needed for the sums.
  __shared__ Bf16TilePlace place;
  if (threadIdx.x < 32) {
    const RowTile tile = find_row_tile(offsets, experts, Shape::rows, blockIdx.x / column_tiles);
    const Index first = tile.expert < 0 ? 0 : offsets[tile.expert];
    if (threadIdx.x == 0)
      place = {tile.expert, first,    tile.expert < 0 ? 0 : offsets[tile.expert + 1] - first,
               columns,     tile.row, blockIdx.x % column_tiles * tile_columns};
  }
  __syncthreads();
  if (place.expert < 0) return;
  for (Bf16Matrix& matrix : b.of) matrix.data += place.expert * b_step;
  Bf16Tile<Shape, Layout::along_depth, OfB, Matrices> sums;
#pragma unroll 1
  for (int t = 0; t < Terms; ++t)
    sums.template sum<Gathers, false>(bf16_ring, place, a.of[t].skip(place.first), b.of + t * Matrices, depth);
  sums.finish(bf16_ring, place, c + place.first * row_elements<C>(stride), stride, epilogue);
}

/// Launches a kernel whose thread blocks need `bytes` bytes of dynamic shared memory, more than the default limit. It
/// raises the limit first.
template <class... P, class... Q>
void launch_with_ring(cudaStream_t stream, void (*kernel)(P...), Index blocks, int threads, int bytes,
                      Q&&... arguments) {
  expect_success(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                 "cudaFuncSetAttribute");
  kernel<<<grid(blocks), threads, static_cast<std::size_t>(bytes), stream>>>(arguments...);
}

/// Returns the number of rows that a tile should have if `experts` experts share `slots` rows. If there are few rows
/// for each expert, tiles are small, so that most of their rows are used.
inline int bf16_tile_rows(Index slots, Index experts) {
  const Index some = experts < slots ? experts : slots;  // upper bound of the number of experts with rows
  if (slots <= some * Bf16Skinny::rows) return Bf16Skinny::rows;
  return slots <= some * Bf16SomeRows::rows ? Bf16SomeRows::rows : Bf16ManyRows::rows;
}

/// Returns the number of columns that a tile should have if each expert has few rows. It is smaller if wide tiles would
/// be too few to keep the device busy.
inline int bf16_skinny_columns(Index experts, Index columns, int multiprocessors) {
  if (experts * blocks(columns, Bf16Skinny::columns) >= multiprocessors) return Bf16Skinny::columns;
  const bool few = 2 * experts * blocks(columns, Bf16SkinnyNarrow::columns) <= multiprocessors;
  return few ? Bf16SkinnyNarrowest::columns : Bf16SkinnyNarrow::columns;
}

/// States at compile time the order of the rows of a product's first factor. With in_slot_order, the rows are
/// always in slot order (sorted by expert), so no kernel that gathers rows is compiled. With any, the kernel gathers if
/// the factor has row numbers, which is known only at run time.
enum class RowsOfA { any, in_slot_order };

/// Launches the kernel of a grouped product: c[s] = epilogue(a[row(s)] op(b_e)) for each slot s (one row of work of
/// expert e), or, for several a, epilogue(Σ_t a_t[row(s)] op(b_te)). row(s) is the row of `a` that the slot reads;
/// op(b) is b or its transpose.
/// @param a        each [.., depth]. Either all of them have row numbers and are gathered, or all have no row numbers
/// @param b        each [experts, depth, columns], or, if OfB is along_depth, [experts, columns, depth]
/// @param slots    upper bound of the number of slots
/// @param c        [slots, columns], in rows of `stride` values
template <Layout OfB, RowsOfA Rows = RowsOfA::any, int Terms, int Count, class C, class Context, class E>
void bf16_slots_are_rows(Context& ctx, const EachBf16<Terms>& a, const EachBf16<Count>& b, Index b_step,
                         const Index* offsets, Index experts, Index slots, Index columns, Index depth, C* c,
                         Index stride, const E& epilogue) {
  constexpr int Matrices = matrices_of<Terms, Count>;
  if (experts == 0 || slots == 0 || columns == 0) return;
  const Index some = experts < slots ? experts : slots;  // upper bound of the number of experts with rows
  const auto run_gathered = [&]<class Shape, bool Gathers>(Shape, std::bool_constant<Gathers>) {
    const Index tiles = (slots / Shape::rows + some) * blocks(stride, Shape::columns / Matrices);
    launch_with_ring(ctx.product_stream(), bf16_rows_kernel<Shape, OfB, Gathers, Terms, Count, C, E>, tiles,
                     Shape::threads, Bf16Tile<Shape, Layout::along_depth, OfB, Matrices>::bytes, a, b, b_step, offsets,
                     experts, columns, depth, c, stride, epilogue);
  };
  const auto run = [&](auto shape) {
    if constexpr (Rows == RowsOfA::any)
      if (a.of[0].rows) return run_gathered(shape, std::true_type{});
    run_gathered(shape, std::false_type{});
  };
  switch (bf16_tile_rows(slots, experts)) {
    case Bf16Skinny::rows:
      if constexpr (Matrices == 1) {
        const int width = bf16_skinny_columns(some, stride, ctx.multiprocessors());
        if (width == Bf16SkinnyNarrowest::columns) {
          run(Bf16SkinnyNarrowest{});
          break;
        } else if (width == Bf16SkinnyNarrow::columns) {
          run(Bf16SkinnyNarrow{});
          break;
        }
      }
      run(Bf16Skinny{});
      break;
    case Bf16SomeRows::rows:
      run(Bf16SomeRows{});
      break;
    default:
      run(Bf16ManyRows{});
  }
  expect_launched("Cuda::grouped_gemm");
}

/// Computes gradients of weights: dw[e] is the sum of a[row(s)]ᵀ b[row(s)] over the slots s (rows of work) of expert e.
/// If `accumulate` is true, the sum is added to dw[e]. row(s) is the row that a slot reads; a and b each have their own
/// row numbers. There is one thread block for each tile of dw[e].
template <class Shape, bool GathersA, bool GathersB>
static __global__ void __launch_bounds__(GATEFOLD_TENSOR_CORES ? Shape::threads : kNoCode, Shape::blocks)
    bf16_depth_kernel(Bf16Matrix a, EachBf16<1> b, const Index* offsets, Index rows, Index columns, bool accumulate,
                      float* dw) {
  extern __shared__ __align__(128) unsigned char bf16_ring[];
  const Index row_tiles = divide_up(rows, Shape::rows);
  const Index column_tiles = divide_up(columns, Shape::columns);
  const Index expert = blockIdx.x / (column_tiles * row_tiles);
  const Index first = offsets[expert], count = offsets[expert + 1] - first;
  if (count == 0 && accumulate) return;
  __shared__ Bf16TilePlace place;
  if (threadIdx.x == 0)
    place = {expert,
             expert * rows,
             rows,
             columns,
             blockIdx.x / column_tiles % row_tiles * Shape::rows,
             blockIdx.x % column_tiles * Shape::columns};
  __syncthreads();
  b.of[0] = b.of[0].skip(first);
  Bf16Tile<Shape, Layout::along_lines, Layout::along_lines, 1> sums;
  sums.template sum<GathersA, GathersB>(bf16_ring, place, a.skip(first), b.of, count);
  sums.finish(bf16_ring, place, dw + expert * rows * columns, columns,
              AddOrStore<float>{accumulate ? dw : nullptr, columns});
}

/// Launches the kernel for gradients of weights: dw[e] += Σ_s a[row(s)]ᵀ b[row(s)] over the slots s (rows of work) of
/// expert e. row(s) is the row that a slot reads; a and b each have their own row numbers. Without `accumulate`, dw[e]
/// is overwritten with the sum, which is 0 for an expert without slots.
template <class Context>
void bf16_slots_are_depth(Context& ctx, const Bf16Matrix& a, const Bf16Matrix& b, const Index* offsets, Index experts,
                          Index rows, Index columns, bool accumulate, float* dw) {
  if (experts == 0 || rows == 0 || columns == 0) return;
  using Shape = Bf16ManyRows;
  const auto run = [&]<bool GathersA, bool GathersB>(std::bool_constant<GathersA>, std::bool_constant<GathersB>) {
    launch_with_ring(ctx.product_stream(), bf16_depth_kernel<Shape, GathersA, GathersB>,
                     experts * blocks(rows, Shape::rows) * blocks(columns, Shape::columns), Shape::threads,
                     Bf16Tile<Shape, Layout::along_lines, Layout::along_lines, 1>::bytes, a, EachBf16<1>{b}, offsets,
                     rows, columns, accumulate, dw);
  };
  const auto run_either = [&](auto gathers_a) {
    if (b.rows) {
      run(gathers_a, std::true_type{});
    } else {
      run(gathers_a, std::false_type{});
    }
  };
  if (a.rows) {
    run_either(std::true_type{});
  } else {
    run_either(std::false_type{});
  }
  expect_launched("Cuda::grouped_outer");
}

}  // namespace gatefold::detail_::device
