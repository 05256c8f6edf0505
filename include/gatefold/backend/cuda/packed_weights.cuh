#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::device {

/// Weights rounded to bfloat16, found by the address of the plain ones and in their order, in rows of whole units
/// (bf16_matrix.cuh).
class PackedWeights {
  struct Free {
    void operator()(Bfloat16* p) const { cudaFree(p); }
  };

 public:
  /// Round `rows` rows of weights, finished on return.
  void add(cudaStream_t stream, const float* w, Index rows, Index columns) {
    const Index count = rows * bf16_stride(columns);
    if (count == 0) return;
    void* memory = nullptr;
    expect_success(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(Bfloat16)), "cudaMalloc");
    std::unique_ptr<Bfloat16, Free> rounded(static_cast<Bfloat16*>(memory));
    round_rows(stream, rows, columns, w, rounded.get());
    expect_success(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // other streams will read it
    rounded_[w] = std::move(rounded);
  }
  /// The rounded form of weights, or null.
  const Bfloat16* find(const void* w) const {
    const auto found = rounded_.find(w);
    return found == rounded_.end() ? nullptr : found->second.get();
  }

 private:
  std::map<const void*, std::unique_ptr<Bfloat16, Free>> rounded_;
};

}  // namespace gatefold::device
