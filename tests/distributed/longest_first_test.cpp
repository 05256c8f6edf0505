#include "gatefold/distributed/longest_first.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gatefold/distributed/placement.hpp"

using namespace gatefold;
using dist::LongestFirst;
using dist::Placement;
using Numbers = std::vector<Index>;

namespace {

/// Tries all placements of few experts and returns the least load of the busiest shard.
Index best_of_all(const Numbers& loads, Index shards, Index room) {
  Placement p{Numbers(loads.size())};
  Index best = std::accumulate(loads.begin(), loads.end(), Index(0));
  while (true) {
    Index most = 0;
    bool fits = true;
    for (Index j = 0; j < shards; ++j) {
      fits = fits && p.count(j) <= room;
      Index load = 0;
      for (std::size_t e = 0; e < loads.size(); ++e) load += p.shard_of[e] == j ? loads[e] : 0;
      most = std::max(most, load);
    }
    if (fits) best = std::min(best, most);
    std::size_t e = 0;
    while (e < loads.size() && ++p.shard_of[e] == shards) p.shard_of[e++] = 0;
    if (e == loads.size()) return best;
  }
}
Index busiest(const Numbers& loads, const Placement& p, Index shards) {
  const Numbers of = dist::loads_of_shards(loads, p, shards);
  return *std::max_element(of.begin(), of.end());
}

}  // namespace

TEST_CASE("LongestFirst: longest expert first, to the least loaded shard") {
  // The loads grow as 9 | 8, 9 | 8 + 5, 9 + 4 | 13, 13 + 4 | 13, and 1 goes to the shard with room.
  CHECK(LongestFirst{.gain = 0}.place({4, 9, 5, 8, 4, 1}, 2, {{0, 0, 0, 0, 0, 0}}) == Placement{{0, 0, 1, 1, 0, 1}});
  // Ties go to the lower expert, then to the shard with fewer experts, then to the lower shard.
  CHECK(LongestFirst{.gain = 0}.place({3, 3, 3, 3, 0, 0}, 2, {{1, 1, 1, 1, 1, 1}}).count(0) == 3);
}

TEST_CASE("LongestFirst: at most 4/3 of the optimum if room suffices") {
  std::mt19937 generator(1);
  for (int i = 0; i < 60; ++i) {
    const Index shards = 2 + i % 2, experts = 5 + i % 3;
    Numbers loads(static_cast<std::size_t>(experts));
    for (Index& l : loads) l = static_cast<Index>(generator() % (i % 4 == 0 ? 3 : 100));
    Placement now{Numbers(loads.size(), 0)};
    const Placement found = LongestFirst{.most = experts, .gain = 0}.place(loads, shards, now);
    const Index best = best_of_all(loads, shards, experts);
    CAPTURE(loads);
    CHECK(3 * busiest(loads, found, shards) <= 4 * best);
    // With limited room the result is at least as good as the old placement, and no shard has more experts than
    // allowed.
    const Placement even = Placement::even(experts, shards), kept = LongestFirst{}.place(loads, shards, even);
    CHECK(busiest(loads, kept, shards) <= busiest(loads, even, shards));
    for (Index j = 0; j < shards; ++j) CHECK(kept.count(j) <= (experts + shards - 1) / shards);
  }
}

TEST_CASE("LongestFirst: keeps experts if the gain is small") {
  const Placement now{{1, 1, 0, 0}};
  CHECK(LongestFirst{}.place({5, 5, 5, 5}, 2, now) == now);                 // even already
  CHECK(LongestFirst{}.place({0, 0, 0, 0}, 2, now) == now);                 // no loads are known
  CHECK(LongestFirst{.gain = 0.1}.place({54, 50, 50, 46}, 2, now) == now);  // 104 to 100 of 200: 4 %
  CHECK(LongestFirst{.gain = 0.03}.place({54, 50, 50, 46}, 2, now) != now);
  // The parts {0, 1} and {2, 3} are even. The first part takes shard 1, where both of its experts are, so one expert
  // moves.
  CHECK(LongestFirst{}.place({9, 1, 8, 2}, 2, {{1, 1, 1, 0}}) == Placement{{1, 1, 0, 0}});
}

TEST_CASE("LongestFirst: isolates a hot expert, allows more shards than experts") {
  const Numbers loads{100, 1, 1, 1};
  const Placement p = LongestFirst{.most = 3, .gain = 0}.place(loads, 2, {{0, 0, 1, 1}});
  CHECK(p.count(p.shard_of[0]) == 1);
  const Placement wide = LongestFirst{}.place({3, 4}, 5, {{0, 0}});
  CHECK(wide.shard_of[0] != wide.shard_of[1]);
}

TEST_CASE("LongestFirst: throws for invalid options") {
  CHECK_THROWS_WITH_AS((LongestFirst{.most = 1}.place({1, 2, 3}, 2, {{0, 0, 1}})),
                       "LongestFirst: most: expected 0 or at least 2 (3 experts on 2 shards), got 1", ArgumentError);
  CHECK_THROWS_WITH_AS((LongestFirst{.gain = -1}.place({1, 2, 3}, 2, {{0, 0, 1}})),
                       "LongestFirst: gain: expected at least 0, got -1", ArgumentError);
}
