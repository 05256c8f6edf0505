// Which code of a program a device runs.
#include "gatefold/backend/cuda/device_code.cuh"

#include <doctest/doctest.h>

#include "gatefold/backend/cuda/cuda.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

TEST_CASE("cuda: device_code: reports code that has tensor cores") {
  // These tests are compiled for 8.0 or newer. Without hardware, only hopper_layers, hopper_product, tensor_map and
  // warpgroup are compiled for sm_90a.
  CHECK(device_code() != DeviceCode::plain);
}

TEST_CASE("expect_tensor_cores: throws for code without tensor cores") {
  CHECK_NOTHROW(expect_tensor_cores(DeviceCode::tensor_cores));
  CHECK_NOTHROW(expect_tensor_cores(DeviceCode::hopper));
  CHECK_THROWS_WITH_AS(expect_tensor_cores(DeviceCode::plain),
                       "CudaBf16::Context: program: expected device code for compute capability 8.0 or newer, got only "
                       "older code: compile it for 80 or newer (CMAKE_CUDA_ARCHITECTURES, nvcc -arch)",
                       DeviceError);
}

TEST_CASE("kernel without device code: every launch fails") {
  cudaFuncAttributes attributes{};
  REQUIRE(cudaFuncGetAttributes(&attributes, hopper_kernel<false, Layout::along_lines, 1, float, functor::Store>) ==
          cudaSuccess);
  const bool has_code = device_code() == DeviceCode::hopper;
  CHECK(attributes.maxThreadsPerBlock == (has_code ? HopperTile::threads : kNoCode));
  alignas(64) static unsigned char zeros[4096]{};  // zeros for every argument, whatever its type
  void* arguments[]{zeros, zeros, zeros, zeros, zeros};
  const auto* kernel =
      reinterpret_cast<const void*>(hopper_kernel<false, Layout::along_lines, 1, float, functor::Store>);
  if (!has_code)
    CHECK_THROWS_AS(
        expect_success(cudaLaunchKernel(kernel, dim3(1), dim3(HopperTile::threads), arguments, 0, nullptr), "launch"),
        DeviceError);
  static_assert(kNoCode < HopperTile::threads && kNoCode < Bf16SkinnyNarrowest::threads);
}
