#include "gatefold/backend/cpu/ticks.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>

using namespace gatefold;

TEST_CASE("Ticks: agree with the steady clock") {
  using Nanoseconds = std::chrono::duration<double, std::nano>;
  cpu::Ticks::since(cpu::Ticks::now());  // measures the length of a tick
  for (const int milliseconds : {1, 5, 20}) {
    const auto outer = std::chrono::steady_clock::now();
    const std::int64_t begin = cpu::Ticks::now();
    const auto inner = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    const double least = Nanoseconds(std::chrono::steady_clock::now() - inner).count();
    const double passed = cpu::Ticks::since(begin);
    const double most = Nanoseconds(std::chrono::steady_clock::now() - outer).count();
    CHECK(passed >= 0.9 * least);
    CHECK(passed <= 1.1 * most);
  }
}

TEST_CASE("Ticks: since() returns 0 for a begin in the future") {
  CHECK(cpu::Ticks::since(std::numeric_limits<std::int64_t>::max()) == 0);
}
