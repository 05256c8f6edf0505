#include "gatefold/distributed/imbalance.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

using namespace gatefold;
using dist::imbalance;
using dist::loads_of_shards;
using dist::Placement;
using Numbers = std::vector<Index>;

TEST_CASE("(1), (2): load of the busiest shard over the mean") {
  const Numbers loads{5, 1, 0, 2};
  CHECK(loads_of_shards(loads, {{0, 0, 1, 1}}, 2) == Numbers{6, 2});
  CHECK(imbalance(loads, {{0, 0, 1, 1}}, 2) == 1.5);  // 6 / 4
  CHECK(loads_of_shards(loads, {{2, 0, 2, 0}}, 3) == Numbers{3, 0, 5});
  CHECK(imbalance(loads, {{2, 0, 2, 0}}, 3) == 1.875);  // 5 / (8 / 3)
  CHECK(imbalance(loads, {{3, 3, 3, 3}}, 4) == 4);
  CHECK(imbalance({7, 7}, {{1, 0}}, 2) == 1);
  CHECK(imbalance({0, 0}, {{1, 1}}, 2) == 1);
}

TEST_CASE("(1), (2): experts with copies equal a loop over slots") {
  const Placement placement{{0, 0, 2, 1}, {{0, 1}, {0, 3}, {2, 0}}};
  const std::vector<Numbers> holders{{0, 1, 3}, {0}, {0, 2}, {1}};
  for (const Numbers& loads : {Numbers{7, 1, 5, 0}, Numbers{1, 0, 1, 3}, Numbers{0, 0, 0, 0}, Numbers{99, 2, 4, 6}}) {
    Numbers of(4);
    for (std::size_t e = 0; e < loads.size(); ++e) {
      const auto c = static_cast<Index>(holders[e].size());
      for (Index s = 0; s < loads[e]; ++s) {
        Index i = 0;
        while ((i + 1) * loads[e] / c <= s) ++i;  // the part that slot s belongs to
        ++of[static_cast<std::size_t>(holders[e][static_cast<std::size_t>(i)])];
      }
    }
    CHECK(loads_of_shards(loads, placement, 4) == of);
    Index most = 0, total = 0;
    for (const Index l : of) most = std::max(most, l), total += l;
    if (total > 0) CHECK(imbalance(loads, placement, 4) == static_cast<double>(most) * 4 / static_cast<double>(total));
  }
}

TEST_CASE("imbalance: throws for a wrong number of loads") {
  CHECK_THROWS_WITH_AS(imbalance({1, 2, 3}, {{0, 1}}, 2),
                       "loads_of_shards: loads: expected one load for each of 2 experts, got 3", ArgumentError);
}
