// The message of a failed call of CUDA or cuBLAS.
#include "gatefold/backend/cuda/status.cuh"

#include <doctest/doctest.h>

#include <string>

using namespace gatefold;

namespace {

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no DeviceError";
}

static __global__ void nothing() {}

}  // namespace

TEST_CASE("expect_success: CUDA error gives call, name and description") {
  CHECK(error_of([] { detail_::device::expect_success(cudaErrorMemoryAllocation, "cudaMalloc"); }) ==
        "cudaMalloc: cudaErrorMemoryAllocation: out of memory");
  CHECK(error_of([] { detail_::device::expect_success(cudaErrorInvalidValue, "cudaMemcpyAsync"); }) ==
        "cudaMemcpyAsync: cudaErrorInvalidValue: invalid argument");
  CHECK_NOTHROW(detail_::device::expect_success(cudaSuccess, "cudaMalloc"));
}

TEST_CASE("expect_success: cuBLAS error gives call, name and description") {
  CHECK(error_of([] { detail_::device::expect_success(CUBLAS_STATUS_ALLOC_FAILED, "cublasCreate"); }) ==
        "cublasCreate: CUBLAS_STATUS_ALLOC_FAILED: the resource allocation failed");
  CHECK_NOTHROW(detail_::device::expect_success(CUBLAS_STATUS_SUCCESS, "cublasCreate"));
}

TEST_CASE("expect_launched: reports an invalid launch once") {
  nothing<<<1, 2048>>>();
  CHECK(error_of([] { detail_::device::expect_launched("Cuda::for_each"); }) ==
        "Cuda::for_each: cudaErrorInvalidValue: invalid argument");
  nothing<<<1, 32>>>();
  CHECK_NOTHROW(detail_::device::expect_launched("Cuda::for_each"));
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("expect_launched: does not report an error thrown before") {
  void* memory = nullptr;
  CHECK_THROWS_AS(detail_::device::expect_success(cudaMalloc(&memory, std::size_t(1) << 55), "cudaMalloc"),
                  DeviceError);
  nothing<<<1, 32>>>();
  CHECK_NOTHROW(detail_::device::expect_launched("Cuda::for_each"));
}
