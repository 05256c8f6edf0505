#pragma once

#include "options.hpp"

namespace language {

/// Trains on options.shards shards. The shards are threads of this process. If MPI is built in and mpirun starts
/// several processes, the shards are threads of all these processes.
/// @throws ArgumentError unless options.update is plain or heavy-ball and options.backend is cpu. Also throws what
///   train() throws
void train_on_shards(const Options& options);

}  // namespace language
