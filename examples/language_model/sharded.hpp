#pragma once

#include "options.hpp"

namespace language {

/// Trains on options.shards shards. The shards are threads of this process or, if MPI is built in and mpirun starts
/// several processes, of all of them.
/// @throws ArgumentError unless options.update is plain or heavy-ball. Also throws what train() throws
void train_on_shards(const Options& options);

}  // namespace language
