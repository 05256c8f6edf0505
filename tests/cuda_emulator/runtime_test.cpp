// Tests the runtime without kernels: memory, copies, streams, events, errors, devices, and the functions for tests.
#include "cuda_emulator/runtime.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/device.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

struct Buffer {
  explicit Buffer(std::size_t bytes) { REQUIRE(cudaMalloc(&data, bytes) == cudaSuccess); }
  ~Buffer() { cudaFree(data); }
  char* at(std::size_t offset) const { return static_cast<char*>(data) + offset; }
  void* data = nullptr;
};

std::vector<char> read_back(const void* device, std::size_t bytes) {
  std::vector<char> host(bytes);
  REQUIRE(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
  return host;
}

TEST_CASE("cudaMalloc: memory is poisoned, counted and freed once") {
  const std::size_t before = Memory::device().live();
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 100) == cudaSuccess);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  CHECK(Memory::device().live() == before + 1);
  CHECK(read_back(memory, 100) == std::vector<char>(100, '\xCB'));
  CHECK(cudaFree(static_cast<char*>(memory) + 4) == cudaErrorInvalidValue);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);
  CHECK(cudaFree(nullptr) == cudaSuccess);
  CHECK(Memory::device().live() == before);

  REQUIRE(cudaMalloc(&memory, 0) == cudaSuccess);
  CHECK(memory == nullptr);
  CHECK(cudaMalloc(nullptr, 4) == cudaErrorInvalidValue);
}

