#pragma once

#include <algorithm>
#include <cstdio>
#include <exception>
#include <gatefold/dist.hpp>
#include <thread>
#if defined(GATEFOLD_EXAMPLES_MPI)
#include <gatefold/mpi.hpp>
#endif

namespace training {

#if defined(GATEFOLD_EXAMPLES_MPI)
using World = gatefold::dist::Mpi;
#else
using World = gatefold::dist::Alone;
#endif

/// The threads of a shard: its part of those of a process (0: of the processors).
template <class ShardT>
int threads_of_shard(const ShardT& shard, int threads) {
  const int all = threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::max(1, all / static_cast<int>(shard.in_this_process()));
}

/// program(shard) on every shard: threads of this process and, where MPI is built in and mpirun starts several, of all
/// of them.
template <class F>
void in_world(const char* name, gatefold::Index shards, const F& program,
              const gatefold::dist::RunOptions& options = {}) {
  World world;
  try {
    gatefold::dist::run(world, shards, program, options);
  } catch (const std::exception& error) {
    // While the world lives: a launcher ends the others when one has.
    if (world.size() > 1) std::fprintf(stderr, "%s: rank %d: %s\n", name, world.rank(), error.what());
    throw;
  }
}

}  // namespace training
