#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gatefold/distributed/placement.hpp"
#include "gatefold/distributed/sharded.hpp"
#include "gatefold/layer/layer.hpp"

namespace gatefold::dist {

/// Counts the work of each expert over several training steps. The unit is a slot: one item that one expert computes.
///
///     dist::ExpertLoads loads;
///     trainer.step(x, target);
///     loads.add(shard, trainer);                    // after each step, or after some
///     const auto moved = dist::rebalance(shard, trainer, loads);
///
/// @cost   add: O(E) for each ExpertParallel with E experts, without transfers; of_all: an exchange of Σ E numbers
struct ExpertLoads {
  /// [branches][E] For each mixture and each of its E experts: the slots computed on this shard. They are 0 if the
  /// expert is on another shard.
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

}  // namespace gatefold::dist
