// Streams and cuBLAS handles: whose they are, and that there is one of each.
#include "gatefold/backend/cuda/handles.cuh"

#include <doctest/doctest.h>

#include <type_traits>

using namespace gatefold;

TEST_CASE("there is a device where these tests run") { CHECK_NOTHROW(device::expect_device()); }

TEST_CASE("a stream of one's own, and another") {
  const device::Stream stream, other;
  CHECK(stream.get() != nullptr);
  CHECK(stream.get() == stream.get());
  CHECK(stream.get() != other.get());
  CHECK(cudaStreamSynchronize(stream.get()) == cudaSuccess);
}

TEST_CASE("somebody's stream outlives the object that holds it") {
  cudaStream_t mine = nullptr;
  REQUIRE(cudaStreamCreate(&mine) == cudaSuccess);
  {
    const device::Stream stream(mine);
    CHECK(stream.get() == mine);
  }
  CHECK(cudaStreamQuery(mine) == cudaSuccess);
  CHECK(cudaStreamDestroy(mine) == cudaSuccess);
  CHECK(device::Stream(nullptr).get() == nullptr);
}

TEST_CASE("streams know the multiprocessors of their device") {
  int current = 0, count = 0;
  REQUIRE(cudaGetDevice(&current) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, current) == cudaSuccess);
  CHECK(count > 0);
  CHECK(device::Stream().multiprocessors() == count);
  CHECK(device::Stream(nullptr).multiprocessors() == count);
}

TEST_CASE("one cuBLAS handle for all calls, on the stream it was made for") {
  const device::Stream stream;
  device::Blas blas(stream.get());
  const cublasHandle_t handle = blas.get();
  REQUIRE(handle != nullptr);
  CHECK(blas.get() == handle);
  cudaStream_t used = nullptr;
  CHECK(cublasGetStream(handle, &used) == CUBLAS_STATUS_SUCCESS);
  CHECK(used == stream.get());
}

TEST_CASE("handles have one owner") {
  CHECK(!std::is_copy_constructible_v<device::Stream>);
  CHECK(!std::is_move_constructible_v<device::Stream>);
  CHECK(!std::is_copy_constructible_v<device::Blas>);
  CHECK(!std::is_move_constructible_v<device::Blas>);
}
