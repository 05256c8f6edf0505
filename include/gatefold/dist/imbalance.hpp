#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/dist/placement.hpp"

namespace gatefold::dist {

/// The load of every shard.
///
///     L_j = Σ_{e on j} l_e                                                                              (1)
///
/// @param loads  [E], slots say
inline std::vector<Index> loads_of_shards(const std::vector<Index>& loads, const Placement& placement, Index shards) {
  expect(static_cast<Index>(loads.size()) == placement.experts(), "loads_of_shards", "loads",
         Joined{"those of ", placement.experts(), " experts"}, loads.size());
  std::vector<Index> of(static_cast<std::size_t>(shards));
  for (std::size_t e = 0; e < loads.size(); ++e) of[static_cast<std::size_t>(placement.shard_of[e])] += loads[e];
  return of;
}
/// How much more the busiest shard has than the mean: how much longer the experts of a step take than they must.
///
///     max_j L_j / (Σ_j L_j / C)                                                                         (2)
///
/// @return 1: even, C: one shard has all; 1 where there is no load
inline double imbalance(const std::vector<Index>& loads, const Placement& placement, Index shards) {
  const std::vector<Index> of = loads_of_shards(loads, placement, shards);
  const Index total = std::accumulate(of.begin(), of.end(), Index(0));
  if (total == 0) return 1;
  return static_cast<double>(*std::max_element(of.begin(), of.end())) * static_cast<double>(shards) /
         static_cast<double>(total);
}

}  // namespace gatefold::dist
