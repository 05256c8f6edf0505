// What tests may ask of the stand-in runtime: how often was it called, what if a call fails, what was left alive.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gatefold::cuda_emulator {

/// The runtime and cuBLAS calls since the beginning of the test case, by the name in their documentation. A kernel
/// launch counts as `cudaLaunchKernel` in either of its forms, what a graph replays as `cudaGraphLaunch` alone.
struct Calls {
  std::map<std::string, std::uint64_t> by_name;

  std::uint64_t operator[](const std::string& name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? 0 : found->second;
  }
};
Calls& calls();

/// The nth call of this name from now, counted from 0, does nothing and returns `error`; a cuBLAS call returns the
/// status that comes closest. `fail("cudaMalloc", 2, cudaErrorMemoryAllocation)` lets two allocations pass.
void fail(const std::string& name, long nth, cudaError_t error);

/// The failures that were asked for and whose call never came, one sentence each.
std::vector<std::string> pending_failures();

/// Streams, events, graphs, cuBLAS handles, NCCL communicators and pinned allocations that have not been destroyed.
std::size_t live_handles();

/// A new test case: no calls, no failures to come, no error waiting in cudaGetLastError, no capture going on,
/// device 0 current in this thread.
void reset_runtime();

}  // namespace gatefold::cuda_emulator
