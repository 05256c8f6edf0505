#include "gatefold/attention/cached_sequence.hpp"

#include <doctest/doctest.h>

#include <string>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;
using namespace gatefold::detail_::attending;

TEST_CASE("CachedSequence: number and length of sequences") {
  const CachedSequence<float, Cpu> all{}, three{.length = 3};
  CHECK(all.sequences(0) == 0);
  CHECK(all.sequences(7) == 1);
  CHECK(all.of(7) == 7);
  CHECK(three.sequences(12) == 4);
  CHECK(three.of(12) == 3);
  CHECK_FALSE(all.has_memory());
}

TEST_CASE("held_keys: the window, or all keys if the memory is larger") {
  Cpu::Context ctx(1);
  for (const Index most : {3, 20}) {
    SegmentMemory<float, Cpu> memory(ctx, {.sequences = 2, .width = 5, .most = most});
    for (int segment = 0; segment < 4; ++segment) {
      const CachedSequence<float, Cpu> extra{.length = 2, .memory = memory.of(2)};
      const Window window = held_keys(extra, 4, 4);  // a window of 4 keys remembers 3
      const Index past = 2 * segment < most ? 2 * segment : most;
      CHECK(window.past == past);
      CHECK(window.remembered() == (past + 2 < most ? past + 2 : most));
      CHECK(message_of([&] { expect_cached("X", extra, 4, 5, "numbers", 4); }) == "no ArgumentError");
      memory.advance();
    }
  }
}

TEST_CASE("expect_cached: inputs that do not fit are refused") {
  Cpu::Context ctx(1);
  SegmentMemory<float, Cpu> memory(ctx, {.width = 5, .most = 9});
  CachedSequence<float, Cpu> extra{.memory = memory.of(4)};
  const auto message = [&](Index items, Index row) {
    return message_of([&] { expect_cached("X", extra, items, row, "numbers", 0); });
  };
  CHECK(message(4, 5) == "no ArgumentError");
  CHECK(message(4, 6) == "X: memory: expected rows of 6 values (numbers), got rows of 5");
  CHECK(message(3, 5) == "X: memory.next: expected 3 rows (3 for each sequence), got 4");
  CHECK(message_of([&] { expect_no_memory("X", extra); }) ==
        "X: memory: expected none, because keys of earlier segments have no gradients; use infer, got a memory");
  extra = {.length = 3};
  CHECK(message(4, 5) == "X: sequence.length: expected a divisor of the number of items 4, got 3");
}
