#pragma once

// The main header: includes the library with its CPU backend.

// Each header comes after the headers that it includes itself. The script tests/structure/order.sh checks this order.
// clang-format off
#include "gatefold/policies.hpp"
#include "gatefold/backend/cpu/affinity.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/executor.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/integer_dot.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/philox_run.hpp"
#include "gatefold/backend/cpu/row_lanes.hpp"
#include "gatefold/backend/cpu/thread_pool.hpp"
#include "gatefold/backend/cpu/ticks.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/loops.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/schedule.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/few_rows.hpp"
#include "gatefold/backend/cpu/quantised_tile.hpp"
#include "gatefold/backend/cpu/quantised_format.hpp"
#include "gatefold/backend/cpu/tile_from_memory.hpp"
#include "gatefold/backend/cpu/weight_block.hpp"
#include "gatefold/backend/cpu/block_product.hpp"
#include "gatefold/backend/cpu/pair_schedule.hpp"
#include "gatefold/backend/cpu/pair_task.hpp"
#include "gatefold/backend/cpu/product_pair.hpp"
#include "gatefold/backend/cpu/product_schedule.hpp"
#include "gatefold/backend/cpu/product.hpp"
#include "gatefold/backend/cpu/outer.hpp"
#include "gatefold/backend/panels.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/context.hpp"
#include "gatefold/backend/cpu/primitives.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/cpu/kernels.hpp"
// clang-format on

#if defined(GATEFOLD_KERNELS)
#include "gatefold/kernels.hpp"
#endif
