#pragma once

#include <doctest/doctest.h>

#include <algorithm>

#include "gatefold/gatefold.cuh"
#ifdef CUDA_EMULATOR
#include "cuda_emulator/launch.hpp"
#endif

/// The devices of tests of shards.
namespace gatefold::test {

/// How many devices there are, two at most: an emulator has as many from the first call on, as CUB counts them once.
inline int devices() {
#ifdef CUDA_EMULATOR
  cuda_emulator::options().devices = 2;
#endif
  int there = 0;
  REQUIRE(cudaGetDeviceCount(&there) == cudaSuccess);
  return std::min(there, 2);
}
/// The device of a shard, current in its thread.
struct OnDeviceOf {
  int devices;
  void operator()(Index shard) const {
    if (cudaSetDevice(static_cast<int>(shard) % devices) != cudaSuccess) throw DeviceError("no such device");
  }
};

/// A pack of a table.
struct TablePack {
  Table<double, Cuda> table;
  GATEFOLD_PACK(table)
};

}  // namespace gatefold::test
