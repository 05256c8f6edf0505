// Tests several devices: which device owns an object, and which calls between devices CUDA refuses.
#include <cublas_v2.h>
#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "cuda_emulator/array.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

__global__ void store_ones(int* x) { x[threadIdx.x] = 1; }
__global__ void copy_dynamic(int* x) {
  extern __shared__ int shared[];
  shared[threadIdx.x] = 1;
  x[threadIdx.x] = shared[threadIdx.x];
}

int current() {
  int device = -1;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  return device;
}
int owner(const void* pointer) {
  cudaPointerAttributes attributes;
  REQUIRE(cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess);
  return attributes.device;
}
void make_current(int device) { REQUIRE(cudaSetDevice(device) == cudaSuccess); }

struct Stream {
  Stream() { REQUIRE(cudaStreamCreate(&handle) == cudaSuccess); }
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(handle); }
  cudaStream_t handle;
};
struct Event {
  Event() { REQUIRE(cudaEventCreate(&handle) == cudaSuccess); }
  Event(const Event&) = delete;
  ~Event() { cudaEventDestroy(handle); }
  cudaEvent_t handle;
};

template <class F>
std::string fault_of(F run) {
  try {
    run();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}
bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("current device: every thread begins with device 0") {
  options().devices = 2;
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 2);
  CHECK(current() == 0);
  make_current(1);
  CHECK(current() == 1);
  std::thread([] { CHECK(current() == 0); }).join();
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(cudaSetDevice(-1) == cudaErrorInvalidDevice);
  CHECK(current() == 1);
  cudaGetLastError();
}

TEST_CASE("current device: a new test case begins with device 0") { CHECK(current() == 0); }

TEST_CASE("memory: belongs to one device, can be freed on any") {
  options().devices = 2;
  const Array<int> first(not_initialised, 4);
  make_current(1);
  const Array<int> second(not_initialised, 8);
  CHECK(owner(first.data) == 0);
  CHECK(owner(second.data) == 1);
  const Stream stream;
  make_current(0);
  int* of_stream = nullptr;
  REQUIRE(cudaMallocAsync(reinterpret_cast<void**>(&of_stream), 4, stream.handle) == cudaSuccess);
  CHECK(owner(of_stream) == 1);
  CHECK(cudaFree(of_stream) == cudaSuccess);
  CHECK(Memory::device().live_bytes_of(0) == 4 * sizeof(int));
  CHECK(Memory::device().live_bytes_of(1) == 8 * sizeof(int));
  std::size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  CHECK(total - free == 4 * sizeof(int));
}

TEST_CASE("launch: a stream of another device returns CUDA's error") {
  options().devices = 2;
  make_current(1);
  const Stream stream;
  const Array<int> x(std::vector<int>(32));
  int device = -1;
  CHECK(cudaStreamGetDevice(stream.handle, &device) == cudaSuccess);
  CHECK(device == 1);
  store_ones<<<1, 32, 0, stream.handle>>>(x.data);
  CHECK(cudaGetLastError() == cudaSuccess);
  make_current(0);
  CHECK(cudaStreamGetDevice(nullptr, &device) == cudaSuccess);
  CHECK(device == 0);
  store_ones<<<1, 32, 0, stream.handle>>>(x.data);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaMemsetAsync(x.data, 0, 4, stream.handle) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  CHECK(x.host() == std::vector<int>(32, 1));  // a copy finds the devices by its addresses
  CHECK(cudaStreamSynchronize(stream.handle) == cudaSuccess);
}

