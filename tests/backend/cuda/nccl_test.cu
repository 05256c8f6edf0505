#include "gatefold/backend/cuda/nccl.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/gatefold.cuh"
#include "gatefold/nccl.cuh"
#include "support/processes.hpp"
#ifdef CUDA_EMULATOR
#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#endif

using namespace gatefold;
using support::Processes;

namespace {

/// Returns whether there are two devices, because NCCL needs one for each rank.
bool two_devices() {
#ifdef CUDA_EMULATOR
  cuda_emulator::options().devices = 2;
#endif
  int there = 0;
  REQUIRE(cudaGetDeviceCount(&there) == cudaSuccess);
  return there >= 2;
}
void use(int device) {
  if (cudaSetDevice(device) != cudaSuccess) throw DeviceError("no such device");
}

/// Returns the sum over three shards of values on the device of each process.
template <class W>
std::vector<double> sum_on(W& world, int device) {
  constexpr Index shards = 3, n = 7;
  std::vector<double> found(n);
  dist::run(world, shards, [&](auto& shard) {
    use(device);
    Cuda::Context ctx;
    std::vector<double> mine;
    for (Index i = 0; i < n; ++i) mine.push_back(1.0 / static_cast<double>(3 + 7 * shard.index() + i));
    Tensor<double, 1, Cuda> values(n);
    Cuda::from_host(ctx, n, mine.data(), values.data());
    shard.sum(ctx, values.data(), n);
    if (shard.index() == world.rank())  // the first shard of this process
      Cuda::to_host(ctx, n, static_cast<const double*>(values.data()), found.data());
  });
  return found;
}
/// Returns the sum over the three shards, computed on the host. One process gives the same sum.
std::vector<double> expected_sum() {
  std::vector<double> sum;
  for (int i = 0; i < 7; ++i) sum.push_back(1.0 / (3 + i) + 1.0 / (10 + i) + 1.0 / (17 + i));  // (0 + 1) + 2
  return sum;
}

}  // namespace

TEST_CASE("nccl: sums over two processes have the bits of one") {
  Processes alone(1);
  Processes::World one{&alone, 0};
  dist::Nccl without(one);  // a single rank needs no NCCL
  CHECK(sum_on(without, 0) == expected_sum());
  if (!two_devices()) return;
  Processes all(2);
  std::vector<double> found[2];
  all.run([&](auto& inner) {
    use(inner.rank());
    dist::Nccl world(inner);
    found[inner.rank()] = sum_on(world, inner.rank());
  });
  CHECK(found[0] == expected_sum());
  CHECK(found[1] == expected_sum());
#ifdef CUDA_EMULATOR
  CHECK(cuda_emulator::calls()["ncclSend"] > 0);
  CHECK(cuda_emulator::calls()["ncclSend"] == cuda_emulator::calls()["ncclRecv"]);
#endif
}

#ifdef CUDA_EMULATOR
namespace {

/// Returns what each of two ranks throws.
std::vector<std::string> failures(const auto& program) {
  REQUIRE(two_devices());
  Processes all(2);
  std::vector<std::string> found(2);
  all.run([&](auto& inner) {
    try {
      use(inner.rank());
      dist::Nccl world(inner, {.timeout = 1});
      program(world);
    } catch (const Error& error) {
      found[static_cast<std::size_t>(inner.rank())] = error.what();
    }
  });
  return found;
}
bool has(const std::vector<std::string>& all, const std::string& sentence) {
  return std::find(all.begin(), all.end(), sentence) != all.end();
}

}  // namespace

TEST_CASE("nccl: a failed call throws NCCL's message on both ranks") {
  for (const std::string call :
       {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclSend", "ncclGroupEnd", "ncclCommGetAsyncError"}) {
    CAPTURE(call);
    cuda_emulator::fail(call, 0, cudaErrorECCUncorrectable);
    const auto found = failures([](auto& world) { sum_on(world, world.rank()); });
    CHECK(has(found, call +
                         ": unhandled cuda error (run with NCCL_DEBUG=INFO for details): Cuda failure 'uncorrectable "
                         "ECC error encountered'"));
    CHECK(!has(found, ""));
  }
}

TEST_CASE("nccl: throws if a shard uses another device") {
  const auto found = failures([](auto& world) { sum_on(world, 0); });
  CHECK(has(found,
            "Nccl.exchange: bytes: expected memory of device 1, on which the Nccl world was created, got memory of "
            "device 0"));
}
#endif
