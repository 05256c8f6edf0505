// What nvcc leaves in an object file: fat binaries, the kernels and variables that they define, and how host code calls
// them.
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

/// The text for a device: the newest it can run, and of two such the one for its architecture alone (sm_90a). The data
/// of a fat binary begins with its header.
///
/// @returns no text where all of it is for newer devices
/// @throws Fault where this is no fat binary, where its PTX is compressed and where it holds machine code alone
PtxText choose_ptx(const char* data, int compute_capability);

/// cudaFuncAttributeMaxDynamicSharedMemorySize of a kernel, on each device.
class DynamicSharedLimit {
 public:
  int& operator[](int device) { return raised_.try_emplace(device, 48 * 1024).first->second; }

 private:
  std::map<int, int> raised_;
};

/// A kernel as the runtime knows it.
struct Kernel {
  const Function* function = nullptr;
  int compute_capability = 0;  // that its PTX was compiled for
  DynamicSharedLimit dynamic_shared_limit = {};
};

/// The kernel whose host stub stands at this address.
///
/// @param kernel out unchanged unless found
/// @returns cudaErrorInvalidDeviceFunction or cudaErrorNoKernelImageForDevice where it is not found
/// @throws Fault where its PTX cannot be read
cudaError_t find_kernel(const void* host, Kernel*& kernel);

/// The device memory behind a `__device__` or `__constant__` variable of the host program.
///
/// @param memory out unchanged unless found
cudaError_t find_variable(const void* host, std::span<char>& memory);

}  // namespace gatefold::cuda_emulator
