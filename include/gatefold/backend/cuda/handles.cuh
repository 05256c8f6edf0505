#pragma once

#include <cstddef>
#include <map>

#include "gatefold/backend/cuda/status.cuh"

/// The CUDA objects that a context owns: stream, flags, cuBLAS handle. The destructors release them.
namespace gatefold::detail_::device {

/// Options of a CUDA context, which change what cuBLAS computes. Both are off by default.
struct Options {
  /// Computes grouped products (the products of experts) with cuBLAS. The host then waits until it has read the sizes
  /// from the device (blas_experts.cuh).
  bool blas_experts = false;
  /// Allows cuBLAS to round the factors of float products to 10 bits of mantissa (TF32).
  bool tf32 = false;
};

/// Checks that there is a CUDA device.
/// @throws DeviceError if there is no device or no driver
inline void expect_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return;
  cudaGetLastError();  // clears CUDA's error state, because the next expect_launched would report the error again
  throw DeviceError(std::string("Cuda::Context: no CUDA device: ") +
                    (status == cudaSuccess ? "the driver reports no device" : cudaGetErrorString(status)));
}

/// Checks the compute capability of a device.
/// @param least  the smallest compute capability that is accepted, as 10 · major + minor
/// @throws DeviceError if the device has a smaller compute capability
inline void expect_capability(int device, int least) {
  int major = 0, minor = 0;
  expect_success(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  expect_success(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  if (10 * major + minor >= least) return;
  throw DeviceError("Cuda::Context: device: expected compute capability " + std::to_string(least / 10) + "." +
                    std::to_string(least % 10) + " or newer, got " + std::to_string(major) + "." +
                    std::to_string(minor));
}

/// A scope object: while it lives, `device` is the current device of this thread, so that memory is allocated and
/// kernels are launched there. The destructor makes the previous device current again.
/// @cost  one query of the current device; the device is set only if it is not already current
class OnDevice {
 public:
  explicit OnDevice(int device) : device_(device) {
    expect_success(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device_) expect_success(cudaSetDevice(device_), "cudaSetDevice");
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (before_ != device_) cudaSetDevice(before_);
  }

 private:
  int device_, before_ = 0;
};

/// A CUDA stream and its device. The default constructor creates a stream on the current device; the constructor with
/// an argument borrows the stream of the caller. If this stream is a default stream of CUDA, its device is the device
/// that is current during construction.
class Stream {
 public:
  Stream() : Stream(nullptr) {
    expect_success(cudaStreamCreate(&stream_), "cudaStreamCreate");
    owned_ = true;
  }
  explicit Stream(cudaStream_t stream) : stream_(stream) {
    expect_device();
    expect_success(cudaStreamGetDevice(stream, &device_), "cudaStreamGetDevice");
    expect_success(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_),
                   "cudaDeviceGetAttribute");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (owned_) cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }
  int device() const { return device_; }
  int multiprocessors() const { return multiprocessors_; }

 private:
  cudaStream_t stream_ = nullptr;
  bool owned_ = false;
  int device_ = 0, multiprocessors_ = 0;
};

/// Remembers how many thread blocks of a kernel a multiprocessor can run at a time. It queries the runtime only once
/// for each kernel.
class Occupancy {
 public:
  template <class Kernel>
  int of(Kernel* kernel, int threads) {
    const auto* key = reinterpret_cast<const void*>(kernel);
    if (const auto known = blocks_.find(key); known != blocks_.end()) return known->second;
    int blocks = 0;
    expect_success(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0),
                   "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return blocks_[key] = blocks;
  }

 private:
  std::map<const void*, int> blocks_;
};

/// Flags in device memory, by which the thread blocks of one kernel launch signal each other. All flags are 0 between
/// launches. They are allocated on first use.
class Flags {
 public:
  // The number of flags for each multiprocessor. A kernel that uses flags has at most this many thread blocks on a
  // multiprocessor at a time.
  static constexpr int each = 8;

  explicit Flags(const Stream& stream) : stream_(stream) {}
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;
  ~Flags() {
    if (flags_) cudaFree(flags_);
  }
  int* get() {
    if (ready_) return flags_;
    const OnDevice here(stream_.device());
    const std::size_t bytes = sizeof(int) * each * static_cast<std::size_t>(stream_.multiprocessors());
    if (!flags_) expect_success(cudaMalloc(&flags_, bytes), "cudaMalloc");
    expect_success(cudaMemsetAsync(flags_, 0, bytes, stream_.get()), "cudaMemsetAsync");
    cudaStreamCaptureStatus capturing;
    expect_success(cudaStreamIsCapturing(stream_.get(), &capturing), "cudaStreamIsCapturing");
    // If a CUDA graph is being captured, the memset has only been added to the graph. ready_ then stays false, so that
    // later calls set the flags to 0 again.
    ready_ = capturing == cudaStreamCaptureStatusNone;
    return flags_;
  }

 private:
  const Stream& stream_;
  int* flags_ = nullptr;
  bool ready_ = false;
};

/// A cuBLAS handle on a stream, created on first use. It has its own workspace, so that a CUDA graph can capture the
/// calls of cuBLAS.
class Blas {
 public:
  explicit Blas(const Stream& stream) : stream_(stream) {}
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  ~Blas() {
    if (!handle_) return;
    try {
      const OnDevice here(stream_.device());
      cublasDestroy(handle_);
      if (workspace_) cudaFree(workspace_);
    } catch (const DeviceError&) {  // ignored: at the end of a program, the runtime may already have shut down
    }
  }
  cublasHandle_t get() {
    if (!ready_) begin();
    return handle_;
  }

 private:
  static constexpr std::size_t kWorkspace = std::size_t(32) << 20;

  void begin() {
    const OnDevice here(stream_.device());
    if (!handle_) expect_success(cublasCreate(&handle_), "cublasCreate");
    if (!workspace_) expect_success(cudaMalloc(&workspace_, kWorkspace), "cudaMalloc");
    expect_success(cublasSetStream(handle_, stream_.get()), "cublasSetStream");
    expect_success(cublasSetWorkspace(handle_, workspace_, kWorkspace), "cublasSetWorkspace");
    ready_ = true;
  }

  const Stream& stream_;
  cublasHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  bool ready_ = false;
};

}  // namespace gatefold::detail_::device