TEST_CASE("cudaMalloc: returns out of memory beyond the device's size") {
  std::size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  CHECK(free <= total);
  void* memory = &free;
  CHECK(cudaMalloc(&memory, total + 1) == cudaErrorMemoryAllocation);
  CHECK(memory == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
}

TEST_CASE("copies and fills: move exactly their bytes") {
  const Buffer a(64), b(64);
  std::vector<char> host(64);
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<char>(i);
  REQUIRE(cudaMemset(b.data, 7, 64) == cudaSuccess);
  REQUIRE(cudaMemcpy(a.data, host.data(), 64, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaMemcpy(b.at(8), a.at(16), 4, cudaMemcpyDeviceToDevice) == cudaSuccess);
  REQUIRE(cudaMemcpy(b.at(12), a.at(1), 1, cudaMemcpyDefault) == cudaSuccess);
  std::vector<char> expected(64, 7);
  for (int i = 0; i < 4; ++i) expected[static_cast<std::size_t>(8 + i)] = static_cast<char>(16 + i);
  expected[12] = 1;
  CHECK(read_back(b.data, 64) == expected);
}

TEST_CASE("copies and fills: beyond an allocation are invalid") {
  const Buffer memory(64);
  std::vector<char> host(128);
  CHECK(cudaMemcpy(memory.data, host.data(), 65, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host.data(), memory.at(60), 5, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host.data(), host.data() + 64, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(nullptr, memory.data, 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host.data(), memory.data, 4, static_cast<cudaMemcpyKind>(5)) == cudaErrorInvalidMemcpyDirection);
  CHECK(cudaMemset(memory.at(1), 0, 64) == cudaErrorInvalidValue);
  CHECK(cudaMemset(host.data(), 0, 4) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(memory.at(64), host.data(), 0, cudaMemcpyHostToDevice) == cudaSuccess);

  void* freed = nullptr;
  REQUIRE(cudaMalloc(&freed, 64) == cudaSuccess);
  REQUIRE(cudaFree(freed) == cudaSuccess);
  CHECK(cudaMemcpy(freed, host.data(), 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
}

TEST_CASE("copies: a wrong kind or overlap faults") {
  const Buffer a(64), b(64);
  CHECK_THROWS_WITH_AS(cudaMemcpy(a.data, b.data, 4, cudaMemcpyHostToDevice),
                       ("copy: expected a source on the host, as its kind says, got the device address " +
                        hexadecimal(reinterpret_cast<std::uintptr_t>(b.data)))
                           .c_str(),
                       Fault);
  CHECK_THROWS_AS(cudaMemcpy(a.data, b.data, 4, cudaMemcpyDeviceToHost), Fault);
  CHECK_THROWS_AS(cudaMemcpy(a.at(2), a.data, 4, cudaMemcpyDeviceToDevice), Fault);
  CHECK(cudaMemcpy(a.at(4), a.data, 4, cudaMemcpyDeviceToDevice) == cudaSuccess);
}

TEST_CASE("pinned memory: belongs to the host, freed once") {
  void* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 16) == cudaSuccess);
  std::memset(pinned, 5, 16);
  const Buffer device(16);
  REQUIRE(cudaMemcpy(device.data, pinned, 16, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(read_back(device.data, 16) == std::vector<char>(16, 5));
  CHECK(cudaFree(pinned) == cudaErrorInvalidValue);

  cudaPointerAttributes attributes;
  REQUIRE(cudaPointerGetAttributes(&attributes, pinned) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeHost);
  REQUIRE(cudaPointerGetAttributes(&attributes, device.at(15)) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeDevice);
  REQUIRE(cudaPointerGetAttributes(&attributes, &attributes) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeUnregistered);

  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaErrorInvalidValue);

  char own[8];
  REQUIRE(cudaHostRegister(own, sizeof own, cudaHostRegisterDefault) == cudaSuccess);
  CHECK(cudaHostRegister(own, sizeof own, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
  CHECK(cudaFreeHost(own) == cudaErrorInvalidValue);
  CHECK(cudaHostUnregister(own) == cudaSuccess);
  CHECK(cudaHostUnregister(own) == cudaErrorHostMemoryNotRegistered);
}

TEST_CASE("streams: calls with destroyed or unknown streams return errors") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  unsigned flags = 0;
  REQUIRE(cudaStreamGetFlags(stream, &flags) == cudaSuccess);
  CHECK(flags == cudaStreamNonBlocking);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);

  const Buffer device(8);
  char host[8];
  void* memory = nullptr;
  CHECK(cudaStreamDestroy(stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaMemcpyAsync(host, device.data, 8, cudaMemcpyDeviceToHost, stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaMemsetAsync(device.data, 0, 8, stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaMallocAsync(&memory, 8, stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaLaunchHostFunc(
            stream, [](void*) {}, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamCreateWithFlags(&stream, 17) == cudaErrorInvalidValue);
  for (cudaStream_t built_in : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    CHECK(cudaStreamSynchronize(built_in) == cudaSuccess);
  }
}

TEST_CASE("events: are recorded, timed and destroyed once") {
  cudaEvent_t start = nullptr, end = nullptr, untimed = nullptr;
  REQUIRE(cudaEventCreate(&start) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming) == cudaSuccess);
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorInvalidResourceHandle);
  for (cudaEvent_t event : {start, end, untimed}) REQUIRE(cudaEventRecord(event, nullptr) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess);
  CHECK(milliseconds >= 0);
  CHECK(cudaEventElapsedTime(&milliseconds, start, untimed) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamWaitEvent(nullptr, end, 0) == cudaSuccess);
  CHECK(cudaEventSynchronize(end) == cudaSuccess);
  for (cudaEvent_t event : {start, end, untimed}) {
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    CHECK(cudaEventDestroy(event) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(event, nullptr) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventSynchronize(event) == cudaErrorInvalidResourceHandle);
  }
}

TEST_CASE("cudaGetLastError: returns the last error of the thread once") {
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaFree(&calls()) == cudaErrorInvalidValue);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  std::thread([] { CHECK(cudaPeekAtLastError() == cudaSuccess); }).join();
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
}

// Finds a function of a library. libcudart of the toolkit has the names of errors, even if no driver is installed.
template <class F>
F* symbol_of(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return handle ? reinterpret_cast<F*>(dlsym(handle, name)) : nullptr;
}

TEST_CASE("errors: names and messages equal libcudart's") {
  CHECK(std::string(cudaGetErrorName(cudaErrorMemoryAllocation)) == "cudaErrorMemoryAllocation");
  CHECK(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
  CHECK(std::string(cudaGetErrorString(static_cast<cudaError_t>(5555))) == "unrecognized error code");
  auto* const name = symbol_of<const char*(cudaError_t)>(CUDA_EMULATOR_CUDART, "cudaGetErrorName");
  auto* const sentence = symbol_of<const char*(cudaError_t)>(CUDA_EMULATOR_CUDART, "cudaGetErrorString");
  if (!name || !sentence) return;
  int known = 0;
  for (int code = 0; code < 1000; ++code) {
    const auto error = static_cast<cudaError_t>(code);
    if (std::string(cudaGetErrorName(error)) == "unrecognized error code") continue;
    ++known;
    CHECK(std::string(cudaGetErrorName(error)) == name(error));
    CHECK(std::string(cudaGetErrorString(error)) == sentence(error));
  }
  CHECK(known > 30);
}

TEST_CASE("runtime: without a device every call returns an error") {
  options().devices = 0;
  int count = -1, device = -1;
  void* memory = nullptr;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(cudaGetDevice(&device) == cudaErrorNoDevice);
  CHECK(cudaSetDevice(0) == cudaErrorNoDevice);
  CHECK(cudaMalloc(&memory, 4) == cudaErrorNoDevice);
  CHECK(cudaDeviceSynchronize() == cudaErrorNoDevice);
  CHECK(cudaGetLastError() == cudaErrorNoDevice);
  CHECK(std::string(cudaGetErrorString(cudaErrorNoDevice)) == "no CUDA-capable device is detected");
  options().devices = 1;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 1);
  CHECK(cudaSetDevice(1) == cudaErrorInvalidDevice);
}

TEST_CASE("limits: follow the compute capability") {
  // Maximum shared memory per block, opt-in, and threads per multiprocessor: CUDA programming guide, table of technical
  // specifications per compute capability.
  const struct {
    int compute_capability, shared_kilobytes, threads;
  } known[] = {{75, 64, 1024},  {80, 163, 2048},  {86, 99, 1536}, {89, 99, 1536},
               {90, 227, 2048}, {100, 227, 2048}, {120, 99, 1536}};
  for (const auto& row : known) {
    CAPTURE(row.compute_capability);
    options().compute_capability = row.compute_capability;
    int major = 0, minor = 0, shared = 0, resident = 0;
    REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
    REQUIRE(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess);
    REQUIRE(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
    REQUIRE(cudaDeviceGetAttribute(&resident, cudaDevAttrMaxThreadsPerMultiProcessor, 0) == cudaSuccess);
    CHECK(major * 10 + minor == row.compute_capability);
    CHECK(shared == row.shared_kilobytes * 1024);
    CHECK(resident == row.threads);
    cudaDeviceProp properties;
    REQUIRE(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
    CHECK(properties.sharedMemPerBlockOptin == static_cast<std::size_t>(shared));
    CHECK(properties.maxThreadsPerBlock == 1024);
    CHECK(properties.maxGridSize[0] == 2147483647);
  }
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 1) == cudaErrorInvalidDevice);
  CHECK_THROWS_WITH_AS(cudaDeviceGetAttribute(&value, cudaDevAttrMaxTexture1DWidth, 0),
                       "cudaDeviceGetAttribute: attribute 21 is not modelled", Fault);
  options().compute_capability = 42;
  CHECK_THROWS_WITH_AS(cudaMemGetInfo(nullptr, nullptr),
                       "compute capability: expected 75, 80, 86, 89, 90, 100 or 120, got 42", Fault);
}

TEST_CASE("calls: are counted by name") {
  CHECK(calls()["cudaMalloc"] == 0);
  {
    const Buffer a(8), b(8);
    REQUIRE(cudaMemcpy(a.data, b.data, 8, cudaMemcpyDeviceToDevice) == cudaSuccess);
  }
  CHECK(calls()["cudaMalloc"] == 2);
  CHECK(calls()["cudaMemcpy"] == 1);
  CHECK(calls()["cudaFree"] == 2);
  CHECK(calls()["cudaStreamSynchronize"] == 0);
}

TEST_CASE("fail: fails only the nth call of the named function") {
  void *first = nullptr, *second = nullptr, *third = nullptr;
  fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
  fail("cudaMalloc", 2, cudaErrorECCUncorrectable);
  CHECK(pending_failures().size() == 2);
  CHECK(cudaMalloc(&first, 8) == cudaSuccess);
  CHECK(cudaMemset(first, 0, 8) == cudaSuccess);
  CHECK(cudaMalloc(&second, 8) == cudaErrorMemoryAllocation);
  CHECK(second == nullptr);
  CHECK(pending_failures() ==
        std::vector<std::string>{"cudaMalloc: expected a call that fails with cudaErrorECCUncorrectable, got none; "
                                 "calls missing: 1"});
  CHECK(cudaMalloc(&second, 8) == cudaErrorECCUncorrectable);
  CHECK(cudaMalloc(&third, 8) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaErrorECCUncorrectable);
  CHECK(pending_failures().empty());
  cudaFree(first);
  cudaFree(third);
}

TEST_CASE("Memory::fail_at: makes cudaMalloc fail") {
  void *first = nullptr, *second = nullptr;
  Memory::device().fail_at(1);
  CHECK(cudaMalloc(&first, 8) == cudaSuccess);
  CHECK(cudaMalloc(&second, 8) == cudaErrorMemoryAllocation);
  CHECK(second == nullptr);
  CHECK(cudaMallocAsync(&second, 8, nullptr) == cudaSuccess);
  CHECK(cudaFree(first) == cudaSuccess);
  CHECK(cudaFreeAsync(second, nullptr) == cudaSuccess);
}

TEST_CASE("live_handles: counts living objects") {
  const std::size_t before = live_handles();
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  void* pinned = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&pinned, 8, cudaHostAllocDefault) == cudaSuccess);
  CHECK(live_handles() == before + 3);
  cudaStreamDestroy(stream);
  cudaEventDestroy(event);
  cudaFreeHost(pinned);
  CHECK(live_handles() == before);
}

// CTest runs these cases by name and expects the failures that main.cpp reports.
TEST_SUITE("neglect") {
  TEST_CASE("memory" * doctest::skip()) {
    void* memory = nullptr;
    CHECK(cudaMalloc(&memory, 8) == cudaSuccess);
  }
  TEST_CASE("stream" * doctest::skip()) {
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
  }
  TEST_CASE("pending_failure" * doctest::skip()) { fail("cudaMalloc", 0, cudaErrorMemoryAllocation); }
  TEST_CASE("race" * doctest::skip()) { race("two threads"); }
}

}  // namespace
}  // namespace gatefold::cuda_emulator
