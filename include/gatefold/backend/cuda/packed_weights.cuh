#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::device {

/// to = from, rounded
struct Round {
  const float* from;
  Bfloat16* to;
  __device__ void operator()(Index i) const { to[i] = Bfloat16::from(from[i]); }
};

/// Weights rounded to bfloat16, found by the address of the plain ones and in their order.
class PackedWeights {
  struct Free {
    void operator()(Bfloat16* p) const { cudaFree(p); }
  };

 public:
  /// Round `count` weights, finished on return.
  void add(cudaStream_t stream, const float* w, Index count) {
    if (count == 0) return;
    void* memory = nullptr;
    expect_success(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(Bfloat16)), "cudaMalloc");
    std::unique_ptr<Bfloat16, Free> rounded(static_cast<Bfloat16*>(memory));
    for_each(stream, count, Round{w, rounded.get()});
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
