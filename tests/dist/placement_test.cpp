#include "gatefold/dist/placement.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace gatefold;
using dist::Placement;
using Numbers = std::vector<Index>;

TEST_CASE("an even placement is that of part_of, with more or fewer experts than shards") {
  CHECK(Placement::even(5, 2).shard_of == Numbers{0, 0, 1, 1, 1});
  CHECK(Placement::even(2, 5).shard_of == Numbers{2, 4});
  CHECK(Placement::even(0, 3).shard_of.empty());
  for (Index experts : {1, 4, 9})
    for (Index shards : {1, 3, 11})
      for (Index j = 0; j < shards; ++j)
        CHECK(Placement::even(experts, shards).count(j) == dist::Range::of(experts, j, shards).count);
}

TEST_CASE("the experts of a shard, of all or of some") {
  const Placement p{{1, 0, 1, 3, 1}};
  CHECK(p.experts_of(1) == Numbers{0, 2, 4});
  CHECK(p.experts_of(2).empty());
  CHECK(p.experts_of(1, {1, 3}) == Numbers{1});  // expert 2 is the second of [1, 4)
  CHECK(p.by_shard(4, {2, 3}) == std::vector<Numbers>{{}, {0, 2}, {}, {1}});
  CHECK(p.count(1) == 3);
  CHECK(p.count(1, {1, 3}) == 1);
  CHECK(!p.in_order({0, 5}));
  CHECK(p.in_order({1, 3}));
}

TEST_CASE("a placement that is not given is even, and one that is names a shard for each expert") {
  CHECK(Placement{}.filled("here", 5, 2) == Placement::even(5, 2));
  CHECK(Placement{{1, 1}}.filled("here", 2, 2) == Placement{{1, 1}});
  CHECK_THROWS_WITH_AS((Placement{{1}}.filled("here", 2, 2)),
                       "here: placement: expected a shard for each of 2 experts, got 1", ArgumentError);
  CHECK_THROWS_WITH_AS((Placement{{1, 2}}.filled("here", 2, 2)),
                       "here: placement[1]: expected a shard in [0, 2), got 2", ArgumentError);
  CHECK_THROWS_WITH_AS((Placement{{-1, 2}}.filled("here", 2, 2)),
                       "here: placement[0]: expected a shard in [0, 2), got -1", ArgumentError);
}
