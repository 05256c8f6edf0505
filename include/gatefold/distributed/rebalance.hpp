#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/distributed/move_experts.hpp"
#include "gatefold/layer/layer.hpp"

namespace gatefold::dist {

/// Counts the work of each expert over several training steps. The unit is a slot: one item that one expert computes.
///
///     dist::ExpertLoads loads;
///     trainer.step(x, target);
///     loads.add(shard, trainer);                    // after each step, or after some of the steps
///     const auto moved = dist::rebalance(shard, trainer, loads);
///
/// @cost   add: O(E) for each ExpertParallel with E experts, without transfers; of_all: one Shard::sum of E numbers for
///         each ExpertParallel
struct ExpertLoads {
  /// [mixtures][E] The number of slots that this shard has computed for each of the E experts of each mixture. The
  /// number is 0 if the expert is on another shard.
  std::vector<std::vector<Index>> slots{};

  /// Adds the slots of the last forward pass to the counts. A second call for the same forward pass adds 0, and so does
  /// a batch without items. Layers inside a Recompute are not counted, because a Recompute keeps no routing plan.
  /// @param run  a Trainer, or another object with the `params` of a model and the `saved` of a forward pass
  template <class ShardT, class R>
  void add(const ShardT& shard, const R& run) {
    const auto deals = deals_of(run.params);
    slots.resize(deals.size());
    counted.resize(deals.size());
    for (std::size_t i = 0; i < deals.size(); ++i)
      slots[i].resize(static_cast<std::size_t>(deals[i]->placement.experts()));
    for_each_mixture(run.saved, [&](const auto& saved) {
      if constexpr (requires { saved.slots.counts(); }) {
        const auto of = std::find(deals.begin(), deals.end(), saved.deal);
        if (of == deals.end()) return;  // no forward pass yet, or no forward pass since experts moved
        const auto branch = static_cast<std::size_t>(of - deals.begin());
        const Pass pass{&saved, saved.passes};
        if (std::exchange(counted[branch], pass) == pass) return;
        auto& counts = slots[branch];
        std::size_t here = 0;
        for (const Index e : saved.deal->placement.experts_of(shard.index()))
          counts[static_cast<std::size_t>(e)] += saved.slots.counts()[here++];
      }
    });
  }
  /// Returns the counts of all shards together: the sums of `slots` over the shards. All shards must call it together,
  /// and all get the same result.
  std::vector<std::vector<Index>> of_all(auto& shard) const {
    std::vector<std::vector<Index>> all = slots;
    for (auto& counts : all) shard.sum(counts.data(), static_cast<Index>(counts.size()));
    return all;
  }
  void clear() { slots.clear(); }

 private:
  using Pass = std::pair<const void*, Index>;
  std::vector<Pass> counted{};  // for each mixture, the last forward pass that was counted
};

struct LongestFirst;

/// The result of rebalance: the imbalance of each ExpertParallel of a model before and after, and how many experts
/// moved.
struct Rebalanced {
  /// The imbalance (maximum / mean load of a shard) of the measured loads with the old and the new placement.
  std::vector<double> before, after;
  Index moved = 0;  // number of experts that have moved to another shard
};

/// Moves the experts of a run between shards so that the measured loads of the shards are as even as a planner can make
/// them, and clears `loads`. All shards must call `rebalance` together, between two steps. The move changes no bit of
/// the results of the run (see move_experts).
///
///     before, after = max_j L_j / (Σ_j L_j / C) of the measured loads L_j of C shards                   (1)
///
/// @param planner  an object whose place(loads [E], shards, now) returns a Placement (which shard holds which of the E
///         experts), the same on all shards. A Placement without entries means an even division of the experts
/// @return the imbalance (1) of each ExpertParallel, and the number of experts that have moved
/// @throws the errors of move_experts; ArgumentError if no loads were measured, in which case no expert moves
/// @cost   one Shard::sum of E numbers for each ExpertParallel of the model, and the cost of move_experts
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

namespace planning {

/// Assigns experts to shards, in the order of decreasing loads[e] / places[e], the load per place. A place is room for
/// one expert on a shard. Each expert goes to the shards with room that have the smallest load so far. Returns for each
/// expert the numbers of its shards, ascending.
/// @param places  [E] number of shards for each of the E experts; an expert gets fewer shards if the other shards have
///         no room
/// @param room    largest number of experts on a shard
inline std::vector<std::vector<Index>> packed(const std::vector<Index>& loads, const std::vector<Index>& places,
                                              Index shards, Index room) {
  std::vector<std::size_t> order(loads.size());
  std::iota(order.begin(), order.end(), std::size_t(0));
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Index of_a = loads[a] * places[b], of_b = loads[b] * places[a];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  std::vector<Index> load(static_cast<std::size_t>(shards)), experts = load;
  std::vector<std::vector<Index>> shards_of(loads.size());
  for (const std::size_t e : order) {
    auto& on = shards_of[e];
    for (Index i = 0; i < places[e]; ++i) {
      const auto cost = [&](Index j) {
        const auto at = static_cast<std::size_t>(j);
        const bool has_it = std::find(on.begin(), on.end(), j) != on.end();
        return std::tuple(has_it || experts[at] == room, load[at], experts[at], j);
      };
      auto best = cost(0);
      for (Index j = 1; j < shards; ++j) best = std::min(best, cost(j));
      if (std::get<0>(best)) break;
      const auto at = static_cast<std::size_t>(std::get<3>(best));
      on.push_back(std::get<3>(best));
      load[at] += Range::of(loads[e], i, places[e]).count;
      ++experts[at];
    }
    std::sort(on.begin(), on.end());
  }
  return shards_of;
}

}  // namespace planning

/// A planner that chooses the shard of each expert so that the busiest shard has little more than the mean load.
/// Experts are placed by decreasing load, each on the shard with the smallest load.
///
/// Source: Graham 1969, "Bounds on multiprocessing timing anomalies", longest processing time: at most 4/3 of the
/// optimum, if the number of experts per shard is not limited. An expert is never divided: if an expert has more than
/// the mean load, its shard also has more.
/// @order  among experts with equal loads, the lower one first; among shards with equal loads, the one with fewer
///         experts first, then the lower one. The resulting sets of experts (parts) are then assigned to shards: first
///         the pair of a part and a shard that has the most experts in common; among equal pairs, first the lower part,
///         then the lower shard
struct LongestFirst {
  Index most = 0;      // largest number of experts on a shard; 0 means ⌈experts/shards⌉
  double gain = 0.05;  // experts move only if the imbalance (maximum / mean load) falls by at least this fraction

