#include "gatefold/distributed/placement.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "gatefold/distributed/shards.hpp"

using namespace gatefold;
using dist::Placement;
using Numbers = std::vector<Index>;

TEST_CASE("Placement::even: equals part_of for any experts and shards") {
  CHECK(Placement::even(5, 2).shard_of == Numbers{0, 0, 1, 1, 1});
  CHECK(Placement::even(2, 5).shard_of == Numbers{2, 4});
  CHECK(Placement::even(0, 3).shard_of.empty());
  for (Index experts : {1, 4, 9})
    for (Index shards : {1, 3, 11})
      for (Index j = 0; j < shards; ++j)
        CHECK(Placement::even(experts, shards).count(j) == dist::Range::of(experts, j, shards).count);
}

TEST_CASE("Placement: returns a shard's experts, all or of a range") {
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

TEST_CASE("Placement: the default is even; an incomplete placement throws") {
  CHECK(Placement{}.filled("here", 5, 2) == Placement::even(5, 2));
  CHECK(Placement{{1, 1}}.filled("here", 2, 2) == Placement{{1, 1}});
  CHECK_THROWS_WITH_AS((Placement{{1}}.filled("here", 2, 2)),
                       "here: placement: expected a shard for each of 2 experts, got 1", ArgumentError);
  CHECK_THROWS_WITH_AS((Placement{{1, 2}}.filled("here", 2, 2)),
                       "here: placement[1]: expected a shard in [0, 2), got 2", ArgumentError);
  CHECK_THROWS_WITH_AS((Placement{{-1, 2}}.filled("here", 2, 2)),
                       "here: placement[0]: expected a shard in [0, 2), got -1", ArgumentError);
}

TEST_CASE("Placement: an expert with copies is on several shards") {
  const Placement p{{1, 0, 1, 3}, {{3, 1}, {0, 2}, {3, 0}}};
  CHECK(p.shards_of(0) == Numbers{1, 2});
  CHECK(p.shards_of(1) == Numbers{0});
  CHECK(p.shards_of(3) == Numbers{0, 1, 3});
  CHECK((p.on(1, 3) && p.on(3, 3) && p.on(2, 0) && !p.on(2, 3)));
  CHECK(p.experts_of(1) == Numbers{0, 2, 3});
  CHECK(p.experts_of(1, {1, 3}) == Numbers{1, 2});
  CHECK(p.by_shard(4, {0, 4}) == std::vector<Numbers>{{1, 3}, {0, 2, 3}, {0}, {3}});
  CHECK(p.by_shard(4, {1, 3}) == std::vector<Numbers>{{0, 2}, {1, 2}, {}, {2}});
  CHECK(p.count(1) == 3);
  CHECK(p.count(0, {2, 2}) == 1);
  CHECK(p.filled("here", 4, 4) == p);
  CHECK((Placement{{}, {{0, 1}}}.filled("here", 2, 2) == Placement{{0, 1}, {{0, 1}}}));
}

TEST_CASE("Placement: invalid copies throw, training allows no copies") {
  const auto message = [](const Placement& p) -> std::string {
    try {
      p.filled("here", 3, 2);
    } catch (const ArgumentError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(message({{0, 0, 1}, {{1, 1}, {2, 0}}}) == "");
  CHECK(message({{0, 0, 1}, {{1, 1}, {3, 0}}}) ==
        "here: placement.copies[1].expert: expected an expert in [0, 3), got 3");
  CHECK(message({{0, 0, 1}, {{-1, 1}}}) == "here: placement.copies[0].expert: expected an expert in [0, 3), got -1");
  CHECK(message({{0, 0, 1}, {{1, 2}}}) == "here: placement.copies[0].shard: expected a shard in [0, 2), got 2");
  CHECK(message({{0, 0, 1}, {{1, 0}}}) ==
        "here: placement.copies[0].shard: expected a shard that does not hold expert 1 yet, got 0");
  CHECK(message({{0, 0, 1}, {{1, 1}, {1, 1}}}) ==
        "here: placement.copies[1].shard: expected a shard that does not hold expert 1 yet, got 1");
  CHECK_THROWS_WITH_AS((Placement{{0, 0}, {{1, 1}}}.without_copies("here")),
                       "here: placement.copies: expected 0 copies, because experts with copies (dist::replicate) can "
                       "only be used for inference, got 1",
                       ArgumentError);
}

using dist::imbalance;
using dist::loads_of_shards;

TEST_CASE("imbalance (1), (2): divides the largest load by the mean") {
  const Numbers loads{5, 1, 0, 2};
  CHECK(loads_of_shards(loads, {{0, 0, 1, 1}}, 2) == Numbers{6, 2});
  CHECK(imbalance(loads, {{0, 0, 1, 1}}, 2) == 1.5);  // 6 / 4
  CHECK(loads_of_shards(loads, {{2, 0, 2, 0}}, 3) == Numbers{3, 0, 5});
  CHECK(imbalance(loads, {{2, 0, 2, 0}}, 3) == 1.875);  // 5 / (8 / 3)
  CHECK(imbalance(loads, {{3, 3, 3, 3}}, 4) == 4);
  CHECK(imbalance({7, 7}, {{1, 0}}, 2) == 1);
  CHECK(imbalance({0, 0}, {{1, 1}}, 2) == 1);
}

TEST_CASE("imbalance (1), (2): copies of an expert divide its slots") {
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

using dist::Copy;

TEST_CASE("DividedSlots (1): divides an expert's slots among its copies") {
  constexpr Index shards = 4, experts = 5;
  // Expert 0 is on one shard, 1 on two, 2 on all, 3 on three, 4 on two. Shard 2 has no items.
  const Placement placement{{3, 2, 0, 1, 3}, {{1, 0}, {2, 3}, {2, 1}, {2, 2}, {3, 3}, {3, 0}, {4, 0}}};
  const std::vector<std::vector<Index>> holders{{3}, {0, 2}, {0, 1, 2, 3}, {0, 1, 3}, {0, 3}};
  std::mt19937 generator(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<Index>> counts(shards, std::vector<Index>(experts));
    for (Index j = 0; j < shards; ++j)
      for (Index e = 0; e < experts; ++e)
        counts[static_cast<std::size_t>(j)][static_cast<std::size_t>(e)] =
            j == 2 ? 0 : static_cast<Index>(generator() % (round % 2 ? 3 : 9));  // odd rounds: copies without slots
    std::mutex mutex;
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      const auto me = static_cast<std::size_t>(shard.index());
      const dist::DividedSlots divided(shard, counts[me], placement);
      const std::lock_guard lock(mutex);
      for (Index e = 0; e < experts; ++e) {
        const auto& on = holders[static_cast<std::size_t>(e)];
        const auto c = static_cast<Index>(on.size());
        // The shard to which each slot of all shards goes.
        std::vector<Index> whom;
        Index all = 0, before = 0;
        for (std::size_t j = 0; j < counts.size(); ++j) {
          all += counts[j][static_cast<std::size_t>(e)];
          if (j < me) before += counts[j][static_cast<std::size_t>(e)];
        }
        for (Index i = 0; i < c; ++i)
          for (Index s = i * all / c; s < (i + 1) * all / c; ++s) whom.push_back(on[static_cast<std::size_t>(i)]);
        REQUIRE(static_cast<Index>(whom.size()) == all);
        Index found = 0;
        for (const Index j : on) {
          const dist::Range own = divided.own(e, j);
          found += own.count;
          for (Index s = own.first; s < own.first + own.count; ++s)
            CHECK(whom[static_cast<std::size_t>(before + s)] == j);
          Index first = 0;
          while (first < all && whom[static_cast<std::size_t>(first)] < j) ++first;
          if (c > 1) CHECK(divided.before(e, j) == first);
        }
        CHECK(found == counts[me][static_cast<std::size_t>(e)]);
      }
    });
  }
}

TEST_CASE("DividedSlots: without copies no data is exchanged") {
  dist::Alone world;
  dist::run(world, 2, [&](auto& shard) {
    const dist::DividedSlots divided(shard, {4, 0, 2}, Placement{{1, 1, 0}});
    CHECK(shard.traffic().exchanges == 0);
    CHECK(divided.own(0, 1).first == 0);
    CHECK(divided.own(0, 1).count == 4);
    CHECK(divided.own(1, 1).count == 0);
    CHECK(divided.own(2, 0).count == 2);
    CHECK(divided.before(2, 0) == 0);
  });
}
