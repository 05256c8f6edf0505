#include "gatefold/distributed/poll.hpp"

#include <doctest/doctest.h>

#include <chrono>

using namespace gatefold;
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
