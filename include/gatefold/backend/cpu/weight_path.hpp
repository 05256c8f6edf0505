#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"

/// How the right operand of a product, an expert's weights, comes to the register tile. Chosen once per expert
/// (ProductSchedule, PairSchedule); no result depends on it.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

enum class WeightPath {
  prepacked,    // packed before the call
  rank_update,  // read where it lies: few terms of a sum, c is read and written row by row
  by_call,      // packed once, by all threads, before the tasks that share it
  by_task,      // by each task for itself: read where it lies, and packed for what else needs it
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
