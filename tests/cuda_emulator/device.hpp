// The limits of the emulated device, by compute capability.
#pragma once

#include <cstddef>

#include "cuda_emulator/launch.hpp"

namespace gatefold::cuda_emulator {

struct Device {
  int major = 8, minor = 0;
  std::size_t shared_per_multiprocessor = 0;
  std::size_t shared_per_block = 48 * 1024;
  std::size_t shared_per_block_optin = 0;  // the most that cudaFuncSetAttribute may raise the limit to
  std::size_t shared_reserved_per_block = 1024;
  int threads_per_multiprocessor = 0;
  int blocks_per_multiprocessor = 0;
  int multiprocessors = 4;
  int threads_per_block = 1024;
  Extent block_limit{1024, 1024, 64};
  Extent grid_limit{2147483647, 65535, 65535};
  int registers = 65536;  // of a multiprocessor; also the largest number for a block
  // Each allocated byte is written once, with poison, so this also limits the run time of a test.
  std::size_t memory_bytes = std::size_t{4} << 30;
};

/// Returns the device with the compute capability in options().
///
/// @throws Fault if the table has no row for the compute capability
Device device();

/// The number of registers per thread that is reported for every kernel. PTX has no limit; ptxas decides.
inline constexpr int assumed_registers = 32;

}  // namespace gatefold::cuda_emulator
