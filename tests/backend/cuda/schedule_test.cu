// How tiles are distributed over blocks: every step of every tile once, in order, and evenly.
#include "gatefold/backend/cuda/schedule.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

struct Done {
  Index block, n;  // the n-th part of a block
  int begin, end;
};

/// Returns the parts of each tile in the order of their beginnings.
std::vector<std::vector<Done>> deal(Index tiles, int steps, Index blocks, Index* busiest) {
  std::vector<std::vector<Done>> parts(static_cast<std::size_t>(tiles));
  const Schedule schedule(tiles, steps, blocks);
  *busiest = 0;
  for (Index block = 0; block < blocks; ++block) {
    Index load = 0;
    for (Index n = 0;; ++n) {
      const TilePart part = schedule.part(block, n);
      if (part.tile < 0) break;
      REQUIRE(part.tile < tiles);
      load += part.end - part.begin;
      parts[static_cast<std::size_t>(part.tile)].push_back({block, n, part.begin, part.end});
    }
    CHECK(schedule.part(block, load + 1).tile < 0);  // a block that is done stays done
    *busiest = std::max(*busiest, load);
  }
  for (auto& of_tile : parts)
    std::sort(of_tile.begin(), of_tile.end(), [](const Done& a, const Done& b) { return a.begin < b.begin; });
  return parts;
}

void check(Index tiles, int steps, Index blocks) {
  CAPTURE(tiles);
  CAPTURE(steps);
  CAPTURE(blocks);
  Index busiest = 0;
  const auto parts = deal(tiles, steps, blocks, &busiest);
  for (const auto& of_tile : parts) {
    REQUIRE(!of_tile.empty());
    REQUIRE(of_tile.size() <= 2);
    CHECK(of_tile.front().begin == 0);
    CHECK(of_tile.back().end == steps);
    if (of_tile.size() < 2) continue;
    const Done &first = of_tile[0], &last = of_tile[1];
    CHECK(first.end == last.begin);
    CHECK(first.end > 0);
    CHECK(last.block == first.block + 1);
    // A part that another block waits for does not wait itself: it is the first part of its block after the rounds of
    // whole tiles.
    CHECK(first.n == std::max<Index>(tiles / blocks - 1, 0));
  }
  const Index fair = (tiles * steps + blocks - 1) / blocks;
  CHECK(busiest == std::max<Index>(tiles > 0 ? steps : 0, fair));
}

}  // namespace

TEST_CASE("Schedule: assigns every step once, in order, evenly") {
  for (const Index blocks : {1, 2, 3, 7, 132})
    for (const int steps : {1, 2, 5, 64})
      for (const Index tiles : {Index(0), Index(1), blocks - 1, blocks, blocks + 1, 2 * blocks - 1, 2 * blocks,
                                2 * blocks + 1, 5 * blocks + 3})
        check(tiles, steps, blocks);
}

TEST_CASE("Schedule: assigns whole tiles in rounds while many are left") {
  const Schedule schedule(10, 4, 3);  // 10 tiles for 3 blocks: two rounds of 3 whole tiles, then 4 tiles remain
  const auto is = [](const TilePart& part, Index tile, int begin, int end) {
    return part.tile == tile && part.begin == begin && part.end == end;
  };
  CHECK(is(schedule.part(1, 0), 1, 0, 4));
  CHECK(is(schedule.part(1, 1), 4, 0, 4));
  // 16 steps remain for 3 blocks: block 0 has tile 6 and two steps of 7, block 1 the rest of 7 and all of 8, block 2
  // tile 9
  CHECK(is(schedule.part(0, 2), 7, 0, 2));
  CHECK(is(schedule.part(0, 3), 6, 0, 4));
  CHECK(is(schedule.part(1, 2), 8, 0, 4));
  CHECK(is(schedule.part(1, 3), 7, 2, 4));
  CHECK(is(schedule.part(2, 2), 9, 0, 4));
  CHECK(schedule.part(2, 3).tile < 0);
}
