#pragma once

#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/error.hpp"

/// What the code of a program that its device runs was compiled for: a newer device also runs, or has its driver
/// compile, code for older ones.
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

/// The bound of a kernel whose file is compiled for devices that it has no code for: no launch fits, and the error says
/// so, where a context was made in a file that has the code.
inline constexpr int kNoCode = 32;

enum class DeviceCode { plain = 32, tensor_cores = 64, hopper = 96 };  // below 8.0; from there on; for sm_90a

/// Never launched: its largest block is a DeviceCode.
static __global__ void __launch_bounds__(GATEFOLD_SM_90A ? 96 : GATEFOLD_TENSOR_CORES ? 64 : 32) device_code_kernel() {}

/// That of the current device.
inline DeviceCode device_code() {
  cudaFuncAttributes attributes{};
  expect_success(cudaFuncGetAttributes(&attributes, device_code_kernel), "cudaFuncGetAttributes");
  return static_cast<DeviceCode>(attributes.maxThreadsPerBlock);
}

/// @throws DeviceError if code for tensor cores is asked for and the program has none
inline void expect_tensor_cores(DeviceCode code) {
  if (code == DeviceCode::plain)
    throw DeviceError(
        "CudaBf16::Context: program: expected device code for compute capability 8.0 or newer, got older code alone: "
        "compile it for 80 or newer (CMAKE_CUDA_ARCHITECTURES, nvcc -arch)");
}

}  // namespace gatefold::detail_::device
