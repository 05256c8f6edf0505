#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gatefold/distributed/group.hpp"
#include "gatefold/distributed/rebalance.hpp"

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
/// @throws ArgumentError on all shards if `to` does not match the model and the shards, or differs between shards;
///         Error if another shard has failed. In these cases, and after bad_alloc, the parameters are unchanged
/// @cost   rows that arrive are transferred once, in an exchange for each tensor. During the call, this shard's experts
///         are in memory twice. Afterwards, each forward of an ExpertParallel with copies has one more exchange, of one
///         number for each expert
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

struct HottestFirst;

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
/// @throws the errors of replicate_experts; ArgumentError on all shards unless `loads` has one load for each expert of
///         each ExpertParallel, and all loads are at least 0 and the same on all shards
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

/// A planner that copies experts with a large load and chooses the shards of all experts, so that the busiest shard has
/// little more than the mean load. A place is room for one expert on a shard. The planner repeatedly adds a copy of the
/// expert with the largest load per place. It then places experts by decreasing load per place, each on the shard with
/// the smallest load.
///
///     C (⌈E/C⌉ + extra) places;   the next copy for argmax_e l_e/c_e, until all places are taken        (1)
///
/// Source: DeepSeek's expert parallelism load balancer, github.com/deepseek-ai/EPLB, its global policy: replicate, then
/// pack. In (1), C is the number of shards, E the number of experts, l_e the load of expert e, and c_e the number of
/// shards that hold it. Here no shard has an expert twice; a copy is left out if no other shard has room. Experts
/// without load get no copy. Even with extra = 0, a shard with fewer than ⌈E/C⌉ experts has room for copies.
/// @order  among experts with equal loads per place, the lower one first; among shards with equal loads, the one with
///         fewer experts first, then the lower one
struct HottestFirst {
  Index extra = 1;  // room on each shard for this number of additional experts (copies)

  /// Returns a placement (which shards hold which expert) with copies.
  /// @param loads  [E] the load of each of the E experts, for example its number of slots (items that it computes)
  /// @param now  the present placement. An expert's entry of `shard_of` is kept if that shard still holds the expert
  /// @throws ArgumentError unless extra is at least 0 and `loads` has one entry per expert
  /// @cost   O(E·C·(extra + 1)) to choose copies on C shards; O(places · C · copies of one expert) to place them
  Placement place(const std::vector<Index>& loads, Index shards, const Placement& now) const {
    const Index experts = now.experts(), room = divide_up(experts, shards) + extra;
    expect(extra >= 0, "HottestFirst", "extra", "at least 0", extra);
    expect(static_cast<Index>(loads.size()) == experts, "HottestFirst", "loads",
           Joined{"one load for each of ", experts, " experts"}, loads.size());
    const auto shards_of = planning::packed(loads, places_of(loads, shards, shards * room - experts), shards, room);
    Placement next{std::vector<Index>(loads.size()), {}};
    for (std::size_t e = 0; e < loads.size(); ++e) {
      const auto& on = shards_of[e];
      const bool stays = std::find(on.begin(), on.end(), now.shard_of[e]) != on.end();
      next.shard_of[e] = stays ? now.shard_of[e] : on.front();
      for (const Index j : on)
        if (j != next.shard_of[e]) next.copies.push_back({static_cast<Index>(e), j});
    }
    return next;
  }

 private:
  /// Returns for each expert the number of shards that will hold it. `free` is the number of places that remain after
  /// the first shard of each expert.
  static std::vector<Index> places_of(const std::vector<Index>& loads, Index shards, Index free) {
    std::vector<Index> places(loads.size(), 1);
    for (; free > 0; --free) {
      std::size_t hottest = loads.size();
      for (std::size_t e = 0; e < loads.size(); ++e)
        if (loads[e] > 0 && places[e] < shards &&
            (hottest == loads.size() || loads[e] * places[hottest] > loads[hottest] * places[e]))
          hottest = e;
      if (hottest == loads.size()) break;  // each expert is on all shards or has no load
      ++places[hottest];
    }
    return places;
  }
};

}  // namespace gatefold::dist
