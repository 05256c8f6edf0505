#pragma once

#include <bit>
#include <cstdint>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/row_tile.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/types.hpp"

/// Sums the rows of each expert's slots (its rows of work), for example for the gradients of biases. The sums have two
/// levels, so that many thread blocks can share the slots of one expert. This also helps to sum the bias gradient of a
/// router. In that sum, all items are slots of a single group.
namespace gatefold::detail_::device {

/// The number of rows (slots) that one thread block adds up. It is small enough to give each thread few steps, and
/// large enough to keep the number of partial sums small.
inline constexpr Index kSumSlots = 256;

/// Returns the number of columns that a thread block sums. It is the number of columns of the matrix, rounded up to a
/// power of two, but at most the size of a warp. With this width, kThreads / width threads of the block share a column.
/// Each of them sums a part of the rows, called a chain.
inline int sum_width(Index columns) {
  return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(columns < Warp::size ? columns : Warp::size)));
}

/// The column that a thread sums in a matrix of `columns` columns, and its chain. The threads of a block that share a
/// column each sum a part of the rows, called a chain.
struct SumPlace {
  int chain;
  Index strip, column;  // strip: index of the block among the blocks that sum the same columns
  __device__ SumPlace(Index columns, int width) {
    const Index strips = divide_up(columns, width);
    chain = static_cast<int>(threadIdx.x) / width;
    strip = blockIdx.x / strips;
    column = blockIdx.x % strips * width + static_cast<int>(threadIdx.x) % width;
  }
};

/// The matrix whose rows are summed, one row for each slot (row of work of an expert). The value of slot s is row
/// rows[s] of dc, times weight[s]. If `rows` is null, it is row s; if `weight` is null, the factor is 1.
template <class T>
struct SlotValues {
  const T* dc;
  const Index* rows;
  const T* weight;
  Index columns;
  __device__ T operator()(Index s, Index column) const {
    const T v = dc[(rows ? rows[s] : s) * columns + column];
    return weight ? weight[s] * v : v;
  }
};

/// Returns the sum of this thread's column of `from` over the `count` rows from row `first` on. The threads of a block
/// that share a column add up their parts (chains). Only the threads of chain 0 get the result.
/// @order  rows in kThreads / width interleaved chains; then the second half of the chains is added to the first half,
///         until one chain is left
template <class T>
__device__ T sum_of_rows(const SlotValues<T>& from, Index first, Index count, int width, const SumPlace& my) {
  __shared__ T of_chain[kThreads];
  const int chains = kThreads / width;
  T sum = 0;
  if (my.column < from.columns)
    for (Index i = my.chain; i < count; i += chains) sum += from(first + i, my.column);
  of_chain[threadIdx.x] = sum;
  for (int half = chains / 2; half > 0; half /= 2) {
    __syncthreads();
    if (my.chain < half) of_chain[threadIdx.x] = sum += of_chain[threadIdx.x + half * width];
  }
  return sum;
}

/// Computes the sum of each tile of rows: partial[t] is the sum of tile t, which has up to kSumSlots rows (slots) of
/// one expert. Tiles are numbered expert by expert.
template <class T>
static __global__ void __launch_bounds__(kThreads)
    partial_grouped_sums_kernel(const Index* offsets, Index experts, SlotValues<T> from, int width, T* partial) {
  const SumPlace my(from.columns, width);
  const RowTile tile = find_row_tile(offsets, experts, kSumSlots, my.strip);
  if (tile.expert < 0) return;
  const Index first = offsets[tile.expert] + tile.row, left = offsets[tile.expert + 1] - first;
  const T sum = sum_of_rows(from, first, left < kSumSlots ? left : kSumSlots, width, my);
  if (my.chain == 0 && my.column < from.columns) partial[my.strip * from.columns + my.column] = sum;
}

/// Computes db[e], the sum of the rows of `from` that belong to expert e, or adds it to db[e] if `accumulate` is true.
/// If `partial` is true, the rows are the partial sums of tiles of slots; otherwise each row belongs to one slot.
template <class T>
static __global__ void __launch_bounds__(kThreads)
    grouped_sum_kernel(const Index* offsets, SlotValues<T> from, bool partial, int width, bool accumulate, T* db) {
  const SumPlace my(from.columns, width);
  const Index expert = my.strip, slots = offsets[expert + 1] - offsets[expert];
  if (slots == 0 && accumulate) return;
  const Index first = partial ? count_row_tiles(offsets, expert, kSumSlots) : offsets[expert];
  const Index rows = partial ? divide_up(slots, kSumSlots) : slots;
  const T sum = sum_of_rows(from, first, rows, width, my);
  if (my.chain > 0 || my.column >= from.columns) return;
  T& to = db[expert * from.columns + my.column];
  to = accumulate ? to + sum : sum;
}

/// Adds the sum of the rows of each expert e's slots (its rows of work) to db[e]. Without `accumulate`, db[e] is
/// overwritten with the sum.
/// @param slots  upper bound of the number of slots
/// @order  the slots of an expert in groups of kSumSlots, each group as in sum_of_rows; then the sums of the groups,
///         also as in sum_of_rows. The same slots and columns give the same bits, whatever slots the other experts have
/// @cost   reads dc once; a thread's chain has at most kSumSlots / 8 terms, or about slots / (8 · kSumSlots) if that is
///         more
template <class T, class Context>
void grouped_sum(Context& ctx, const Index* offsets, Index experts, Index slots, SlotValues<T> from, bool accumulate,
                 T* db) {
  const Index columns = from.columns;
  if (experts == 0 || columns == 0) return;
  const int width = sum_width(columns);
  const Index strips = blocks(columns, width);
  const auto mark = ctx.mark();
  const bool two_levels = slots > kSumSlots;
  if (two_levels) {
    const Index tiles = slots / kSumSlots + (experts < slots ? experts : slots);  // upper bound of the number of tiles
    T* const partial = ctx.template scratch<T>(tiles, columns).data();
    partial_grouped_sums_kernel<<<grid(strips * tiles), kThreads, 0, ctx.product_stream()>>>(offsets, experts, from,
                                                                                             width, partial);
    expect_launched("Cuda::grouped_sum");
    from = {partial, nullptr, nullptr, columns};
  }
  grouped_sum_kernel<<<grid(strips * experts), kThreads, 0, ctx.product_stream()>>>(offsets, from, two_levels, width,
                                                                                    accumulate, db);
  expect_launched("Cuda::grouped_sum");
}

}  // namespace gatefold::detail_::device
