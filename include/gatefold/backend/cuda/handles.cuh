#pragma once

#include <cstddef>

#include "gatefold/backend/cuda/status.cuh"

/// What a context owns of CUDA, released with it.
namespace gatefold::device {

/// What a context may trade.
struct Options {
  bool blas_experts = false;  // grouped products by cuBLAS: the host waits for their sizes (blas_experts.cuh)
  bool tf32 = false;          // let cuBLAS round the factors of float products to 10 bits of mantissa
};

/// @throws DeviceError if there is no device, or no driver
inline void expect_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return;
  cudaGetLastError();  // it would be reported again by the next launch
  throw DeviceError(std::string("Cuda::Context: no CUDA device: ") +
                    (status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status)));
}

/// A stream of one's own, or somebody else's.
class Stream {
 public:
  Stream() : Stream(nullptr) {
    expect_success(cudaStreamCreate(&stream_), "cudaStreamCreate");
    owned_ = true;
  }
  explicit Stream(cudaStream_t stream) : stream_(stream) {
    expect_device();
    int device = 0;
    expect_success(cudaGetDevice(&device), "cudaGetDevice");
    expect_success(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device),
                   "cudaDeviceGetAttribute");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (owned_) cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }
  /// Of the device that was current when it was made.
  int multiprocessors() const { return multiprocessors_; }

 private:
  cudaStream_t stream_ = nullptr;
  bool owned_ = false;
  int multiprocessors_ = 0;
};

/// Flags that blocks raise for each other, all 0 between launches; made at their first use.
class Flags {
 public:
  static constexpr int each = 8;  // for each multiprocessor: the most blocks of a launch that raise any

  explicit Flags(const Stream& stream) : stream_(stream) {}
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;
  ~Flags() {
    if (flags_) cudaFree(flags_);
  }
  int* get() {
    if (ready_) return flags_;
    const std::size_t bytes = sizeof(int) * each * static_cast<std::size_t>(stream_.multiprocessors());
    if (!flags_) expect_success(cudaMalloc(&flags_, bytes), "cudaMalloc");
    expect_success(cudaMemsetAsync(flags_, 0, bytes, stream_.get()), "cudaMemsetAsync");
    cudaStreamCaptureStatus capturing;
    expect_success(cudaStreamIsCapturing(stream_.get(), &capturing), "cudaStreamIsCapturing");
    ready_ = capturing == cudaStreamCaptureStatusNone;  // else they are cleared where the graph is launched
    return flags_;
  }

 private:
  const Stream& stream_;
  int* flags_ = nullptr;
  bool ready_ = false;
};

/// A cuBLAS handle on a stream, made at its first use, with a workspace of its own so that its calls can be captured.
class Blas {
 public:
  explicit Blas(cudaStream_t stream) : stream_(stream) {}
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  ~Blas() {
    if (handle_) cublasDestroy(handle_);
    if (workspace_) cudaFree(workspace_);
  }
  cublasHandle_t get() {
    if (!ready_) begin();
    return handle_;
  }

 private:
  static constexpr std::size_t kWorkspace = std::size_t(32) << 20;

  void begin() {
    if (!handle_) expect_success(cublasCreate(&handle_), "cublasCreate");
    if (!workspace_) expect_success(cudaMalloc(&workspace_, kWorkspace), "cudaMalloc");
    expect_success(cublasSetStream(handle_, stream_), "cublasSetStream");
    expect_success(cublasSetWorkspace(handle_, workspace_, kWorkspace), "cublasSetWorkspace");
    ready_ = true;
  }

  cudaStream_t stream_;
  cublasHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  bool ready_ = false;
};

}  // namespace gatefold::device
