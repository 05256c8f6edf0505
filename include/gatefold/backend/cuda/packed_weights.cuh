#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/quantised_matrix.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/quantised_bytes.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold::detail_::device {

/// Owns copies of weights in fewer bytes (bfloat16, or 8 or 4 bits), in device memory. A copy is found by the address
/// of the original weights, and is not updated if these weights change. In a bfloat16 copy, the rows have the same
/// order as in the original weights, and begin at multiples of 16 bytes (bf16_matrix.cuh). quantised_matrix.cuh
/// describes copies of 8 and 4 bits.
class PackedWeights {
  struct Free {
    void operator()(void* p) const { cudaFree(p); }
  };
  template <class T>
  using Memory = std::unique_ptr<T, Free>;
  struct Copy {
    Memory<Bfloat16> values;
    Index rows = 0, columns = 0;
  };
  struct Quantised {
    Memory<std::uint8_t> bytes;
    QuantisedMatrix matrix;  // of expert 0
    Index experts = 0, columns = 0;
  };

 public:
  /// Stores a copy of `rows` rows of weights, rounded to bfloat16, and waits until it is complete. Replaces a copy of 8
  /// or 4 bits.
  void add(cudaStream_t stream, const float* w, Index rows, Index columns) {
    quantised_.erase(w);
    round(stream, w, rows, columns);
    // Waits for the copy, because other streams will read it.
    expect_success(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  /// Stores a copy of the weights w, rounded to bfloat16, on a stream, without waiting for it. The first call allocates
  /// the copy. Later calls with the same sizes write to the same memory, so that a CUDA graph can repeat them.
  void round(cudaStream_t stream, const float* w, Index rows, Index columns) {
    const Index count = rows * bf16_stride(columns);
    if (count == 0) return;
    Copy& copy = copies_[w];
    if (copy.rows != rows || copy.columns != columns) {
      copy = {};
      copy = {allocate<Bfloat16>(static_cast<std::size_t>(count)), rows, columns};
    }
    round_rows(stream, rows, columns, w, copy.values.get());
  }
  /// Returns the bfloat16 copy of the weights w, or null if there is no copy with that number of columns.
  const Bfloat16* find(const void* w, Index columns) const {
    const auto found = copies_.find(w);
    return found == copies_.end() || found->second.columns != columns ? nullptr : found->second.values.get();
  }
  /// Copies the quantised numbers and the scales of the weights at address w to host memory, in the order of
  /// QuantisedBytes.
  void write_quantised(cudaStream_t stream, const void* w, const QuantisedBytes& of, std::byte* numbers,
                       Bfloat16* scales) const {
    const Quantised& copy = quantised_.at(w);
    std::vector<std::byte> host(copy.matrix.bytes(copy.experts));
    expect_success(cudaMemcpyAsync(host.data(), copy.bytes.get(), host.size(), cudaMemcpyDeviceToHost, stream),
                   "cudaMemcpyAsync");
    expect_success(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const auto* const from = host.data();
    copy_rows(from, of.experts * of.number_rows(), copy.matrix.stride, numbers, of.columns, of.columns);
    copy_rows(from + copy.matrix.scales_at(copy.experts), of.experts * of.scale_rows(), 2 * copy.matrix.stride,
              reinterpret_cast<std::byte*>(scales), 2 * of.columns, 2 * of.columns);
  }
  /// Copies numbers and scales to the device, and waits until the copy is complete. On the host, they have the order of
  /// QuantisedBytes.
  /// @param address  the address that reserve_quantised returned
  void read_quantised(cudaStream_t stream, const float* address, const QuantisedBytes& of, const std::byte* numbers,
                      const Bfloat16* scales) {
    const Quantised& copy = quantised_.at(address);
    std::vector<std::byte> host(copy.matrix.bytes(copy.experts));
    auto* const to = host.data();
    copy_rows(numbers, of.experts * of.number_rows(), of.columns, to, copy.matrix.stride, of.columns);
    copy_rows(reinterpret_cast<const std::byte*>(scales), of.experts * of.scale_rows(), 2 * of.columns,
              to + copy.matrix.scales_at(copy.experts), 2 * copy.matrix.stride, 2 * of.columns);
    expect_success(cudaMemcpyAsync(copy.bytes.get(), host.data(), host.size(), cudaMemcpyHostToDevice, stream),
                   "cudaMemcpyAsync");
    expect_success(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  /// Returns the number of weight matrices that have a copy in bfloat16.
  std::size_t size() const { return copies_.size(); }

  /// Stores a copy of the weights w [experts, depth, columns] with 8 or 4 bits per weight, and waits until the copy is
  /// complete. If w had a copy in bfloat16, that copy is removed.
  void add_quantised(cudaStream_t stream, const float* w, Index experts, Index depth, Index columns, Weights form) {
    Quantised copy = reserved(experts, depth, columns, form);
    quantise(stream, experts, columns, w, copy.matrix);
    quantised_[w] = std::move(copy);
    copies_.erase(w);
    expect_success(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  /// Allocates a quantised copy of weights [experts, depth, columns] whose elements are not in device memory.
  /// quantise_experts or read_quantised fills it.
  /// @return the address by which products find the copy. It is odd, so it is never the address of a float
  float* reserve_quantised(Index experts, Index depth, Index columns, Weights form) {
    Quantised copy = reserved(experts, depth, columns, form);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto address = reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(copy.bytes.get()) + 1);
    quantised_[address] = std::move(copy);
    return address;
  }
  /// Rounds the weights w [count, depth, columns] of the experts from number `first` on into reserved memory.
  /// @param address  the address that reserve_quantised returned
  void quantise_experts(cudaStream_t stream, const float* address, Index first, Index count, const float* w) {
    const Quantised& copy = quantised_.at(address);
    QuantisedMatrix to = copy.matrix;
    to.to_expert(first);
    quantise(stream, count, copy.columns, w, to);
  }
  /// Returns the quantised matrix of expert 0 of the weights at address w, or null if there is no copy of 8 or 4 bits.
  const QuantisedMatrix* find_quantised(const void* w) const {
    const auto found = quantised_.find(w);
    return found == quantised_.end() ? nullptr : &found->second.matrix;
  }
  /// Returns the number of bytes of device memory of the copies of 8 and 4 bits.
  std::size_t quantised_bytes() const {
    std::size_t total = 0;
    for (const auto& [w, copy] : quantised_) total += copy.matrix.bytes(copy.experts);
    return total;
  }

 private:
  template <class T>
  static Memory<T> allocate(std::size_t count) {
    void* memory = nullptr;
    expect_success(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
    return Memory<T>(static_cast<T*>(memory));
  }
  /// Copies `rows` rows of `bytes` bytes, which begin `from_stride` and `to_stride` bytes apart.
  static void copy_rows(const std::byte* from, Index rows, Index from_stride, std::byte* to, Index to_stride,
                        Index bytes) {
    for (Index row = 0; row < rows; ++row, from += from_stride, to += to_stride) std::copy_n(from, bytes, to);
  }
  static Quantised reserved(Index experts, Index depth, Index columns, Weights form) {
    QuantisedMatrix matrix{{form}, depth, divide_up(columns, Index(4)) * 4};
    auto bytes = allocate<std::uint8_t>(matrix.bytes(experts));
    matrix.numbers = bytes.get();
    matrix.scales = reinterpret_cast<Bfloat16*>(bytes.get() + matrix.scales_at(experts));
    return {std::move(bytes), matrix, experts, columns};
  }

  std::map<const void*, Copy> copies_;
  std::map<const void*, Quantised> quantised_;
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
