#pragma once

#include <cstddef>
#include <vector>

#include "gatefold/distributed/expert_loads.hpp"
#include "gatefold/distributed/imbalance.hpp"
#include "gatefold/distributed/longest_first.hpp"
#include "gatefold/distributed/move_experts.hpp"
#include "gatefold/distributed/placement.hpp"

namespace gatefold::dist {

/// The result of rebalance: the imbalance of each ExpertParallel of a model before and after, and how many experts
/// moved.
struct Rebalanced {
  /// The imbalance (maximum / mean load of a shard) of the measured loads with the old and the new placement.
  std::vector<double> before, after;
  Index moved = 0;  // number of experts that have moved to another shard
};

/// Moves the experts of a run between shards so that the measured loads of the shards are as even as a planner can make
/// them, and clears `loads`. All shards must call it together, between two steps. It changes no bit of the run (see
/// move_experts).
///
///     before, after = max_j L_j / (Σ_j L_j / C) of the measured loads L_j of C shards                   (1)
///
/// @param planner  an object whose place(loads [E], shards, now) returns a Placement (which shard holds which of the E
///         experts), the same on all shards; a Placement without entries is even
/// @return the imbalance (1) of each ExpertParallel, and the number of experts that have moved
/// @throws the errors of move_experts; ArgumentError if no loads were measured. No expert has moved then
/// @cost   an exchange of Σ E numbers, and move_experts
template <class ShardT, class R, class PlannerT = LongestFirst>
Rebalanced rebalance(ShardT& shard, R& run, ExpertLoads& loads, const PlannerT& planner = {}) {
  const std::vector<Placement> now = placements(run);
  expect(loads.slots.size() == now.size(), "rebalance", "loads",
         Joined{"loads of ", now.size(), " ExpertParallel (call ExpertLoads.add after each step)"}, loads.slots.size());
  const std::vector<std::vector<Index>> of_all = loads.of_all(shard);
  Rebalanced result;
  std::vector<Placement> next;
  for (std::size_t i = 0; i < now.size(); ++i) {
    next.push_back(
        planner.place(of_all[i], shard.count(), now[i]).filled("rebalance", now[i].experts(), shard.count()));
    result.before.push_back(imbalance(of_all[i], now[i], shard.count()));
    result.after.push_back(imbalance(of_all[i], next.back(), shard.count()));
  }
  result.moved = move_experts(shard, run, next);
  loads.clear();
  return result;
}

}  // namespace gatefold::dist
