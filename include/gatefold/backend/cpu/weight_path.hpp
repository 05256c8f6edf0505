#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"

/// The way in which the weights of an expert, the right factor of a matrix product, reach the innermost loop. It is
/// chosen once for each expert (ProductSchedule, PairSchedule). Results do not depend on it.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

enum class WeightPath {
  prepacked,    // the weights were packed before the call
  rank_update,  // the function rank_update, for sums with few terms, reads the weights in place
  by_call,      // all threads pack the weights once, before the tasks that share them
  by_task,      // each task reads the weights in place, or packs them for its own use
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
