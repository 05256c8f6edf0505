#include "gatefold/distributed/row_counts.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/distributed/shards.hpp"

using namespace gatefold;

namespace {

void on_shards(Index shards, const auto& program) {
  dist::Alone world;
  dist::run(world, shards, program);
}

}  // namespace

TEST_CASE("HeldRows: every shard gets the rows of all shards") {
  on_shards(3, [](auto& shard) {
    const Index j = shard.index();
    const dist::HeldRows held(shard, {j, 10 + j * j});
    CHECK(held.of(0) == std::vector<Index>{0, 1, 2});
    CHECK(held.of(1) == std::vector<Index>{10, 11, 14});
    CHECK(held.count(1) == 35);
    CHECK(held.before(1, j) == std::vector<Index>{0, 10, 21}[static_cast<std::size_t>(j)]);
  });
  on_shards(2, [](auto& shard) { dist::HeldRows(shard, {}); });
}

TEST_CASE("HeldRows: rows on a wrong shard throw on all shards") {
  const dist::Deal deal{dist::Placement{{0, 1, 1, 0, 0}}, 2, {}};
  const auto check = [&](Index first, Index second, const dist::DealtRows& rows) {
    try {
      on_shards(2, [&](auto& shard) {
        const dist::HeldRows held(shard, {7, shard.index() == 0 ? first : second});
        held.expect_dealt("here", "expert.up", 1, rows);
      });
    } catch (const ArgumentError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(check(3, 2, {&deal, {0, 5}}) == "");
  CHECK(check(1, 2, {&deal, {0, 3}}) == "");
  CHECK(check(0, 0, {&deal, {0, 5}}) == "");  // no experts of this group
  CHECK(check(4, 2, {}) == "");               // dealt by rows
  CHECK(check(3, 3, {&deal, {0, 5}}) == "here: expert.up: expected 2 experts on shard 1, got 3");
  CHECK(check(5, 0, {&deal, {0, 5}}) == "here: expert.up: expected 3 experts on shard 0, got 5");
}
