#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <string>

#include "gatefold/core/error.hpp"

namespace gatefold::detail_::device {

/// @throws DeviceError with the call and CUDA's own sentence, unless it succeeded
inline void expect_success(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it would be found again after the next launch
  throw DeviceError(std::string(call) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}
inline void expect_success(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(std::string(call) + ": " + cublasGetStatusName(status) + ": " + cublasGetStatusString(status));
}

/// To be called after every launch, which reports bad configurations this way alone.
inline void expect_launched(const char* primitive) { expect_success(cudaGetLastError(), primitive); }

}  // namespace gatefold::detail_::device
