#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/dist/group.hpp"
#include "gatefold/dist/placement.hpp"

namespace gatefold::dist {

/// The load of every shard.
///
///     L_j = Σ_{e on j} l_e,   of an expert on several shards a part that is as even as can be           (1)
///
/// @param loads  [E], slots say
inline std::vector<Index> loads_of_shards(const std::vector<Index>& loads, const Placement& placement, Index shards) {
  expect(static_cast<Index>(loads.size()) == placement.experts(), "loads_of_shards", "loads",
         Joined{"those of ", placement.experts(), " experts"}, loads.size());
  std::vector<Index> of(static_cast<std::size_t>(shards));
  for (std::size_t e = 0; e < loads.size(); ++e) {
    const std::vector<Index> on = placement.shards_of(static_cast<Index>(e));
    for (std::size_t i = 0; i < on.size(); ++i)
      of[static_cast<std::size_t>(on[i])] +=
          Range::of(loads[e], static_cast<Index>(i), static_cast<Index>(on.size())).count;
  }
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