TEST_CASE("kernels: access memory of their device and pinned memory only") {
  options().devices = 2;
  const Array<int> first(std::vector<int>(32));
  int* pinned = nullptr;
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned), 32 * sizeof(int)) == cudaSuccess);
  make_current(1);
  store_ones<<<1, 32>>>(pinned);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(pinned[31] == 1);
  CHECK(mentions(fault_of([&] { store_ones<<<1, 32>>>(first.data); }),
                 "memory of another device: global store of 4 bytes at"));
  CHECK(mentions(fault_of([&] { store_ones<<<1, 32>>>(first.data); }), "(of device 0, by a kernel on device 1)"));
  CHECK(mentions(fault_of([&] { cudaMemset(first.data, 0, 4); }), "fill: expected memory of device 1"));
  CHECK(first.host() == std::vector<int>(32, 0));
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("cudaMemcpy: copies from device to device") {
  options().devices = 2;
  const Array<int> first(std::vector<int>{1, 2, 3});
  make_current(1);
  const Array<int> second(not_initialised, 3);
  CHECK(cudaMemcpy(second.data, first.data, 3 * sizeof(int), cudaMemcpyDeviceToDevice) == cudaSuccess);
  CHECK(second.host() == std::vector<int>{1, 2, 3});
}

TEST_CASE("events: belong to their device, any device may wait") {
  options().devices = 2;
  const Event first;
  const Stream stream;
  make_current(1);
  const Event second;
  CHECK(cudaEventRecord(second.handle, stream.handle) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(first.handle, stream.handle) == cudaSuccess);
  CHECK(cudaEventRecord(second.handle, nullptr) == cudaSuccess);
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, first.handle, second.handle) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  CHECK(cudaStreamWaitEvent(stream.handle, second.handle, 0) == cudaSuccess);
  CHECK(cudaEventSynchronize(first.handle) == cudaSuccess);
}

TEST_CASE("dynamic shared memory limit: is raised for one device") {
  options().devices = 2;
  const Array<int> x(not_initialised, 1);
  REQUIRE(cudaFuncSetAttribute(copy_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024) == cudaSuccess);
  copy_dynamic<<<1, 1, 100 * 1024>>>(x.data);
  CHECK(cudaGetLastError() == cudaSuccess);
  make_current(1);
  copy_dynamic<<<1, 1, 100 * 1024>>>(x.data);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  make_current(0);
  REQUIRE(cudaFuncSetAttribute(copy_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 48 * 1024) == cudaSuccess);
}

TEST_CASE("legacy stream: waits for blocking streams of its device only") {
  options().devices = 2;
  const Stream stream;
  REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  make_current(1);
  const Array<int> x(not_initialised, 32);
  store_ones<<<1, 32>>>(x.data);
  CHECK(cudaGetLastError() == cudaSuccess);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("graph: runs on the device of its capture") {
  options().devices = 2;
  make_current(1);
  const Stream stream;
  const Array<int> x(std::vector<int>(32));
  REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  store_ones<<<1, 32, 0, stream.handle>>>(x.data);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamEndCapture(stream.handle, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  make_current(0);
  CHECK(cudaGraphLaunch(executable, stream.handle) == cudaSuccess);
  CHECK(x.host() == std::vector<int>(32, 1));
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("cuBLAS handle: belongs to the device that created it") {
  options().devices = 2;
  const Stream stream;
  const Array<float> elsewhere(std::vector<float>{2});
  make_current(1);
  cublasHandle_t handle = nullptr;
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  const Array<float> a(std::vector<float>{2}), b(std::vector<float>{3}), c(not_initialised, 1);
  const float one = 1, zero = 0;
  const auto multiply = [&](const float* of_a) {
    return cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, of_a, 1, b.data, 1, &zero, c.data, 1);
  };
  CHECK(multiply(a.data) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.host() == std::vector<float>{6});
  CHECK(cublasSetStream(handle, stream.handle) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(mentions(fault_of([&] { multiply(elsewhere.data); }), "is on device 0, the product on device 1"));
  make_current(0);
  CHECK(mentions(fault_of([&] { multiply(a.data); }),
                 "cublasSgemm: expected device 1 to be current, for which the handle was made, got device 0"));
  CHECK(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace gatefold::cuda_emulator