  /// Returns the new placement (which shard holds which expert), or `now` if the gain is too small.
  /// @param loads  [E] the load of each of the E experts, for example its number of slots (items that it computes)
  /// @param now  the present placement
  /// @throws ArgumentError unless most is 0 or enough for all experts, gain is at least 0, and `loads` has one entry
  ///         per expert
  /// @cost   O(E (C + log E)) for E experts and C shards
  Placement place(const std::vector<Index>& loads, Index shards, const Placement& now) const {
    const Index experts = now.experts(), least = divide_up(experts, shards);
    expect(most == 0 || most >= least, "LongestFirst", "most",
           Joined{"0 or at least ", least, " (", experts, " experts on ", shards, " shards)"}, most);
    expect(gain >= 0, "LongestFirst", "gain", "at least 0", gain);
    const double before = imbalance(loads, now, shards);
    const std::vector<Index> ones(loads.size(), 1);
    Placement next;
    for (const auto& on : planning::packed(loads, ones, shards, most > 0 ? most : least))
      next.shard_of.push_back(on.front());
    const double after = imbalance(loads, next, shards);
    if (!(after < before && after <= before * (1 - gain))) return now;
    name_parts(next, shards, now);
    return next;
  }

 private:
  /// Assigns the planned parts (sets of experts) to shards so that few experts move. The loads of the parts stay the
  /// same.
  static void name_parts(Placement& parts, Index shards, const Placement& now) {
    std::map<std::pair<Index, Index>, Index> common;  // (part, shard) → number of experts in common
    for (std::size_t e = 0; e < parts.shard_of.size(); ++e) ++common[{parts.shard_of[e], now.shard_of[e]}];
    std::vector<std::pair<std::pair<Index, Index>, Index>> pairs(common.begin(), common.end());
    std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
    std::vector<Index> shard_of_part(static_cast<std::size_t>(shards), -1);
    std::vector<bool> taken(static_cast<std::size_t>(shards));
    const auto give = [&](Index part, Index shard) {
      Index& of = shard_of_part[static_cast<std::size_t>(part)];
      if (of >= 0 || taken[static_cast<std::size_t>(shard)]) return;
      of = shard;
      taken[static_cast<std::size_t>(shard)] = true;
    };
    for (const auto& pair : pairs) give(pair.first.first, pair.first.second);
    Index next = 0;  // sets of experts without a shard get the remaining shards
    for (Index part = 0; part < shards; ++part) {
      while (next < shards && taken[static_cast<std::size_t>(next)]) ++next;
      if (next < shards) give(part, next);
    }
    for (Index& j : parts.shard_of) j = shard_of_part[static_cast<std::size_t>(j)];
  }
};

}  // namespace gatefold::dist
