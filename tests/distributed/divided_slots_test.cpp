#include "gatefold/distributed/divided_slots.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <mutex>
#include <random>
#include <vector>

#include "gatefold/distributed/shards.hpp"

using namespace gatefold;
using dist::Copy;
using dist::Placement;

TEST_CASE("equation (1): slots of all shards are divided among holders") {
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
            j == 2 ? 0 : static_cast<Index>(generator() % (round % 2 ? 3 : 9));  // below 3: more copies than slots
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
