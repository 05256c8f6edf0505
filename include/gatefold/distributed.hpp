#pragma once

// Training on several processes. Programs with one process do not need this header. Include gatefold.hpp before it.

// Each header comes after the headers that it includes itself. The script tests/structure/order.sh checks this order.
// clang-format off
#include "gatefold/distributed/gate_needs.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/distributed/memory.hpp"
#include "gatefold/distributed/all_reduce.hpp"
#include "gatefold/distributed/placement.hpp"
#include "gatefold/distributed/expect_same.hpp"
#include "gatefold/distributed/global_gate.hpp"
#include "gatefold/distributed/processes.hpp"
#include "gatefold/distributed/group.hpp"
#include "gatefold/distributed/hierarchical.hpp"
#include "gatefold/distributed/row_transfer.hpp"
#include "gatefold/distributed/sharded.hpp"
#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/move_experts.hpp"
#include "gatefold/distributed/rebalance.hpp"
#include "gatefold/distributed/replicate.hpp"
#include "gatefold/distributed/shards.hpp"
#include "gatefold/distributed/slot_exchange.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/sync_norm.hpp"
#include "gatefold/distributed/tensors_on_all_shards.hpp"
#include "gatefold/distributed/zero_optimizer.hpp"
// clang-format on
