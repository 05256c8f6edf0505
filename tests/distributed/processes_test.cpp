#include "gatefold/distributed/processes.hpp"

#include <doctest/doctest.h>

#include <chrono>

using namespace gatefold;

static_assert(dist::World<dist::Alone>);

TEST_CASE("dist::Alone: has rank 0 of 1 and exchanges no messages") {
  dist::Alone world;
  CHECK(world.rank() == 0);
  CHECK(world.size() == 1);
  world.exchange({}, {});
  world.fail("nobody listens");
}

using dist::Seconds;

TEST_CASE("wait_until: repeats until the condition holds") {
  int asked = 0;
  CHECK(dist::wait_until(Seconds(60), [&] { return ++asked == 500; }));
  CHECK(asked == 500);
}

TEST_CASE("wait_until: checks once more at the deadline") {
  int asked = 0;
  CHECK(dist::wait_until(Seconds(0), [&] { return ++asked == 1; }));
  CHECK(asked == 1);
}

TEST_CASE("wait_until: returns false at the deadline, not before") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(dist::wait_until(Seconds(0.05), [] { return false; }));
  CHECK(std::chrono::steady_clock::now() - begin >= Seconds(0.05));
}
