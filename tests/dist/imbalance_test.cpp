#include "gatefold/dist/imbalance.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace gatefold;
using dist::imbalance;
using dist::loads_of_shards;
using Numbers = std::vector<Index>;

TEST_CASE("(1), (2): the busiest shard over the mean") {
  const Numbers loads{5, 1, 0, 2};
  CHECK(loads_of_shards(loads, {{0, 0, 1, 1}}, 2) == Numbers{6, 2});
  CHECK(imbalance(loads, {{0, 0, 1, 1}}, 2) == 1.5);  // 6 / 4
  CHECK(loads_of_shards(loads, {{2, 0, 2, 0}}, 3) == Numbers{3, 0, 5});
  CHECK(imbalance(loads, {{2, 0, 2, 0}}, 3) == 1.875);  // 5 / (8 / 3)
  CHECK(imbalance(loads, {{3, 3, 3, 3}}, 4) == 4);
  CHECK(imbalance({7, 7}, {{1, 0}}, 2) == 1);
  CHECK(imbalance({0, 0}, {{1, 1}}, 2) == 1);
}

TEST_CASE("loads are those of the experts") {
  CHECK_THROWS_WITH_AS(imbalance({1, 2, 3}, {{0, 1}}, 2), "loads_of_shards: loads: expected those of 2 experts, got 3",
                       ArgumentError);
}
