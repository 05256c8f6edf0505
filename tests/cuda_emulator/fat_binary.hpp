// The fat binaries that nvcc puts into an object file, the kernels and variables in them, and how host code calls the
// kernels.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <map>
#include <span>
#include <string_view>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// One PTX text of a fat binary, padded with zeros, and the compute capability it was compiled for (80: compute_80).
struct PtxText {
  std::string_view text;
  int compute_capability = 0;
};

/// Returns the newest text that a device can run. Of two equally new texts, returns the one that is only for the
/// architecture of the device (sm_90a). `data` begins with the header of a fat binary.
///
/// @returns no text if all texts are for newer devices
/// @throws Fault if this is not a fat binary, if its PTX is compressed, or if it contains only machine code
PtxText choose_ptx(const char* data, int compute_capability);

/// The cudaFuncAttributeMaxDynamicSharedMemorySize of a kernel, for each device.
class DynamicSharedLimit {
 public:
  int& operator[](int device) { return raised_.try_emplace(device, 48 * 1024).first->second; }

 private:
  std::map<int, int> raised_;
};

/// A kernel in the runtime.
struct Kernel {
  const Function* function = nullptr;
  int compute_capability = 0;  // the one that its PTX was compiled for
  DynamicSharedLimit dynamic_shared_limit = {};
};

/// Finds the kernel whose host stub has the address `host`.
///
/// @param kernel out unchanged if the kernel is not found
/// @returns cudaErrorInvalidDeviceFunction or cudaErrorNoKernelImageForDevice if the kernel is not found
/// @throws Fault if the PTX of the kernel cannot be read
cudaError_t find_kernel(const void* host, Kernel*& kernel);

/// Finds the device memory of a `__device__` or `__constant__` variable of the host program.
///
/// @param memory out unchanged if it is not found
cudaError_t find_variable(const void* host, std::span<char>& memory);

}  // namespace gatefold::cuda_emulator
