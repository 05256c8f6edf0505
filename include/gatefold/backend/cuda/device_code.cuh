#pragma once

#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/error.hpp"

/// These macros describe the architecture for which the device code of a program is compiled. It can be older than the
/// device, because a device also runs code that was compiled for older devices, directly or after the driver has
/// recompiled it.
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

/// The launch bound (largest number of threads in a block) that a kernel gets in code for an architecture without the
/// instructions that the kernel uses. These instructions are left out of this code. Launches use larger blocks and
/// therefore fail with an error instead of running incomplete code. This can happen if the context was created in a
/// different source file, which was compiled for an architecture with the instructions.
inline constexpr int kNoCode = 32;

/// Kinds of device code: for compute capabilities below 8.0, for 8.0 or newer, and for sm_90a (Hopper). The values are
/// the launch bounds of device_code_kernel.
enum class DeviceCode { plain = 32, tensor_cores = 64, hopper = 96 };

/// A kernel that is never launched. Its launch bound (largest number of threads in a block) depends on the architecture
/// for which it was compiled. device_code() queries the bound from the runtime, and so finds the kind of code that the
/// device runs.
static __global__ void __launch_bounds__(GATEFOLD_SM_90A ? 96 : GATEFOLD_TENSOR_CORES ? 64 : 32) device_code_kernel() {}

/// Returns the kind of device code that the current device runs.
inline DeviceCode device_code() {
  cudaFuncAttributes attributes{};
  expect_success(cudaFuncGetAttributes(&attributes, device_code_kernel), "cudaFuncGetAttributes");
  return static_cast<DeviceCode>(attributes.maxThreadsPerBlock);
}

/// Checks that the program has code for tensor cores, compiled for compute capability 8.0 or newer.
/// @throws DeviceError if the program has no such code
inline void expect_tensor_cores(DeviceCode code) {
  if (code == DeviceCode::plain)
    throw DeviceError(
        "CudaBf16::Context: program: expected device code for compute capability 8.0 or newer, got only older code: "
        "compile it for 80 or newer (CMAKE_CUDA_ARCHITECTURES, nvcc -arch)");
}

}  // namespace gatefold::detail_::device
