#pragma once

#include <type_traits>

#include "gatefold/backend/cuda/product.cuh"

/// Gradients of weights: matrix products that sum over the slots (rows of work) of each expert.
namespace gatefold::detail_::device {

/// An epilogue that adds to the sum v the value at (row, j) of the matrix `before`, or 0 if `before` is null. Row
/// numbers count the rows of the matrices of all experts, one expert after the other.
template <class T>
struct AddOrStore {
  const T* before;
  Index columns;
  template <class A>
  __device__ typename A::Value operator()(const A& at, Index, Index row, Index j, typename A::Value v) const {
    using V = typename A::Value;
    // Adding V(0) turns -0 into 0. A stored gradient then has the same bits as one that is added to zeros.
    return (before ? at.load(before + row * columns + j) : V(0)) + v;
  }
};

/// Computes gradients of weights: dw[e] is the sum of a[row(s)]ᵀ b[row(s)] over the slots s (rows of work) of expert e.
/// If `accumulate` is true, the sum is added to dw[e]. row(s) is the row that a slot reads; a and b each have their own
/// row numbers. There is one thread block for each tile of dw[e].
/// @tparam Gathers  whether b has row numbers. With the largest tile, b must have none, because no registers are left
template <class Shape, bool Gathers, class T>
static __global__ void __launch_bounds__(Shape::threads, promised_blocks<Shape, 1, false>())
    slots_are_depth_kernel(Operand<T> a, Each<T, 1> b, const Index* offsets, Index rows, Index columns, bool accumulate,
                           T* dw) {
  __shared__ Staging<Shape, 1, T> shared;
  __shared__ Place place;
  const Index row_tiles = divide_up(rows, Shape::rows);
  const Index column_tiles = divide_up(columns, Shape::columns);
  const Index expert = blockIdx.x / (column_tiles * row_tiles);
  const Index first = offsets[expert], count = offsets[expert + 1] - first;
  if (count == 0 && accumulate) return;
  if (threadIdx.x == 0)
    place = {expert,
             expert * rows,
             rows,
             columns,
             blockIdx.x / column_tiles % row_tiles * Shape::rows,
             blockIdx.x % column_tiles * Shape::columns,
             {0, 0, static_cast<int>(divide_up(count, Shape::depth))}};
  __syncthreads();
  a.layout = b.of[0].layout = Layout::along_lines;
  if constexpr (!Gathers) b.of[0].rows = nullptr;
  b.of[0] = b.of[0].skip(first);
  Tile<Shape, 1, false, T> tile;
  tile.sum(shared, place, a.skip(first), b, count);
  T* const of_expert = dw + expert * rows * columns;
  tile.finish(shared, place, of_expert, AddOrStore<T>{accumulate ? dw : nullptr, columns});
}

/// Launches the kernel for gradients of weights: dw[e] += Σ_s a[row(s)]ᵀ b[row(s)] over the slots s (rows of work) of
/// expert e. row(s) is the row that a slot reads; a and b each have their own row numbers. Without `accumulate`, dw[e]
/// is overwritten with the sum, which is 0 for an expert without slots.
template <class T, class Context>
void slots_are_depth(Context& ctx, const Operand<T>& a, const Operand<T>& b, const Index* offsets, Index experts,
                     Index rows, Index columns, bool accumulate, T* dw) {
  if (experts == 0 || rows == 0 || columns == 0) return;
  const auto tiles = [&]<class Shape>(Shape) {
    return experts * blocks(rows, Shape::rows) * blocks(columns, Shape::columns);
  };
  const auto run = [&]<class Shape, bool Gathers>(Shape shape, std::bool_constant<Gathers>) {
    slots_are_depth_kernel<Shape, Gathers><<<grid(tiles(shape)), Shape::threads, 0, ctx.stream()>>>(
        a, Each<T, 1>{b}, offsets, rows, columns, accumulate, dw);
  };
  const auto run_either = [&](auto shape) {
    if (b.rows) {
      run(shape, std::true_type{});
    } else {
      run(shape, std::false_type{});
    }
  };
  const auto fills = [&]<class Shape>(Shape shape) { return fills_device<Shape>(tiles(shape), ctx.multiprocessors()); };
  const bool whole = rows % 4 == 0 && columns % 4 == 0 && a.aligned && b.aligned;
  if (whole && !b.rows && fills(typename ManyTiles<T, 1>::Shape{})) {
    run(typename ManyTiles<T, 1>::Shape{}, std::false_type{});
  } else if (whole && fills(typename SomeTiles<T, 1>::Shape{})) {
    run_either(typename SomeTiles<T, 1>::Shape{});
  } else {
    run_either(typename FewTiles<T, 1>::Shape{});
  }
  expect_launched("Cuda::grouped_outer");
}

}  // namespace gatefold::detail_::device
