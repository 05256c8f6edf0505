#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "gatefold/distributed/group.hpp"
#include "gatefold/distributed/placement.hpp"

namespace gatefold::dist {

/// Returns the load of every shard: the sum of the loads of its experts.
///
///     L_j = Σ_{e on j} l_e;   the load of an expert on several shards is divided as evenly as possible  (1)
///
/// @param loads  [E] the load l_e of each of the E experts, for example its number of slots (items that it computes)
inline std::vector<Index> loads_of_shards(const std::vector<Index>& loads, const Placement& placement, Index shards) {
  expect(static_cast<Index>(loads.size()) == placement.experts(), "loads_of_shards", "loads",
         Joined{"one load for each of ", placement.experts(), " experts"}, loads.size());
  std::vector<Index> of(static_cast<std::size_t>(shards));
  for (std::size_t e = 0; e < loads.size(); ++e) {
    const std::vector<Index> on = placement.shards_of(static_cast<Index>(e));
    for (std::size_t i = 0; i < on.size(); ++i)
      of[static_cast<std::size_t>(on[i])] +=
          Range::of(loads[e], static_cast<Index>(i), static_cast<Index>(on.size())).count;
  }
  return of;
}
/// Returns the load of the busiest shard divided by the mean load of a shard. This is the factor by which the experts
/// of a step take longer than with an even load.
///
///     max_j L_j / (Σ_j L_j / C),   L_j: load of shard j, C: number of shards                            (2)
///
/// @return 1 if the loads of the shards are equal, C if one shard has all load; also 1 if there is no load
inline double imbalance(const std::vector<Index>& loads, const Placement& placement, Index shards) {
  const std::vector<Index> of = loads_of_shards(loads, placement, shards);
  const Index total = std::accumulate(of.begin(), of.end(), Index(0));
  if (total == 0) return 1;
  return static_cast<double>(*std::max_element(of.begin(), of.end())) * static_cast<double>(shards) /
         static_cast<double>(total);
}

}  // namespace gatefold::dist
