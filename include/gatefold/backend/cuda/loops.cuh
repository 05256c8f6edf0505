#pragma once

#include <algorithm>
#include <cstdint>

#include <cub/block/block_reduce.cuh>

#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/cuda/warp.cuh"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// Loops and sums of the CUDA backend.
namespace gatefold::detail_::device {

inline constexpr int kThreads = 256;  // threads of a block
inline constexpr int kRows = kThreads / Warp::size;
// Number of thread blocks that should fit on a multiprocessor at a time. Four blocks give it many warps, and leave each
// thread enough registers to avoid spills.
inline constexpr int kRowBlocks = 4;
inline constexpr Index kSumBlock = 4096;  // number of terms that one thread block adds up

inline Index blocks(Index n, Index each) { return divide_up(n, each); }
/// Returns `blocks` as the number of thread blocks of a kernel launch.
/// @throws ArgumentError if a launch cannot have that many blocks
inline unsigned grid(Index blocks) {
  constexpr Index most = INT32_MAX;
  expect(blocks <= most, "Cuda", "blocks of a launch", Joined{"at most ", most, " (pass fewer items in one call)"},
         blocks);
  return static_cast<unsigned>(blocks);
}

template <class F>
static __global__ void __launch_bounds__(kThreads) each_kernel(Index n, F f) {
  const Index i = Index(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  if constexpr (RegisterFunctor<F>) {
    f(OneElement<typename F::Element>{}, i);
  } else {
    f(i);
  }
}

/// The number of thread blocks of rows_kernel<F> that should fit on a multiprocessor at a time. This number limits the
/// registers of a thread.
template <class F>
inline constexpr int row_blocks = kRowBlocks;
template <class Rows, class Step>
inline constexpr int row_blocks<functor::ElementWithStep<Rows, Step, double>> = 3;  // with 4, Adam spills on sm_120

template <class F>
static __global__ void __launch_bounds__(kThreads, row_blocks<F>) rows_kernel(Index n, F f) {
  const Index row = Index(blockIdx.x) * kRows + threadIdx.x / Warp::size;
  const Warp lanes{static_cast<int>(threadIdx.x % Warp::size)};
  if (row >= n) return;
  if constexpr (IndependentColumns<F>) {
    f(WarpOfRow{lanes, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y)}, row);
  } else {
    f(lanes, row);
  }
}

/// The number of neighbouring columns that a lane (one of the threads that share a row) processes at a time in functor
/// F. A lane processes only one double at a time. for_rows nevertheless uses this number to choose how many warps share
/// a row of doubles; doubles are meant for checks.
template <class F>
inline constexpr int columns_at_once = WarpOfRow::columns_at_once;
template <class F>
requires requires { F::columns_at_once; }
inline constexpr int columns_at_once<F> = F::columns_at_once;

/// Returns how many warps should share a row. The result is more than 1 if there are too few rows to keep the device
/// busy with one warp each, and every lane of each warp still has work.
/// @param parts  the number of parts of a row; a lane processes one part at a time
inline unsigned warps_of_row(Index rows, Index parts, int multiprocessors) {
  const Index room = Index(multiprocessors) * kRowBlocks / blocks(rows, kRows), most = parts / Warp::size;
  return static_cast<unsigned>(std::max(Index(1), std::min(room, most)));
}

/// Sums f(i) over the terms of this thread block, and returns the sum on thread 0. Block b sums the terms with
/// b · kSumBlock <= i < (b + 1) · kSumBlock and i < n. The bits of the sum do not depend on the device.
template <class T, class F>
__device__ T block_sum(Index n, const F& f) {
  using Sum = cub::BlockReduce<T, kThreads>;
  __shared__ typename Sum::TempStorage shared;
  const Index begin = Index(blockIdx.x) * kSumBlock, end = begin + kSumBlock < n ? begin + kSumBlock : n;
  T sum = 0;
  for (Index i = begin + threadIdx.x; i < end; i += kThreads) sum += f(i);
  return Sum(shared).Sum(sum);
}
template <class T, class F>
static __global__ void __launch_bounds__(kThreads) partial_sums_kernel(Index n, F f, T* partial) {
  const T sum = block_sum<T>(n, f);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
template <class T, class F>
static __global__ void __launch_bounds__(kThreads) add_sum_kernel(Index n, F f, T* out) {
  const T sum = block_sum<T>(n, f);
  if (threadIdx.x == 0) *out += sum;
}

/// Calls f(i) for each i < n, with one thread for each i.
template <class F>
void for_each(cudaStream_t stream, Index n, const F& f) {
  if (n == 0) return;
  each_kernel<<<grid(blocks(n, kThreads)), kThreads, 0, stream>>>(n, f);
  expect_launched("Cuda::for_each");
}

/// Calls f(lanes, row) for each row < n. The `lanes` of one warp process a row together. If f satisfies
/// IndependentColumns, several warps can share a row.
/// @param multiprocessors  the number of multiprocessors to keep busy
template <class F>
void for_rows(cudaStream_t stream, Index n, const F& f, int multiprocessors = 1) {
  if (n == 0) return;
  unsigned parts = 1;
  if constexpr (IndependentColumns<F>)
    parts = warps_of_row(n, f.independent_columns() / columns_at_once<F>, multiprocessors);
  rows_kernel<<<dim3(grid(blocks(n, kRows)), parts), kThreads, 0, stream>>>(n, f);
  expect_launched("Cuda::for_rows");
}

template <class T>
struct PartialSum {
  const T* partial;
  __device__ T operator()(Index i) const { return partial[i]; }
};

/// Adds Σ_i f(i) over all i < n to *out.
/// @order  blocks of kSumBlock terms, each summed by 256 threads and a fixed tree. The sums of the blocks are then
///         summed in the same way, until one sum is left
template <class T, class Context, class F>
void reduce(Context& ctx, Index n, const F& f, T* out) {
  if (n == 0) return;
  if (n <= kSumBlock) {
    add_sum_kernel<T><<<1, kThreads, 0, ctx.stream()>>>(n, f, out);
    expect_launched("Cuda::reduce");
    return;
  }
  const auto mark = ctx.mark();
  const Index count = blocks(n, kSumBlock);
  T* partial = ctx.template scratch<T>(count).data();
  partial_sums_kernel<T><<<grid(count), kThreads, 0, ctx.stream()>>>(n, f, partial);
  expect_launched("Cuda::reduce");
  reduce<T>(ctx, count, PartialSum<T>{partial}, out);
}

}  // namespace gatefold::detail_::device
