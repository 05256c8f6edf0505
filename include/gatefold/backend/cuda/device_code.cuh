#pragma once

#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/error.hpp"

/// The architecture for which the device code of a program was compiled. The architecture of the code can be older than
/// the device, because the device runs older code, or the driver compiles older code for the device.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GATEFOLD_SM_90A 1
#else
#define GATEFOLD_SM_90A 0
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GATEFOLD_TENSOR_CORES 0
#else
#define GATEFOLD_TENSOR_CORES 1
#endif

namespace gatefold::detail_::device {

/// The launch bound of a kernel in a file that is compiled for devices for which the kernel has no code. The bound is
/// smaller than the kernel's blocks, so that a launch fails with an error. This happens if the context was created in a
/// different file that has the code.
inline constexpr int kNoCode = 32;

/// Kinds of device code: for a compute capability below 8.0, for 8.0 or newer, and for sm_90a.
enum class DeviceCode { plain = 32, tensor_cores = 64, hopper = 96 };

/// A kernel that is never launched. The runtime reports the launch bound as the kernel's largest block, from which
/// device_code() reads the DeviceCode.
static __global__ void __launch_bounds__(GATEFOLD_SM_90A ? 96 : GATEFOLD_TENSOR_CORES ? 64 : 32) device_code_kernel() {}

/// Returns the DeviceCode of the code that the current device runs.
inline DeviceCode device_code() {
  cudaFuncAttributes attributes{};
  expect_success(cudaFuncGetAttributes(&attributes, device_code_kernel), "cudaFuncGetAttributes");
  return static_cast<DeviceCode>(attributes.maxThreadsPerBlock);
}

/// Checks that the program has code for tensor cores.
/// @throws DeviceError if the program has no such code
inline void expect_tensor_cores(DeviceCode code) {
  if (code == DeviceCode::plain)
    throw DeviceError(
        "CudaBf16::Context: program: expected device code for compute capability 8.0 or newer, got only older code: "
        "compile it for 80 or newer (CMAKE_CUDA_ARCHITECTURES, nvcc -arch)");
}

}  // namespace gatefold::detail_::device
