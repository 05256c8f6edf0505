#pragma once

#include <utility>
#include <vector>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/blas_experts.cuh"
#include "gatefold/backend/cuda/device_code.cuh"
#include "gatefold/backend/cuda/handles.cuh"
#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/backend/cuda/retired.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/object_pool.hpp"
#include "gatefold/backend/scratch.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// Stream, handles and memory of one caller, on one device: that of its stream. Primitives, scratch memory, layers
/// and trainers work there, whichever device is current. Tensors that a caller makes, and what policies keep that are
/// called without a layer, are where `here` says.
template <class B>
class BasicContext : public Scratch<B>, public ObjectPool {
 public:
  using Backend = B;
  /// A stream of its own, on the current device.
  /// @throws DeviceError if there is no device
  explicit BasicContext(Options options = {}) : options_(options), flags_(stream_), blas_(stream_) { check(); }
  /// Somebody's stream, which must outlive the context. Debug builds need one that waits for the legacy stream, as
  /// they overwrite memory that was given back.
  explicit BasicContext(cudaStream_t stream, Options options = {})
      : options_(options), stream_(stream), flags_(stream_), blas_(stream_) {
    check();
  }

  const Options& options() const { return options_; }
  int device() const { return stream_.device(); }
  /// While the returned object lives, other threads are refused, and the device of the context is the current one of
  /// this thread: what it allocates and launches is there.
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
  /// An object of the pool. A graph uses its memory: once a pass has been captured, what outgrows it stays.
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
  /// To be asked for again by what is launched on it between primitives.
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
  /// How many of its blocks of so many threads a multiprocessor of the device has room for.
  template <class Kernel>
  int fitting_blocks(Kernel* kernel, int threads) {
    return occupancy_.of(kernel, threads);
  }
  /// Whether its device runs code compiled for sm_90a.
  bool has_hopper_code() const { return code_ == DeviceCode::hopper; }
  /// Wait until everything asked of this context is done.
  void synchronize() { expect_success(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

  /// While the returned object lives, grouped products all of whose weights `packed` holds read them there; transposed
  /// ones and cuBLAS's read the plain ones. Those that round their factors read there each matrix that it holds.
  [[nodiscard]] auto use(const PackedWeights& packed) {
    struct Use {
      OneThread::Scope alone;
      BasicContext& ctx;
      const PackedWeights* before;
      ~Use() { ctx.packed_ = before; }
    };
    return Use{OneThread::Scope(*this), *this, std::exchange(packed_, &packed)};
  }
  void use(PackedWeights&&) = delete;
  /// The rounded form of weights in use that have so many columns, or null.
  const Bfloat16* packed(const void* w, Index columns) const { return packed_ ? packed_->find(w, columns) : nullptr; }

  /// While the returned object lives, grouped products that round their factors and read the rows of `from` that `rows`
  /// looks up take them from `rounded` (SharedRows).
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
  /// The rounded form of these rows, or null.
  const Bf16Matrix* shared(const void* from, Index columns, const Index* rows) const {
    return shared_ ? shared_->find(from, columns, rows) : nullptr;
  }

  /// For grouped products by cuBLAS (OffsetsOnHost): these write no offsets, and ask here.
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

  /// Whether anything of it is captured now, or was.
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
  const SharedRows* shared_ = nullptr;
  bool captured_ = false;
  Retired retired_;
  mutable OffsetsOnHost offsets_;
};

}  // namespace gatefold::detail_::device
