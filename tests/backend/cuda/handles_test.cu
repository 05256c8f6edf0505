// Streams, flags and cuBLAS handles: which stream owns them, and that there is one of each.
#include "gatefold/backend/cuda/handles.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

using namespace gatefold;

TEST_CASE("OnDevice: selects a device for one scope") {
  int count = 0, before = -1;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  const auto current = [] {
    int device = -1;
    REQUIRE(cudaGetDevice(&device) == cudaSuccess);
    return device;
  };
  for (int device = 0; device < count; ++device) {
    const detail_::device::OnDevice here(device);
    CHECK(current() == device);
    { const detail_::device::OnDevice again(device); }
    CHECK(current() == device);
  }
  CHECK(current() == before);
  CHECK_THROWS_AS(detail_::device::OnDevice{count}, DeviceError);
  CHECK(current() == before);
}

TEST_CASE("expect_device: does not throw with a CUDA device") { CHECK_NOTHROW(detail_::device::expect_device()); }

TEST_CASE("expect_capability: throws if compute capability is too low") {
  CHECK_NOTHROW(detail_::device::expect_capability(0, 75));
  int major = 0, minor = 0;
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess);
  CHECK_NOTHROW(detail_::device::expect_capability(0, 10 * major + minor));
  CHECK_THROWS_WITH_AS(detail_::device::expect_capability(0, 999),
                       ("Cuda::Context: device: expected compute capability 99.9 or newer, got " +
                        std::to_string(major) + "." + std::to_string(minor))
                           .c_str(),
                       DeviceError);
}

TEST_CASE("Stream: two streams are different and usable") {
  const detail_::device::Stream stream, other;
  CHECK(stream.get() != nullptr);
  CHECK(stream.get() == stream.get());
  CHECK(stream.get() != other.get());
  CHECK(cudaStreamSynchronize(stream.get()) == cudaSuccess);
}

TEST_CASE("Stream: does not destroy the caller's stream") {
  cudaStream_t mine = nullptr;
  REQUIRE(cudaStreamCreate(&mine) == cudaSuccess);
  {
    const detail_::device::Stream stream(mine);
    CHECK(stream.get() == mine);
  }
  CHECK(cudaStreamQuery(mine) == cudaSuccess);
  CHECK(cudaStreamDestroy(mine) == cudaSuccess);
  CHECK(detail_::device::Stream(nullptr).get() == nullptr);
}

TEST_CASE("Stream: returns the number of multiprocessors of its device") {
  int current = 0, count = 0;
  REQUIRE(cudaGetDevice(&current) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, current) == cudaSuccess);
  CHECK(count > 0);
  CHECK(detail_::device::Stream().multiprocessors() == count);
  CHECK(detail_::device::Stream(nullptr).multiprocessors() == count);
}

namespace {

/// A host copy of all flags.
class FlagValues {
 public:
  explicit FlagValues(const detail_::device::Stream& stream)
      : stream_(stream), values_(static_cast<std::size_t>(detail_::device::Flags::each * stream.multiprocessors())) {}

  bool all_are(int value, const int* flags) {
    REQUIRE(cudaMemcpyAsync(values_.data(), flags, bytes(), cudaMemcpyDeviceToHost, stream_.get()) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream_.get()) == cudaSuccess);
    return std::count(values_.begin(), values_.end(), value) == static_cast<std::ptrdiff_t>(values_.size());
  }
  void raise(int* flags) {
    REQUIRE(cudaMemsetAsync(flags, 0xff, bytes(), stream_.get()) == cudaSuccess);  // every flag is −1
  }

 private:
  std::size_t bytes() const { return values_.size() * sizeof(int); }

  const detail_::device::Stream& stream_;
  std::vector<int> values_;
};

}  // namespace

TEST_CASE("Flags: are 0 on first use and unchanged later") {
  const detail_::device::Stream stream;
  detail_::device::Flags flags(stream);
  FlagValues values(stream);
  int* const first = flags.get();
  REQUIRE(first != nullptr);
  CHECK(values.all_are(0, first));
  values.raise(first);
  CHECK(flags.get() == first);
  CHECK(values.all_are(-1, first));
}

TEST_CASE("Flags: a graph launch and later get() clear the flags") {
  const detail_::device::Stream stream;
  detail_::device::Flags flags(stream);
  FlagValues values(stream);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
  int* const first = flags.get();
  REQUIRE(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  values.raise(first);
  REQUIRE(cudaGraphLaunch(executable, stream.get()) == cudaSuccess);
  CHECK(values.all_are(0, first));
  values.raise(first);
  CHECK(flags.get() == first);
  CHECK(values.all_are(0, first));
  values.raise(first);
  CHECK(flags.get() == first);
  CHECK(values.all_are(-1, first));
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("Blas: returns the same handle, which uses its stream") {
  const detail_::device::Stream stream;
  detail_::device::Blas blas(stream);
  const cublasHandle_t handle = blas.get();
  REQUIRE(handle != nullptr);
  CHECK(blas.get() == handle);
  cudaStream_t used = nullptr;
  CHECK(cublasGetStream(handle, &used) == CUBLAS_STATUS_SUCCESS);
  CHECK(used == stream.get());
}

TEST_CASE("Stream, Flags and Blas: cannot be copied or moved") {
  CHECK(!std::is_copy_constructible_v<detail_::device::Stream>);
  CHECK(!std::is_move_constructible_v<detail_::device::Stream>);
  CHECK(!std::is_copy_constructible_v<detail_::device::Flags>);
  CHECK(!std::is_copy_constructible_v<detail_::device::Blas>);
  CHECK(!std::is_move_constructible_v<detail_::device::Blas>);
}
