#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"

/// How an expert's weights come to the register tile. Chosen once per expert (pair_schedule.hpp, product.hpp); no result
/// depends on it.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

enum class WeightPath {
  frozen,      // packed before the call
  in_place,    // read where they lie: few rows
  by_call,     // packed once, by all threads, before the tasks that share them
  by_expert,   // one task has the whole expert and packs its weights with the first block of rows
  by_task,     // packed by each task for itself, some panels at a time
  on_the_way,  // the same, a panel at a time while the tiles of the panel before compute
};
inline constexpr int weight_paths = 6;

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
