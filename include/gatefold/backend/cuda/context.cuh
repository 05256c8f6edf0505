#pragma once

#include <utility>
#include <vector>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/blas_experts.cuh"
#include "gatefold/backend/cuda/device_code.cuh"
#include "gatefold/backend/cuda/handles.cuh"
#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/backend/cuda/quantised_matrix.cuh"
#include "gatefold/backend/cuda/retired.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/object_pool.hpp"
#include "gatefold/backend/scratch.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// The CUDA context of one caller: a stream, library handles and memory on the device of the stream. Primitives,
/// scratch memory, layers and trainers use this device even if another device is current. There are two exceptions,
/// which use the current device unless here() is active: tensors that a caller creates, and memory of policies (gates,
/// experts, update rules) that are called without a layer.
template <class B>
class BasicContext : public Scratch<B>, public ObjectPool {
 public:
  using Backend = B;
  /// Creates a stream on the current device.
  /// @throws DeviceError if there is no device, or if its compute capability is too low: below 7.5, or for CudaBf16
  ///         below 8.0
  explicit BasicContext(Options options = {}) : options_(options), flags_(stream_), blas_(stream_) { check(); }
  /// Uses the caller's stream, which must outlive the context. In debug builds, the stream must not be non-blocking
  /// (cudaStreamNonBlocking), because released memory is overwritten on the legacy default stream, with which a
  /// non-blocking stream does not synchronise.
  explicit BasicContext(cudaStream_t stream, Options options = {})
      : options_(options), stream_(stream), flags_(stream_), blas_(stream_) {
    check();
  }

