#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"

/// The way in which the right operand of a product, an expert's weights, reaches the register tile. It is chosen once
/// for each expert (ProductSchedule, PairSchedule). Results do not depend on it.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

enum class WeightPath {
  prepacked,    // packed before the call
  rank_update,  // read in place: sums have few terms, and c is read and written row by row
  by_call,      // packed once, by all threads, before the tasks that share it
  by_task,      // read in place, or packed by each task for its own use
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
