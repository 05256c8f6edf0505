#pragma once

#include <doctest/doctest.h>

#include <algorithm>

#include "gatefold/gatefold.cuh"
#ifdef CUDA_EMULATOR
#include "cuda_emulator/launch.hpp"
#endif

/// The devices for tests of shards.
namespace gatefold::test {

/// Returns the number of devices, at most two. The first call sets the CUDA emulator to two devices. The number does
/// not change later, because CUB counts the devices only once.
inline int devices() {
#ifdef CUDA_EMULATOR
  cuda_emulator::options().devices = 2;
#endif
  int there = 0;
  REQUIRE(cudaGetDeviceCount(&there) == cudaSuccess);
  return std::min(there, 2);
}
/// Makes the device of a shard current in its thread.
struct OnDeviceOf {
  int devices;
  void operator()(Index shard) const {
    if (cudaSetDevice(static_cast<int>(shard) % devices) != cudaSuccess) throw DeviceError("no such device");
  }
};

/// A pack that contains a table.
struct TablePack {
  Table<double, Cuda> table;
  GATEFOLD_PACK(table)
};

}  // namespace gatefold::test
