#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// Copies of weights rounded to bfloat16, each found by the address of the original weights. The rows of a copy have
/// the same order, and begin at multiples of 16 bytes (bf16_matrix.cuh).
class PackedWeights {
  struct Free {
    void operator()(Bfloat16* p) const { cudaFree(p); }
  };
  struct Copy {
    std::unique_ptr<Bfloat16, Free> values;
    Index rows = 0, columns = 0;
  };

 public:
  /// Stores a copy of `rows` rows of weights, rounded to bfloat16, and waits until it is complete.
  void add(cudaStream_t stream, const float* w, Index rows, Index columns) {
    round(stream, w, rows, columns);
    // Waits for the copy, because other streams will read it.
    expect_success(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  /// Stores a copy of the weights w, rounded to bfloat16, on a stream, without waiting for it. The first call allocates
  /// the copy. Later calls write to the same memory, so that a CUDA graph can repeat them.
  void round(cudaStream_t stream, const float* w, Index rows, Index columns) {
    const Index count = rows * bf16_stride(columns);
    if (count == 0) return;
    Copy& copy = copies_[w];
    if (copy.rows != rows || copy.columns != columns) {
      copy = {};
      void* memory = nullptr;
      expect_success(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(Bfloat16)), "cudaMalloc");
      copy = {std::unique_ptr<Bfloat16, Free>(static_cast<Bfloat16*>(memory)), rows, columns};
    }
    round_rows(stream, rows, columns, w, copy.values.get());
  }
  /// Returns the bfloat16 copy of the weights w, or null if there is no copy with that number of columns.
  const Bfloat16* find(const void* w, Index columns) const {
    const auto found = copies_.find(w);
    return found == copies_.end() || found->second.columns != columns ? nullptr : found->second.values.get();
  }
  /// Returns the number of weight matrices that have a copy.
  std::size_t size() const { return copies_.size(); }

 private:
  std::map<const void*, Copy> copies_;
};

/// Returns 1 if the copy of weight number i differs from the current weight, rounded to bfloat16; otherwise 0.
struct DiffersFromRounded {
  const float* from;
  const Bfloat16* copy;
  Index columns;
  GATEFOLD_HD Index operator()(Index i) const {
    const Bfloat16 now = Bfloat16::from(from[i]), then = copy[i / columns * bf16_stride(columns) + i % columns];
    return now.bits != then.bits ? 1 : 0;
  }
};

/// Checks that a bfloat16 copy matches the current weights. It does so only in builds with assertions, and only while
/// no CUDA graph is being captured.
/// @throws ArgumentError if the copy does not match
/// @cost  one pass over the weights, and the host waits for the device; no cost if NDEBUG is defined
template <class Context>
void expect_rounded([[maybe_unused]] Context& ctx, [[maybe_unused]] const float* w, [[maybe_unused]] Index rows,
                    [[maybe_unused]] Index columns, [[maybe_unused]] const Bfloat16* copy) {
#ifndef NDEBUG
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  expect_success(cudaStreamIsCapturing(ctx.product_stream(), &capturing), "cudaStreamIsCapturing");
  if (capturing != cudaStreamCaptureStatusNone) return;
  const auto mark = ctx.mark();
  Index* const total = ctx.template scratch<Index>(1).data();
  Index differ = 0;
  expect_success(cudaMemsetAsync(total, 0, sizeof differ, ctx.product_stream()), "cudaMemsetAsync");
  reduce<Index>(ctx, rows * columns, DiffersFromRounded{w, copy, columns}, total);
  expect_success(cudaMemcpyAsync(&differ, total, sizeof differ, cudaMemcpyDeviceToHost, ctx.product_stream()),
                 "cudaMemcpyAsync");
  expect_success(cudaStreamSynchronize(ctx.product_stream()), "cudaStreamSynchronize");
  expect(differ == 0, "CudaBf16", "packed weights",
         "a rounded copy of the current weights (call RoundedWeights.refresh after parameters change)",
         Joined{differ, " of ", rows * columns, " values that differ"});
#endif
}

}  // namespace gatefold::detail_::device