  const Options& options() const { return options_; }
  int device() const { return stream_.device(); }
  /// Returns a scope object. While it lives, the device of the context is the current device of this thread, so that
  /// allocations and launches happen there. Calls from other threads that use the context throw ArgumentError.
  [[nodiscard]] auto here() {
    struct Here {
      OneThread::Scope alone;
      OnDevice device;
    };
    return Here{OneThread::Scope(*this), OnDevice(stream_.device())};
  }
  template <class T, class... Extent>
  auto scratch(Extent... extents) {
    const auto here = this->here();
    return Scratch<B>::template scratch<T>(extents...);
  }
  /// Returns an object of type S from the context's pool of reusable objects. The object can replace its buffers by
  /// larger ones. If a CUDA graph is being captured or has been captured on the stream, the old buffers are kept,
  /// because the graph uses their addresses.
  template <class S>
  [[nodiscard]] auto acquire() {
    struct Object {
      ObjectPool::Borrowed<S> object;
      Retired::Scope keeping;
      S& operator*() const { return *object; }
      S* operator->() const { return &*object; }
    };
    return Object{ObjectPool::acquire<S>(), Retired::Scope(is_captured() ? &retired_ : nullptr)};
  }
  /// Returns the stream. Call this function again before each kernel that you launch between primitives. It discards
  /// the host copy of the experts' offsets (OffsetsOnHost), because your kernel could change the offsets.
  cudaStream_t stream() const {
    offsets_.forget();
    return stream_.get();
  }
  cublasHandle_t blas() {
    offsets_.forget();
    return blas_.get();
  }
  int multiprocessors() const { return stream_.multiprocessors(); }
  int* flags() { return flags_.get(); }
  /// Returns how many thread blocks of a kernel, with `threads` threads each, a multiprocessor can run at a time.
  template <class Kernel>
  int fitting_blocks(Kernel* kernel, int threads) {
    return occupancy_.of(kernel, threads);
  }
  /// Returns whether the device runs code compiled for sm_90a (Hopper).
  bool has_hopper_code() const { return code_ == DeviceCode::hopper; }
  /// Waits until all work of this context is complete.
  void synchronize() { expect_success(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

  /// Returns a scope object. During its lifetime, grouped products (the products of experts) read the rounded weights
  /// in `packed`. If `packed` has no copies of 8 or 4 bits, the products read such copies from the packed weights of
  /// the enclosing scope object.
  ///
  /// A product of floats always reads the copies of 8 and 4 bits. If there are none, a product that rounds its factors
  /// reads bfloat16 copies. A product that does not round its factors reads bfloat16 copies only if the backend is
  /// Cuda, all of its weights have one, it does not transpose the weights, and cuBLAS does not compute it. Otherwise a
  /// product reads the original weights.
  [[nodiscard]] auto use(const PackedWeights& packed) {
    struct Use {
      OneThread::Scope alone;
      BasicContext& ctx;
      const PackedWeights *before, *quantised_before;
      ~Use() {
        ctx.packed_ = before;
        ctx.quantised_ = quantised_before;
      }
    };
    return Use{OneThread::Scope(*this), *this, std::exchange(packed_, &packed),
               std::exchange(quantised_, packed.quantised_bytes() > 0 ? &packed : quantised_)};
  }
  void use(PackedWeights&&) = delete;
  /// Returns the bfloat16 copy of the weights w if the context uses packed weights that have a copy with that number of
  /// columns; otherwise null.
  const Bfloat16* packed(const void* w, Index columns) const { return packed_ ? packed_->find(w, columns) : nullptr; }

  /// Returns the copy of 8 or 4 bits of the weights w if the context uses packed weights that have one; otherwise null.
  const QuantisedMatrix* quantised(const void* w) const { return quantised_ ? quantised_->find_quantised(w) : nullptr; }

  /// Returns a scope object. While it lives, grouped products that round their factors to bfloat16 read the matrix
  /// `rounded` instead of rounding the rows of `from` that have the row numbers `rows` (all rows if `rows` is null).
  [[nodiscard]] auto share(const void* from, Index columns, const Index* rows, const Bf16Matrix& rounded) {
    struct Scope {
      BasicContext& ctx;
      SharedRows shared;
      Scope(BasicContext& c, const SharedRows& s) : ctx(c), shared(s) { ctx.shared_ = &shared; }
      Scope(const Scope&) = delete;
      Scope& operator=(const Scope&) = delete;
      ~Scope() { ctx.shared_ = shared.before; }
    };
    return Scope(*this, {from, columns, rows, rounded, shared_});
  }
  /// Returns the bfloat16 copy of the rows of `from` that have the row numbers `rows`, if share() has registered one;
  /// otherwise null.
  const Bf16Matrix* shared(const void* from, Index columns, const Index* rows) const {
    return shared_ ? shared_->find(from, columns, rows) : nullptr;
  }

  /// Grouped products get the stream, the cuBLAS handle and the experts' offsets from the next three functions. Unlike
  /// stream() and blas(), these functions keep the host copy of the offsets (OffsetsOnHost), because grouped products
  /// write no offsets. begin_product() discards the copy before a product of a forward pass (without `transpose`).
  cudaStream_t product_stream() const { return stream_.get(); }
  cublasHandle_t product_blas() { return blas_.get(); }
  const std::vector<Index>& on_host(View<const Index, 1, B> offsets) { return offsets_.of(stream_.get(), offsets); }
  void begin_product(bool transpose) {
    if (!transpose) offsets_.forget();
  }

 private:
  void check() {
    const auto here = this->here();
    expect_capability(device(), B::least_capability);
    code_ = device_code();
    if constexpr (B::least_capability >= 80) expect_tensor_cores(code_);
  }

  /// Returns whether a CUDA graph is being captured on the stream, or was being captured at an earlier call.
  bool is_captured() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (!captured_ && cudaStreamIsCapturing(stream_.get(), &status) != cudaSuccess) cudaGetLastError();
    return captured_ = captured_ || status != cudaStreamCaptureStatusNone;
  }

  Options options_;
  Stream stream_;
  Occupancy occupancy_;
  Flags flags_;
  Blas blas_;
  DeviceCode code_ = DeviceCode::plain;
  const PackedWeights* packed_ = nullptr;
  const PackedWeights* quantised_ = nullptr;  // packed weights of which some have 8 or 4 bits
  const SharedRows* shared_ = nullptr;
  bool captured_ = false;
  Retired retired_;
  mutable OffsetsOnHost offsets_;
};

}  // namespace gatefold::detail_::device
