#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "gatefold/distributed/imbalance.hpp"
#include "gatefold/distributed/placement.hpp"

namespace gatefold::dist {

/// A planner that chooses the shard of each expert so that the busiest shard has little more than the mean load.
/// Experts are placed by decreasing load, each on the shard with the smallest load.
///
/// Source: Graham 1969, "Bounds on multiprocessing timing anomalies", longest processing time: at most 4/3 of the
/// optimum, if the number of experts per shard is not limited. An expert is never divided: if an expert has more than
/// the mean load, its shard also has more.
/// @order  among experts with equal loads, the lower one first; among shards with equal loads, the one with fewer
///         experts first, then the lower one. The resulting parts are then assigned to shards: first the pair of part
///         and shard that has the most experts in common, then the lower part, then the lower shard
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
    Placement next = parts(loads, shards, most > 0 ? most : least);
    const double after = imbalance(loads, next, shards);
    if (!(after < before && after <= before * (1 - gain))) return now;
    name_parts(next, shards, now);
    return next;
  }

 private:
  static Placement parts(const std::vector<Index>& loads, Index shards, Index room) {
    std::vector<std::size_t> order(loads.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return loads[a] != loads[b] ? loads[a] > loads[b] : a < b; });
    struct Part {
      Index load = 0, experts = 0;
    };
    std::vector<Part> all(static_cast<std::size_t>(shards));
    Placement placement{std::vector<Index>(loads.size())};
    for (const std::size_t e : order) {
      const auto best = std::min_element(all.begin(), all.end(), [&](const Part& a, const Part& b) {
        const bool full_a = a.experts == room, full_b = b.experts == room;
        return std::pair(full_a, std::pair(a.load, a.experts)) < std::pair(full_b, std::pair(b.load, b.experts));
      });
      best->load += loads[e];
      ++best->experts;
      placement.shard_of[e] = best - all.begin();
    }
    return placement;
  }
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
