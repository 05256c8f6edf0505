#pragma once

#include "options.hpp"

namespace language {

/// Train on options.shards shards: threads of this process or, where MPI is built in and mpirun starts several, of all
/// of them.
/// @throws ArgumentError unless the update is plain or heavy-ball, and as train
void train_on_shards(const Options& options);

}  // namespace language
