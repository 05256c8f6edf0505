// A kernel, its launch and its tests. Only the last test case uses the emulator directly.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cuda_emulator/report.hpp"

static __global__ void scale(float* x, int n, float by) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] *= by;
}

TEST_CASE("scale: scales every element") {
  const std::vector<float> before(100, 2.0f);
  std::vector<float> after(before.size());
  const std::size_t bytes = before.size() * sizeof(float);
  float* x = nullptr;
  REQUIRE(cudaMalloc(&x, bytes) == cudaSuccess);
  REQUIRE(cudaMemcpy(x, before.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  scale<<<4, 32>>>(x, 100, 3.0f);
  CHECK(cudaGetLastError() == cudaSuccess);
  REQUIRE(cudaMemcpy(after.data(), x, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(after == std::vector<float>(100, 6.0f));
  CHECK(cudaFree(x) == cudaSuccess);
}

TEST_CASE("scale: an element past the end is reported") {
  float* x = nullptr;
  REQUIRE(cudaMalloc(&x, 100 * sizeof(float)) == cudaSuccess);
  std::string report;
  try {
    scale<<<4, 32>>>(x, 101, 3.0f);
  } catch (const gatefold::cuda_emulator::Fault& fault) {
    report = fault.what();
  }
  CHECK(report.find("0 bytes past the end of an allocation of 400 bytes") != std::string::npos);
  CHECK(report.find("mine_test.cu:") != std::string::npos);
  CHECK(cudaFree(x) == cudaSuccess);
}
