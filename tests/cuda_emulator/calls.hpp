// Functions of the stand-in runtime for tests: count calls, let calls fail, and list objects that are still alive.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gatefold::cuda_emulator {

/// The numbers of runtime and cuBLAS calls since the beginning of the test case, by the name in their documentation. A
/// kernel launch counts as `cudaLaunchKernel`, in both of its forms. A graph counts only as `cudaGraphLaunch`, without
/// the operations in it.
struct Calls {
  std::map<std::string, std::uint64_t> by_name;

  std::uint64_t operator[](const std::string& name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? 0 : found->second;
  }
};
Calls& calls();

/// Lets the nth call of this name from now fail; n counts from 0. The call does nothing and returns `error` (a cuBLAS
/// call the closest status). With `fail("cudaMalloc", 2, cudaErrorMemoryAllocation)`, two allocations succeed first.
void fail(const std::string& name, long nth, cudaError_t error);

/// Returns a sentence for each failure that a test has set, but that has not happened because the call was not made.
std::vector<std::string> pending_failures();

/// Returns the number of streams, events, graphs, cuBLAS handles, NCCL communicators and pinned allocations that have
/// not been destroyed.
std::size_t live_handles();

/// Prepares a new test case: forgets the counted calls, the pending failures, the error of cudaGetLastError and all
/// captures, and makes device 0 current in this thread.
void reset_runtime();

}  // namespace gatefold::cuda_emulator
