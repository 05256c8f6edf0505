// The runtime and kernels: launches, their limits, and how graphs replay them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_emulator/array.hpp"
#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

struct Mixed {
  char c;
  double d;
  short s[3];
};

// Each argument has an address with the alignment of its type.
static __global__ void store_arguments(double* to, char a, Mixed mixed, float b, const double* from) {
  to[0] = a;
  to[1] = mixed.c + mixed.d + mixed.s[2];
  to[2] = b;
  to[3] = *from;
}

static __global__ void identify(int* to) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  to[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
}

static __global__ void fill_shared(int* to, int count) {
  extern __shared__ int shared[];
  for (int i = threadIdx.x; i < count; i += blockDim.x) shared[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) *to = shared[count - 1];
}

static __global__ void __launch_bounds__(64) bounded(int* to) { to[threadIdx.x] = 1; }

static __global__ void large_shared(int* to) {
  __shared__ int shared[10 * 1024];  // 40 KiB
  shared[threadIdx.x] = threadIdx.x;
  __syncthreads();
  to[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

static __global__ void add(int* to, int value) { to[threadIdx.x] += value; }

static __constant__ int table[4] = {1, 2, 3, 4};
static __device__ int total = 5;
static __global__ void sum_table(int* to) {
  total += table[0] + table[1] + table[2] + table[3];
  *to = total;
}

TEST_CASE("launch: arguments arrive unchanged in every form") {
  const Array<double> from({2.5});
  const Mixed mixed{3, 0.25, {1, 2, 10}};
  const std::vector<double> expected = {-7, 13.25, 1.5, 2.5};
  SUBCASE("<<<...>>>") {
    const Array<double> to(std::vector<double>(4));
    store_arguments<<<1, 1>>>(to.data, -7, mixed, 1.5f, from.data);
    REQUIRE(cudaGetLastError() == cudaSuccess);
    CHECK(to.host() == expected);
  }
  SUBCASE("cudaLaunchKernel") {
    const Array<double> to(std::vector<double>(4));
    char a = -7;
    float b = 1.5f;
    void* arguments[] = {const_cast<double**>(&to.data), &a, const_cast<Mixed*>(&mixed), &b,
                         const_cast<double**>(&from.data)};
    REQUIRE(cudaLaunchKernel(reinterpret_cast<const void*>(store_arguments), 1, 1, arguments, 0, nullptr) ==
            cudaSuccess);
    CHECK(to.host() == expected);
  }
  SUBCASE("cudaLaunchKernelEx") {
    const Array<double> to(std::vector<double>(4));
    cudaLaunchConfig_t config{};
    config.gridDim = config.blockDim = 1;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    config.attrs = &attribute;
    config.numAttrs = 1;
    REQUIRE(cudaLaunchKernelEx(&config, store_arguments, to.data, char{-7}, mixed, 1.5f,
                               const_cast<const double*>(from.data)) == cudaSuccess);
    CHECK(to.host() == expected);
    attribute.id = cudaLaunchAttributeClusterDimension;
    CHECK_THROWS_AS(cudaLaunchKernelEx(&config, store_arguments, to.data, char{-7}, mixed, 1.5f,
                                       const_cast<const double*>(from.data)),
                    Fault);
  }
  CHECK(calls()["cudaLaunchKernel"] >= 1);
}

TEST_CASE("launch: every thread of three dimensions runs once") {
  const dim3 grid(2, 3, 2), block(4, 2, 3);
  const Array<int> to(std::vector<int>(12 * 24, -1));
  identify<<<grid, block>>>(to.data);
  std::vector<int> expected;
  for (int i = 0; i < 12 * 24; ++i) expected.push_back(1000 * (i / 24) + i % 24);
  CHECK(to.host() == expected);
  CHECK(calls()["cudaLaunchKernel"] == 1);
}

TEST_CASE("launch: impossible sizes return an error and run no block") {
  const Array<int> to(std::vector<int>(1024));
  const auto error_of = [&](dim3 grid, dim3 block, std::size_t shared) {
    fill_shared<<<grid, block, shared>>>(to.data, 1);
    return cudaGetLastError();
  };
  CHECK(error_of(0, 1, 4) == cudaErrorInvalidValue);
  CHECK(error_of(1, 0, 4) == cudaErrorInvalidValue);
  CHECK(error_of(1, 1025, 4) == cudaErrorInvalidValue);
  CHECK(error_of(1, dim3(32, 33, 1), 4) == cudaErrorInvalidValue);
  CHECK(error_of(1, dim3(1, 1, 65), 4) == cudaErrorInvalidValue);
  CHECK(error_of(dim3(1, 65536, 1), 1, 4) == cudaErrorInvalidValue);
  CHECK(error_of(dim3(1, 1, 65536), 1, 4) == cudaErrorInvalidValue);
  CHECK(error_of(1, 1, 48 * 1024 + 1) == cudaErrorInvalidValue);
  CHECK(to.host()[0] == 0);
  CHECK(error_of(1, 1024, 48 * 1024) == cudaSuccess);

  bounded<<<1, 65>>>(to.data);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  bounded<<<1, 64>>>(to.data);
  CHECK(cudaGetLastError() == cudaSuccess);

  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  bounded<<<1, 1, 0, stream>>>(to.data);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
}

TEST_CASE("dynamic shared memory: limit rises to the device's maximum") {
  // The programming guide's maximum per thread block.
  const struct { int compute_capability, kilobytes; } known[] = {{80, 163}, {86, 99}, {89, 99}, {90, 227}, {120, 99}};
  const Array<int> to(std::vector<int>(1));
  for (const auto& row : known) {
    CAPTURE(row.compute_capability);
    options().compute_capability = row.compute_capability;
    const int limit = row.kilobytes * 1024;
    CHECK(cudaFuncSetAttribute(fill_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, limit + 1) ==
          cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    REQUIRE(cudaFuncSetAttribute(fill_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, limit) == cudaSuccess);
    fill_shared<<<1, 32, limit>>>(to.data, limit / 4);
    REQUIRE(cudaGetLastError() == cudaSuccess);
    CHECK(to.host()[0] == limit / 4 - 1);
    fill_shared<<<1, 32, limit + 1>>>(to.data, 1);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    REQUIRE(cudaFuncSetAttribute(fill_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 48 * 1024) == cudaSuccess);
  }
  options().compute_capability = 80;
  // The limit is for static and dynamic memory together.
  CHECK(cudaFuncSetAttribute(large_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, (163 - 40) * 1024 + 1) ==
        cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  large_shared<<<1, 1, 8 * 1024 + 1>>>(to.data);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  large_shared<<<1, 1, 8 * 1024>>>(to.data);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaFuncSetAttribute(&to, cudaFuncAttributeMaxDynamicSharedMemorySize, 0) == cudaErrorInvalidDeviceFunction);
}

TEST_CASE("attributes and occupancy: follow from kernel and device") {
  cudaFuncAttributes attributes;
  REQUIRE(cudaFuncGetAttributes(&attributes, large_shared) == cudaSuccess);
  CHECK(attributes.sharedSizeBytes == 40 * 1024);
  CHECK(attributes.maxThreadsPerBlock == 1024);
  CHECK(attributes.ptxVersion == 80);
  REQUIRE(cudaFuncGetAttributes(&attributes, bounded) == cudaSuccess);
  CHECK(attributes.maxThreadsPerBlock == 64);
  CHECK(cudaFuncGetAttributes(&attributes, &attributes) == cudaErrorInvalidDeviceFunction);

  const auto blocks_of = [](auto* kernel, int threads, std::size_t shared) {
    int blocks = -1;
    REQUIRE(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared) == cudaSuccess);
    return blocks;
  };
  CHECK(blocks_of(identify, 256, 0) == 2048 / 256);
  CHECK(blocks_of(identify, 32, 0) == 32);                   // the most blocks of a multiprocessor
  CHECK(blocks_of(large_shared, 256, 0) == 164 / (40 + 1));  // a block reserves 1 KiB more
  CHECK(blocks_of(fill_shared, 32, 30 * 1024) == 164 / (30 + 1));
}

TEST_CASE("module variables: keep values between launches") {
  const Array<int> to({0});
  const int start = 5;
  REQUIRE(cudaMemcpyToSymbol(total, &start, sizeof start) == cudaSuccess);
  sum_table<<<1, 1>>>(to.data);
  CHECK(to.host()[0] == 15);
  const int twenty = 20;
  REQUIRE(cudaMemcpyToSymbol(table, &twenty, sizeof twenty, 3 * sizeof(int)) == cudaSuccess);
  sum_table<<<1, 1>>>(to.data);
  CHECK(to.host()[0] == 15 + 26);
  const int four = 4;
  REQUIRE(cudaMemcpyToSymbol(table, &four, sizeof four, 3 * sizeof(int)) == cudaSuccess);
  int back = 0;
  REQUIRE(cudaMemcpyFromSymbol(&back, total, sizeof back) == cudaSuccess);
  CHECK(back == 41);
  void* address = nullptr;
  REQUIRE(cudaGetSymbolAddress(&address, total) == cudaSuccess);
  add<<<1, 1>>>(static_cast<int*>(address), 1);
  REQUIRE(cudaMemcpyFromSymbol(&back, total, sizeof back) == cudaSuccess);
  CHECK(back == 42);
}

TEST_CASE("captured launch: keeps its arguments") {
  const Array<int> to({1, 2});
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  for (int value : {10, 100}) add<<<1, 2, 0, stream>>>(to.data, value);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  CHECK(to.host() == std::vector<int>{1, 2});
  const auto before = counters().launches;
  for (int run = 0; run < 3; ++run) REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  CHECK(to.host() == std::vector<int>{331, 332});
  CHECK(counters().launches == before + 6);
  CHECK(calls()["cudaLaunchKernel"] == 2);

  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  bounded<<<1, 1024, 0, stream>>>(to.data);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  cudaGraph_t second = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &second) == cudaSuccess);
  std::size_t nodes = 1;
  REQUIRE(cudaGraphGetNodes(second, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 0);
  cudaGraphDestroy(second);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_CASE("fail: makes the nth launch fail") {
  const Array<int> to({1});
  fail("cudaLaunchKernel", 1, cudaErrorLaunchFailure);
  for (int i = 0; i < 3; ++i) add<<<1, 1>>>(to.data, 1);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(to.host()[0] == 3);
}

TEST_CASE("launch: without a device returns an error") {
  const Array<int> to({1});
  options().devices = 0;
  add<<<1, 1>>>(to.data, 1);
  CHECK(cudaGetLastError() == cudaErrorNoDevice);
  options().devices = 1;
  CHECK(to.host()[0] == 1);
}

}  // namespace
}  // namespace gatefold::cuda_emulator
