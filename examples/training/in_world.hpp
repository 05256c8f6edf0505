#pragma once

#include <algorithm>
#include <cstdio>
#include <exception>
#include <gatefold/distributed.hpp>
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

/// Returns the number of threads of a shard. The shards of a process share its threads evenly.
/// @param threads  number of threads of a process; 0 means as many as it has processors
template <class ShardT>
int threads_of_shard(const ShardT& shard, int threads) {
  const int all = threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::max(1, all / static_cast<int>(shard.in_this_process()));
}

/// Runs program(shard) on every shard. The shards are threads of this process. If MPI is built in and mpirun starts
/// several processes, the shards are threads of all these processes.
template <class F>
void in_world(const char* name, gatefold::Index shards, const F& program,
              const gatefold::dist::RunOptions& options = {}) {
  World world;
  try {
    gatefold::dist::run(world, shards, program, options);
  } catch (const std::exception& error) {
    // The error is printed here, before the destructor of World waits for the other processes. After this wait, all
    // processes end at about the same time, and a launcher ends all processes as soon as one has ended. A process could
    // then be ended before it prints its error.
    if (world.size() > 1) std::fprintf(stderr, "%s: rank %d: %s\n", name, world.rank(), error.what());
    throw;
  }
}

}  // namespace training
