// Tests capture and replay: what is recorded, what is refused during a capture, and what a graph does when it runs.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

// A stream, eight bytes of device memory, and functions to read and write them.
struct Fixture {
  explicit Fixture(unsigned flags = cudaStreamNonBlocking) {
    REQUIRE(cudaStreamCreateWithFlags(&stream, flags) == cudaSuccess);
    REQUIRE(cudaMalloc(&memory, 8) == cudaSuccess);
    REQUIRE(cudaMemset(memory, 0, 8) == cudaSuccess);
  }
  Fixture(const Fixture&) = delete;
  ~Fixture() {
    if (graph) cudaGraphDestroy(graph);
    if (executable) cudaGraphExecDestroy(executable);
    if (memory) cudaFree(memory);
    cudaStreamDestroy(stream);
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    REQUIRE(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
  }
  void end() {
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  }
  int byte(std::size_t i = 0) const {
    char bytes[8];
    REQUIRE(cudaMemcpy(bytes, memory, 8, cudaMemcpyDeviceToHost) == cudaSuccess);
    return bytes[i];
  }
  cudaStreamCaptureStatus status() const {
    cudaStreamCaptureStatus result;
    REQUIRE(cudaStreamIsCapturing(stream, &result) == cudaSuccess);
    return result;
  }
  // Ends a capture that was invalidated.
  cudaError_t end_lost() {
    const cudaError_t error = cudaStreamEndCapture(stream, &graph);
    CHECK(graph == nullptr);
    return error;
  }
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
};

TEST_CASE("graph: each launch runs the captured work in order") {
  Fixture f;
  void* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 8) == cudaSuccess);
  char* const host = static_cast<char*>(pinned);
  host[0] = 1;
  f.begin();
  CHECK(f.status() == cudaStreamCaptureStatusActive);
  REQUIRE(cudaMemsetAsync(f.memory, 9, 8, f.stream) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(f.memory, host, 1, cudaMemcpyHostToDevice, f.stream) == cudaSuccess);
  REQUIRE(cudaLaunchHostFunc(
              f.stream, [](void* p) { ++*static_cast<char*>(p); }, host) == cudaSuccess);
  f.end();
  CHECK(f.status() == cudaStreamCaptureStatusNone);
  std::size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(f.graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 3);
  CHECK(f.byte() == 0);
  CHECK(host[0] == 1);

  REQUIRE(cudaGraphDestroy(f.graph) == cudaSuccess);  // the executable graph is a copy
  f.graph = nullptr;
  for (int run = 1; run <= 3; ++run) {
    REQUIRE(cudaGraphLaunch(f.executable, f.stream) == cudaSuccess);
    CHECK(f.byte(0) == run);
    CHECK(f.byte(1) == 9);
    CHECK(host[0] == run + 1);
  }
  CHECK(calls()["cudaMemsetAsync"] == 1);
  CHECK(calls()["cudaGraphLaunch"] == 3);
  cudaFreeHost(pinned);
}

