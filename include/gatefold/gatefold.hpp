#pragma once

// The library with its CPU backend.

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/cpu/executor.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/loops.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/middle.hpp"
#include "gatefold/backend/cpu/outer.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/pair_schedule.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/philox_run.hpp"
#include "gatefold/backend/cpu/product.hpp"
#include "gatefold/backend/cpu/product_pair.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/row_lanes.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/weight_path.hpp"
#include "gatefold/backend/cpu/workers.hpp"
#include "gatefold/policies.hpp"
