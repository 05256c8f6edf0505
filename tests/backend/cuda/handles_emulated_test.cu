// Handles on a machine without a device. The emulator makes their creation fail, and counts calls.
#include "gatefold/backend/cuda/handles.cuh"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/memory.hpp"

using namespace gatefold;
using cuda_emulator::calls;
using cuda_emulator::fail;

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

}  // namespace

TEST_CASE("Stream: without a device it throws and clears the error") {
  cuda_emulator::options().devices = 0;
  const std::string message = "Cuda::Context: no CUDA device: no CUDA-capable device is detected";
  CHECK(error_of([] { detail_::device::Stream(); }) == message);
  CHECK(error_of([] { detail_::device::Stream(nullptr); }) == message);
  CHECK(calls()["cudaStreamCreate"] == 0);
  cuda_emulator::options().devices = 1;
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK_NOTHROW(detail_::device::Stream());
}

TEST_CASE("Stream: keeps its device, also for flags, handle and workspace") {
  cuda_emulator::options().devices = 2;
  const auto owner = [](const void* pointer) {
    cudaPointerAttributes attributes;
    REQUIRE(cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess);
    return attributes.device;
  };
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  const detail_::device::Stream stream;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  CHECK(stream.device() == 1);
  const detail_::device::Stream same(stream.get()), standard(nullptr);
  CHECK(same.device() == 1);
  CHECK(standard.device() == 0);
  detail_::device::Flags flags(stream);
  CHECK(owner(flags.get()) == 1);
  {
    detail_::device::Blas blas(stream);
    CHECK(blas.get() != nullptr);
    CHECK(cuda_emulator::Memory::device().live_bytes_of(0) == 0);
    CHECK(cuda_emulator::Memory::device().live_bytes_of(1) > std::size_t(32) << 20);  // the workspace and the flags
  }
  int current = -1;
  CHECK(cudaGetDevice(&current) == cudaSuccess);
  CHECK(current == 0);
}

TEST_CASE("Stream: throws if the stream cannot be created") {
  fail("cudaStreamCreate", 0, cudaErrorMemoryAllocation);
  CHECK(error_of([] { detail_::device::Stream(); }) == "cudaStreamCreate: cudaErrorMemoryAllocation: out of memory");
  CHECK(calls()["cudaStreamDestroy"] == 0);
}

TEST_CASE("Stream: destroys only a stream it has created") {
  { const detail_::device::Stream stream; }
  CHECK(calls()["cudaStreamDestroy"] == 1);
  { const detail_::device::Stream stream(nullptr); }
  CHECK(calls()["cudaStreamDestroy"] == 1);
}

TEST_CASE("Blas: creates the handle once, on first use") {
  {
    const detail_::device::Stream stream(nullptr);
    detail_::device::Blas blas(stream);
    CHECK(calls()["cublasCreate"] == 0);
    CHECK(calls()["cudaMalloc"] == 0);
  }
  CHECK(calls()["cublasDestroy"] == 0);
  {
    const detail_::device::Stream stream(nullptr);
    detail_::device::Blas blas(stream);
    for (int i = 0; i < 3; ++i) blas.get();
    CHECK(calls()["cublasCreate"] == 1);
    CHECK(calls()["cublasSetWorkspace"] == 1);
    CHECK(calls()["cudaMalloc"] == 1);
  }
  CHECK(calls()["cublasDestroy"] == 1);
  CHECK(calls()["cudaFree"] == 1);
}

TEST_CASE("Blas: a retry reuses objects of a failed initialization") {
  const detail_::device::Stream stream(nullptr);
  detail_::device::Blas blas(stream);
  for (const char* call : {"cublasCreate", "cudaMalloc", "cublasSetStream", "cublasSetWorkspace"}) {
    CAPTURE(call);
    fail(call, 0, cudaErrorMemoryAllocation);
    CHECK(error_of([&] { blas.get(); }).find(std::string(call) + ": ") == 0);
  }
  CHECK(blas.get() != nullptr);
  CHECK(calls()["cublasCreate"] == 2);  // the first call failed
  CHECK(calls()["cudaMalloc"] == 2);
}