TEST_CASE("graph: a captured product keeps scalars and reads matrices later") {
  Fixture f;
  cublasHandle_t handle = nullptr;
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetStream(handle, f.stream) == CUBLAS_STATUS_SUCCESS);
  float* const x = static_cast<float*>(f.memory);  // y = x[0], x = x[1]
  const float values[] = {1, 10};
  REQUIRE(cudaMemcpy(x, values, 8, cudaMemcpyHostToDevice) == cudaSuccess);
  float* one = nullptr;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&one), 4) == cudaSuccess);
  REQUIRE(cudaMemcpy(one, values, 4, cudaMemcpyHostToDevice) == cudaSuccess);

  float alpha = 2, beta = 1;
  f.begin();
  REQUIRE(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, one, 1, x + 1, 1, &beta, x, 1) ==
          CUBLAS_STATUS_SUCCESS);
  f.end();
  alpha = beta = 1000;
  const auto y = [&] {
    REQUIRE(cudaGraphLaunch(f.executable, f.stream) == cudaSuccess);
    float result = 0;
    REQUIRE(cudaMemcpy(&result, x, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    return result;
  };
  CHECK(y() == 1 + 2 * 10);
  const float hundred = 100;
  REQUIRE(cudaMemcpy(x + 1, &hundred, 4, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(y() == 21 + 2 * 100);
  cublasDestroy(handle);
  cudaFree(one);
}

TEST_CASE("capture: allocation, synchronization and blocking copies invalidate it") {
  Fixture f;
  char host[8];
  void* memory = nullptr;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  const std::vector<std::function<cudaError_t()>> refused = {
      [&] { return cudaMalloc(&memory, 8); },
      [&] { return cudaFree(f.memory); },
      [&] { return cudaMallocHost(&memory, 8); },
      [&] { return cudaMemcpy(f.memory, host, 8, cudaMemcpyHostToDevice); },
      [&] { return cudaMemcpyAsync(f.memory, host, 8, cudaMemcpyHostToDevice, f.stream); },  // pageable
      [&] { return cudaMemset(f.memory, 1, 8); },
      [&] { return cudaStreamSynchronize(f.stream); },
      [&] { return cudaStreamQuery(f.stream); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventSynchronize(event); },
  };
  for (std::size_t i = 0; i < refused.size(); ++i) {
    CAPTURE(i);
    f.begin();
    REQUIRE(cudaMemsetAsync(f.memory, 9, 8, f.stream) == cudaSuccess);
    CHECK(refused[i]() == cudaErrorStreamCaptureUnsupported);
    CHECK(f.status() == cudaStreamCaptureStatusInvalidated);
    CHECK(cudaMemsetAsync(f.memory, 9, 8, f.stream) == cudaErrorStreamCaptureInvalidated);
    CHECK(f.end_lost() == cudaErrorStreamCaptureInvalidated);
    CHECK(f.status() == cudaStreamCaptureStatusNone);
  }
  CHECK(f.byte() == 0);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

TEST_CASE("capture: relaxed mode allows allocation and waiting") {
  Fixture f;
  f.begin(cudaStreamCaptureModeRelaxed);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 8) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  f.end();
}

TEST_CASE("capture: begins once and ends once, in the same stream") {
  Fixture f, other;
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
  CHECK(f.end_lost() == cudaErrorIllegalState);
  f.begin();
  CHECK(cudaStreamBeginCapture(f.stream, cudaStreamCaptureModeGlobal) == cudaErrorIllegalState);
  CHECK(other.end_lost() == cudaErrorIllegalState);
  f.end();
}

TEST_CASE("capture: a blocking stream and the legacy stream conflict") {
  Fixture f(cudaStreamDefault);
  f.begin();
  CHECK(cudaMemsetAsync(f.memory, 1, 8, nullptr) == cudaErrorStreamCaptureImplicit);
  CHECK(f.end_lost() == cudaErrorStreamCaptureInvalidated);

  Fixture free;
  free.begin();
  CHECK(cudaMemsetAsync(f.memory, 1, 8, nullptr) == cudaSuccess);
  free.end();
  CHECK(f.byte() == 1);
}

struct Event {
  Event() { REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess); }
  ~Event() { cudaEventDestroy(event); }
  operator cudaEvent_t() const { return event; }
  cudaEvent_t event = nullptr;
};

TEST_CASE("capture: a second stream forks and must join by events") {
  Fixture f, side;
  const Event fork, join;
  f.begin();
  REQUIRE(cudaMemsetAsync(f.memory, 1, 8, f.stream) == cudaSuccess);
  REQUIRE(cudaEventRecord(fork, f.stream) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(side.stream, fork, 0) == cudaSuccess);
  CHECK(side.status() == cudaStreamCaptureStatusActive);
  REQUIRE(cudaMemsetAsync(side.memory, 2, 8, side.stream) == cudaSuccess);
  CHECK(cudaEventQuery(join) == cudaErrorStreamCaptureUnsupported);
  CHECK(f.end_lost() == cudaErrorStreamCaptureInvalidated);
  CHECK(side.status() == cudaStreamCaptureStatusNone);

  for (const bool joined : {false, true}) {
    f.begin();
    REQUIRE(cudaEventRecord(fork, f.stream) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(side.stream, fork, 0) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(side.memory, 2, 8, side.stream) == cudaSuccess);
    REQUIRE(cudaEventRecord(join, side.stream) == cudaSuccess);
    if (!joined) REQUIRE(cudaMemsetAsync(side.memory, 3, 4, side.stream) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(f.stream, join, 0) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(f.memory, side.memory, 8, cudaMemcpyDeviceToDevice, f.stream) == cudaSuccess);
    if (joined) {
      CHECK(cudaStreamEndCapture(side.stream, &side.graph) == cudaErrorStreamCaptureUnmatched);
      CHECK(f.end_lost() == cudaErrorStreamCaptureInvalidated);
    } else {
      CHECK(f.end_lost() == cudaErrorStreamCaptureUnjoined);
    }
  }

  f.begin();
  REQUIRE(cudaEventRecord(fork, f.stream) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(side.stream, fork, 0) == cudaSuccess);
  REQUIRE(cudaMemsetAsync(side.memory, 2, 8, side.stream) == cudaSuccess);
  REQUIRE(cudaEventRecord(join, side.stream) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(f.stream, join, 0) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(f.memory, side.memory, 8, cudaMemcpyDeviceToDevice, f.stream) == cudaSuccess);
  f.end();
  CHECK(f.byte() == 0);
  REQUIRE(cudaGraphLaunch(f.executable, f.stream) == cudaSuccess);
  CHECK(f.byte() == 2);
}

TEST_CASE("capture: events must not connect the capture to other streams") {
  Fixture f, other;
  const Event outside, inside;
  REQUIRE(cudaEventRecord(outside, other.stream) == cudaSuccess);
  f.begin();
  CHECK(cudaStreamWaitEvent(f.stream, outside, 0) == cudaErrorStreamCaptureIsolation);
  CHECK(f.end_lost() == cudaErrorStreamCaptureInvalidated);

  f.begin();
  REQUIRE(cudaEventRecord(inside, f.stream) == cudaSuccess);
  CHECK(cudaEventSynchronize(inside) == cudaErrorCapturedEvent);
  CHECK(f.end_lost() == cudaErrorStreamCaptureInvalidated);

  f.begin();
  other.begin();
  REQUIRE(cudaEventRecord(inside, f.stream) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(other.stream, inside, 0) == cudaErrorStreamCaptureMerge);
  CHECK(f.end_lost() == cudaErrorStreamCaptureInvalidated);
  CHECK(other.end_lost() == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("capture: a launched graph becomes part of the new graph") {
  Fixture f;
  f.begin();
  REQUIRE(cudaMemsetAsync(f.memory, 4, 1, f.stream) == cudaSuccess);
  f.end();
  Fixture outer;
  outer.begin();
  REQUIRE(cudaGraphLaunch(f.executable, outer.stream) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(outer.memory, f.memory, 8, cudaMemcpyDeviceToDevice, outer.stream) == cudaSuccess);
  outer.end();
  CHECK(f.byte() == 0);
  REQUIRE(cudaGraphLaunch(outer.executable, nullptr) == cudaSuccess);
  CHECK(outer.byte() == 4);
}

TEST_CASE("graph: launching with freed memory faults") {
  Fixture f;
  f.begin();
  REQUIRE(cudaMemsetAsync(f.memory, 4, 8, f.stream) == cudaSuccess);
  f.end();
  REQUIRE(cudaFree(f.memory) == cudaSuccess);
  f.memory = nullptr;
  CHECK_THROWS_WITH_AS(cudaGraphLaunch(f.executable, f.stream),
                       "fill: its memory is not alive any more: invalid argument", Fault);
}

TEST_CASE("graph: can be destroyed once; unknown graphs return errors") {
  Fixture f;
  f.begin();
  f.end();
  CHECK(cudaGraphUpload(f.executable, f.stream) == cudaSuccess);
  REQUIRE(cudaGraphExecDestroy(f.executable) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(f.graph) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(f.executable) == cudaErrorInvalidValue);
  CHECK(cudaGraphDestroy(f.graph) == cudaErrorInvalidValue);
  CHECK(cudaGraphLaunch(f.executable, f.stream) == cudaErrorInvalidValue);
  CHECK(cudaGraphInstantiate(&f.executable, f.graph, 0) == cudaErrorInvalidValue);
  f.graph = nullptr;
  f.executable = nullptr;
}

}  // namespace
}  // namespace gatefold::cuda_emulator
