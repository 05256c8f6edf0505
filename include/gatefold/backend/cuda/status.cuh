#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <string>

#include "gatefold/core/error.hpp"

namespace gatefold::detail_::device {

/// Checks the status that a function of CUDA or cuBLAS has returned.
/// @throws DeviceError with the name of the function and CUDA's message, if the function failed
inline void expect_success(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears CUDA's error state, because the next expect_launched would report the error again
  throw DeviceError(std::string(call) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}
inline void expect_success(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(std::string(call) + ": " + cublasGetStatusName(status) + ": " + cublasGetStatusString(status));
}

/// Checks whether a kernel launch failed. Call it after every launch, because no other call reports a bad launch
/// configuration.
/// @throws DeviceError if the launch failed
inline void expect_launched(const char* primitive) { expect_success(cudaGetLastError(), primitive); }

}  // namespace gatefold::detail_::device
