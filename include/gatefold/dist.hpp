#pragma once

// Training on several processes. Kept out of gatefold.hpp, which one process needs; include that first.

#include "gatefold/dist/all_reduce.hpp"
#include "gatefold/dist/data_parallel.hpp"
#include "gatefold/dist/expert_parallel.hpp"
#include "gatefold/dist/global_gate.hpp"
#include "gatefold/dist/group.hpp"
#include "gatefold/dist/loss_of_shards.hpp"
#include "gatefold/dist/norms.hpp"
#include "gatefold/dist/rows.hpp"
#include "gatefold/dist/same.hpp"
#include "gatefold/dist/sharded.hpp"
#include "gatefold/dist/shards.hpp"
#include "gatefold/dist/slot_exchange.hpp"
#include "gatefold/dist/wait.hpp"
#include "gatefold/dist/whole.hpp"
#include "gatefold/dist/world.hpp"
#include "gatefold/dist/zero.hpp"
