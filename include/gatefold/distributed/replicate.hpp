#pragma once

#include <cstddef>
#include <vector>

#include "gatefold/distributed/expect_same.hpp"
#include "gatefold/distributed/hottest_first.hpp"
#include "gatefold/distributed/imbalance.hpp"
#include "gatefold/distributed/move_experts.hpp"
#include "gatefold/distributed/placement.hpp"
#include "gatefold/distributed/sharded.hpp"

/// Copies of experts on several shards, for inference.
namespace gatefold::dist {

/// Moves the experts of a model's parameters to given shards, for inference. An expert can be on several shards, which
/// then divide its work (DividedSlots). All shards must call it together. Results have the same bits as without copies,
/// because a result does not depend on the shard that computes it.
///
/// You can use the parameters in forward and infer. backward throws ArgumentError: the gradient of an expert is a sum
/// over all its items in fixed blocks, and an expert that is divided between shards cannot compute this sum. Saving a
/// checkpoint throws ArgumentError too.
/// @param params  the parameters of a model on shards, before they are frozen. They must not belong to a Trainer: make
///         a copy (zeros_like, copy_pack), or read a checkpoint
/// @param to  the new placement of each ExpertParallel, in the order of the parameters
/// @return the number of copies
/// @throws ArgumentError on all shards if placements do not fit or differ; DeviceError if another shard has failed. In
///         these cases, and after bad_alloc, the parameters are unchanged
/// @cost   rows that arrive are transferred once, in an exchange for each tensor; meanwhile this shard's experts are in
///         memory twice. Afterwards each forward has one more exchange, of E numbers for E experts
template <class ShardT, class C, class P>
Index replicate_experts(ShardT& shard, C& ctx, P& params, const std::vector<Placement>& to) {
  const auto here = ctx.here();
  const auto changes = moving::changes_of(shard, "replicate_experts", deals_of(params), to);
  moving::Move<ShardT, C> move(shard, ctx);
  move.bring(changes, params, moving::held(shard, changes, params));
  shard.barrier();  // returns when all shards have received their rows
  move.commit();
  Index copies = 0;
  for (const auto& change : changes) copies += static_cast<Index>(change.to->placement.copies.size());
  return copies;
}

/// The result of replicate: values for each ExpertParallel in the order of the parameters, and the number of copies.
struct Replicated {
  /// The imbalance (maximum / mean load of a shard) of `loads` with the old and the new placement.
  std::vector<double> before, after;
  Index copies = 0;  // number of copies of experts
};

/// Copies experts with a large load to further shards, for inference, so that the loads of the shards are as even as a
/// planner can make them (see replicate_experts).
///
///     auto params = zeros_like(ctx, trainer.params);
///     copy_pack(ctx, trainer.params, params);
///     const auto replicated = dist::replicate(shard, ctx, params, loads.of_all(shard));
///     infer(model, ctx, params, x, carry, y);                                 // the same bits
///
/// @param loads  the load of each expert of each ExpertParallel, the same on all shards, for example from
///         ExpertLoads.of_all
/// @param planner  an object whose place(loads [E], shards, now) returns a Placement (which shards hold which of the E
///         experts), the same on all shards
/// @return the imbalance of each ExpertParallel, and the number of copies
/// @throws the errors of replicate_experts; ArgumentError on all shards unless `loads` fit the experts of each
///         ExpertParallel, are at least 0, and are the same on all shards
template <class ShardT, class C, class P, class PlannerT = HottestFirst>
Replicated replicate(ShardT& shard, C& ctx, P& params, const std::vector<std::vector<Index>>& loads,
                     const PlannerT& planner = {}) {
  const auto deals = deals_of(params);
  expect_same(shard, "replicate", "loads", loads);
  expect(loads.size() == deals.size(), "replicate", "loads", Joined{"loads of ", deals.size(), " ExpertParallel"},
         loads.size());
  Replicated result;
  std::vector<Placement> next;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    for (const Index slots : loads[i]) expect(slots >= 0, "replicate", "loads", "at least 0 slots", slots);
    const Placement& now = deals[i]->placement;
    next.push_back(planner.place(loads[i], shard.count(), now).filled("replicate", now.experts(), shard.count()));
    result.before.push_back(imbalance(loads[i], now, shard.count()));
    result.after.push_back(imbalance(loads[i], next.back(), shard.count()));
  }
  result.copies = replicate_experts(shard, ctx, params, next);
  return result;
}

}  // namespace gatefold::dist
