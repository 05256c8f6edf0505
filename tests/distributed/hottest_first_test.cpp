#include "gatefold/distributed/hottest_first.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include "gatefold/distributed/imbalance.hpp"
#include "gatefold/distributed/longest_first.hpp"

using namespace gatefold;
using dist::HottestFirst;
using dist::Placement;
using Numbers = std::vector<Index>;

TEST_CASE("equation (1): copies most loaded experts, then places longest first") {
  // Six places: one copy of the load 12, which is then on both shards, and one of the load 4. The shards' loads grow to
  // 6 | 6, 6 + 2 | 6 + 2, 8 + 1 | 8, that is 9 | 8.
  const Placement found = HottestFirst{.extra = 1}.place({12, 4, 1, 0}, 2, {{0, 0, 1, 1}});
  CHECK(found.shards_of(0) == Numbers{0, 1});
  CHECK(found.shards_of(1) == Numbers{0, 1});
  CHECK(found.shards_of(2).size() == 1);
  CHECK(found.shards_of(3).size() == 1);
  CHECK(dist::loads_of_shards({12, 4, 1, 0}, found, 2) == Numbers{9, 8});
  // Sixteen places give four copies: of 183, 165, 132 and 104. The next would be a third copy of 183.
  const Numbers loads{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  const Placement of_twelve = HottestFirst{.extra = 1}.place(loads, 4, Placement::even(12, 4));
  CHECK(of_twelve.copies.size() == 4);
  for (const Index twice : {10, 5, 1, 4}) CHECK(of_twelve.shards_of(twice).size() == 2);
}

TEST_CASE("HottestFirst: respects room, no duplicate copies, keeps every expert") {
  std::mt19937 generator(3);
  Index left_out = 0;
  for (int i = 0; i < 400; ++i) {
    const Index shards = 1 + i % 5, experts = 1 + static_cast<Index>(generator() % 9),
                extra = static_cast<Index>(generator() % 4);
    CAPTURE(shards);
    CAPTURE(experts);
    CAPTURE(extra);
    Numbers loads(static_cast<std::size_t>(experts));
    for (Index& l : loads) l = static_cast<Index>(generator() % (i % 3 == 0 ? 3 : i % 3 == 1 ? 100 : 1000000));
    if (i % 4 == 0) loads[0] = 100000;
    const Placement now = Placement::even(experts, shards), found = HottestFirst{extra}.place(loads, shards, now);
    CHECK(found.filled("test", experts, shards) == found);  // no shard has an expert twice
    for (Index j = 0; j < shards; ++j) CHECK(found.count(j) <= (experts + shards - 1) / shards + extra);
    CHECK(HottestFirst{extra}.place(loads, shards, now) == found);
    for (Index e = 0; e < experts; ++e) {
      if (found.on(now.shard_of[static_cast<std::size_t>(e)], e))
        CHECK(found.shard_of[static_cast<std::size_t>(e)] == now.shard_of[static_cast<std::size_t>(e)]);
      if (loads[static_cast<std::size_t>(e)] == 0) CHECK(found.shards_of(e).size() == 1);
    }
    const Numbers of = dist::loads_of_shards(loads, found, shards);
    const Index total = std::accumulate(loads.begin(), loads.end(), Index(0));
    CHECK(std::accumulate(of.begin(), of.end(), Index(0)) == total);
    // A loop computes how many copies each expert should have. Few of them find no shard with room.
    Numbers places(loads.size(), 1);
    for (Index free = shards * ((experts + shards - 1) / shards + extra) - experts; free > 0; --free) {
      double most = 0;
      std::size_t hottest = 0;
      for (std::size_t e = 0; e < loads.size(); ++e) {
        const double each = static_cast<double>(loads[e]) / static_cast<double>(places[e]);
        if (places[e] < shards && each > most) most = each, hottest = e;
      }
      if (most > 0) ++places[hottest];
    }
    for (std::size_t e = 0; e < loads.size(); ++e) {
      const auto there = static_cast<Index>(found.shards_of(static_cast<Index>(e)).size());
      CHECK(there <= places[e]);
      left_out += places[e] - there;
    }
  }
  CHECK(left_out <= 4);
}

TEST_CASE("HottestFirst: copies divide a dominant expert, moving cannot") {
  const Numbers loads{1000, 10, 10, 10, 10, 10, 10, 10};
  const Placement now = Placement::even(8, 4);
  const auto imbalance = [&](const Placement& p) { return dist::imbalance(loads, p, 4); };
  CHECK(imbalance(dist::LongestFirst{.gain = 0}.place(loads, 4, now)) > 3.7);  // 4 is the largest possible
  CHECK(imbalance(HottestFirst{.extra = 1}.place(loads, 4, now)) < 1.03);
}

TEST_CASE("HottestFirst: errors name the wrong argument") {
  const Placement now = Placement::even(3, 2);
  CHECK_THROWS_WITH_AS((HottestFirst{.extra = -1}.place({1, 2, 3}, 2, now)),
                       "HottestFirst: extra: expected at least 0, got -1", ArgumentError);
  CHECK_THROWS_WITH_AS((HottestFirst{}.place({1, 2}, 2, now)),
                       "HottestFirst: loads: expected one load for each of 3 experts, got 2", ArgumentError);
}
