#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"

/// How the right operand of a product, an expert's weights, comes to the register tile. Chosen once per expert
/// (ProductSchedule, PairSchedule); no result depends on it.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

enum class WeightPath {
  prepacked,    // packed before the call
  in_place,     // read where it lies: few rows
  rank_update,  // read where it lies: few terms of a sum, c is read and written row by row
  by_call,      // packed once, by all threads, before the tasks that share it
  by_task,      // packed by each task for itself, a block at a time, transposed weights a panel
  on_the_way,   // the same, a panel at a time while the tiles of the panel before compute
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
