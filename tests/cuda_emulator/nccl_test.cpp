// Tests the stand-in for NCCL with ranks of one process, each with a device.
#include <doctest/doctest.h>
#include <nccl.h>

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/report.hpp"

namespace {

namespace emulator = gatefold::cuda_emulator;

/// Two connected ranks, each with a stream and some memory.
struct Pair {
  ncclUniqueId id{};
  ncclComm_t comm[2] = {};
  cudaStream_t stream[2] = {};
  char* memory[2] = {};

  Pair() {
    emulator::options().devices = 2;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    for (int rank : {0, 1}) {
      REQUIRE(cudaSetDevice(rank) == cudaSuccess);
      REQUIRE(cudaStreamCreate(&stream[rank]) == cudaSuccess);
      REQUIRE(cudaMalloc(reinterpret_cast<void**>(&memory[rank]), 64) == cudaSuccess);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      REQUIRE(ncclCommInitRankConfig(&comm[rank], 2, id, rank, &config) == ncclInProgress);
      if (rank == 0) CHECK(state(0) == ncclInProgress);
    }
    CHECK(state(0) == ncclSuccess);
    CHECK(state(1) == ncclSuccess);
  }
  ~Pair() {
    for (int rank : {0, 1}) {
      if (comm[rank]) CHECK(ncclCommAbort(comm[rank]) == ncclSuccess);
      cudaStreamDestroy(stream[rank]);
      cudaFree(memory[rank]);
    }
    CHECK_FALSE(std::filesystem::exists(id.internal));
  }
  ncclResult_t state(int rank) {
    ncclResult_t found{};
    REQUIRE(ncclCommGetAsyncError(comm[rank], &found) == ncclSuccess);
    return found;
  }
  void write(int rank, const std::string& text) {
    REQUIRE(cudaMemcpy(memory[rank], text.data(), text.size(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  std::string read(int rank, std::size_t from, std::size_t size) {
    std::string text(size, ' ');
    REQUIRE(cudaMemcpy(text.data(), memory[rank] + from, size, cudaMemcpyDeviceToHost) == cudaSuccess);
    return text;
  }
};

}  // namespace

TEST_CASE("NCCL: messages of a group arrive in order after sending") {
  Pair pair;
  pair.write(0, "abcdefgh");
  pair.write(1, "12345678");
  CHECK(ncclGroupStart() == ncclSuccess);
  CHECK(ncclRecv(pair.memory[1] + 16, 2, ncclUint8, 0, pair.comm[1], pair.stream[1]) == ncclSuccess);
  CHECK(ncclRecv(pair.memory[1] + 32, 3, ncclUint8, 0, pair.comm[1], pair.stream[1]) == ncclSuccess);
  CHECK(ncclSend(pair.memory[1], 1, ncclInt32, 0, pair.comm[1], pair.stream[1]) == ncclSuccess);
  CHECK(ncclGroupEnd() == ncclInProgress);
  CHECK(pair.state(1) == ncclInProgress);
  CHECK(ncclGroupStart() == ncclSuccess);
  CHECK(ncclSend(pair.memory[0], 2, ncclUint8, 1, pair.comm[0], pair.stream[0]) == ncclSuccess);
  CHECK(ncclSend(pair.memory[0] + 5, 3, ncclUint8, 1, pair.comm[0], pair.stream[0]) == ncclSuccess);
  CHECK(ncclRecv(pair.memory[0] + 16, 4, ncclUint8, 1, pair.comm[0], pair.stream[0]) == ncclSuccess);
  CHECK(pair.state(1) == ncclInProgress);
  CHECK(ncclGroupEnd() == ncclInProgress);
  CHECK(pair.state(1) == ncclSuccess);
  CHECK(pair.state(0) == ncclSuccess);
  CHECK(pair.read(1, 16, 2) == "ab");
  CHECK(pair.read(1, 32, 3) == "fgh");
  CHECK(pair.read(0, 16, 4) == "1234");
  for (int rank : {0, 1}) CHECK(ncclCommFinalize(pair.comm[rank]) == ncclInProgress);
  for (int rank : {0, 1}) {
    CHECK(pair.state(rank) == ncclSuccess);
    CHECK(ncclCommDestroy(pair.comm[rank]) == ncclSuccess);
    pair.comm[rank] = nullptr;
  }
}

TEST_CASE("NCCL: invalid calls return errors or fault") {
  Pair pair;
  const auto send = [&](void* at, std::size_t bytes, int peer, int rank, int stream) {
    return ncclSend(at, bytes, ncclUint8, peer, pair.comm[rank], pair.stream[stream]);
  };
  const auto fault = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const emulator::Fault& found) {
      return found.what();
    }
    return "";
  };
  CHECK(send(pair.memory[0], 4, 2, 0, 0) == ncclInvalidArgument);
  CHECK(std::string(ncclGetLastError(nullptr)) == "ncclSend: peer 2 of 2");
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
  CHECK(fault([&] {
          send(pair.memory[1], 4, 1, 0, 0);
        }).find("ncclSend: expected 4 bytes in memory of device 0, that of the communicator, got 0x") == 0);
  CHECK(fault([&] { send(pair.memory[0], 65, 1, 0, 0); }).find("ncclSend: expected 65 bytes in memory of device 0") ==
        0);
  int on_host = 0;
  CHECK(fault([&] { send(&on_host, 4, 1, 0, 0); }).find("ncclSend: expected 4 bytes in memory of device 0") == 0);
  CHECK(fault([&] { send(pair.memory[0], 4, 1, 0, 1); }) ==
        "ncclSend: expected a stream of device 0, that of the communicator");
  CHECK(fault([&] { send(pair.memory[0], 4, 0, 0, 0); }) == "ncclSend: messages of a rank to itself are not modelled");
  CHECK(send(pair.memory[0], 4, 1, 0, 0) == ncclSuccess);
  CHECK(ncclRecv(pair.memory[1], 5, ncclUint8, 0, pair.comm[1], pair.stream[1]) == ncclSuccess);
  ncclResult_t found{};
  CHECK(fault([&] { ncclCommGetAsyncError(pair.comm[1], &found); }) ==
        "ncclRecv: expected 5 bytes from rank 0, which sends 4");
  emulator::fail("ncclSend", 0, cudaErrorECCUncorrectable);
  CHECK(send(pair.memory[0], 4, 1, 0, 0) == ncclUnhandledCudaError);
}

TEST_CASE("NCCL: an abort returns an error on other ranks") {
  Pair pair;
  CHECK(ncclRecv(pair.memory[1], 5, ncclUint8, 0, pair.comm[1], pair.stream[1]) == ncclSuccess);
  CHECK(pair.state(1) == ncclInProgress);
  CHECK(ncclCommAbort(pair.comm[0]) == ncclSuccess);
  pair.comm[0] = nullptr;
  CHECK(pair.state(1) == ncclRemoteError);
}

TEST_CASE("NCCL: error messages equal the messages of the library") {
  void* const library = dlopen(CUDA_EMULATOR_NCCL, RTLD_NOW | RTLD_LOCAL);
  if (!library) return;  // only the headers of NCCL are installed
  using Sentence = const char*(ncclResult_t);
  auto* const sentence = reinterpret_cast<Sentence*>(dlsym(library, "ncclGetErrorString"));
  REQUIRE(static_cast<bool>(sentence));
  for (int i = 0; i < ncclNumResults; ++i) {
    CAPTURE(i);
    const auto result = static_cast<ncclResult_t>(i);
    CHECK(std::strcmp(ncclGetErrorString(result), sentence(result)) == 0);
  }
  dlclose(library);
}
