#include "gatefold/distributed/processes.hpp"

#include <doctest/doctest.h>

using namespace gatefold;

static_assert(dist::World<dist::Alone>);

TEST_CASE("dist::Alone: has rank 0 of 1 and exchanges no messages") {
  dist::Alone world;
  CHECK(world.rank() == 0);
  CHECK(world.size() == 1);
  world.exchange({}, {});
  world.fail("nobody listens");
}
