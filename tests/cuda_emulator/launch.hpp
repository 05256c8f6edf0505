// Runs the blocks of a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

struct Extent {
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t volume() const { return std::uint64_t{x} * y * z; }
};

/// One launch of a kernel. The runtime checks the limits of the device (threads per block, shared memory, grid).
struct Launch {
  Extent grid, block;
  std::size_t shared_bytes = 0;  // dynamic shared memory
  std::vector<char> parameters;  // laid out as Function::parameters say
  int device = 0;                // the device whose memory the kernel may access
};

/// How launches are executed. The initial values of three options come from the named environment variables.
struct Options {
  bool races = true;              // GATEFOLD_EMULATOR_RACES: look for data races
  std::uint64_t block_order = 0;  // GATEFOLD_EMULATOR_BLOCK_ORDER: 0 ascending, else the seed of a permutation
  std::uint64_t last_blocks = 0;  // only the last n blocks of each launch; 0: all
  std::int64_t longest_block = std::int64_t{1} << 28;  // instructions of its warps after which a block counts as stuck
  int compute_capability = 80;                         // GATEFOLD_EMULATOR_CC
  int devices = 1;                                     // number of equal devices; 0: as on a machine without a driver
};
Options& options();

/// Counts of the executed work.
struct Counters {
  std::uint64_t launches = 0, blocks = 0;
  std::uint64_t instructions = 0;  // by threads
  std::uint64_t global_bytes_loaded = 0, global_bytes_stored = 0;
};
Counters& counters();
std::map<std::string, Counters>& counters_by_kernel();  // by demangled name

/// Runs every block to its end.
///
/// Blocks run one after another. A block that seems to wait for a different block, because it executes nanosleep or
/// runs for long, is set aside until the others have run.
///
/// @throws Fault if the kernel makes an error
void launch(const Function& kernel, const Launch& launch);

}  // namespace gatefold::cuda_emulator
