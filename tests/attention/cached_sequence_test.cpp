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
  CHECK_FALSE(all.has_cache());
}

TEST_CASE("last_keys: the window, or all keys") {
  CHECK(last_keys(3, 5, 4).width == 4);
  CHECK(last_keys(3, 5, 0).first(0) <= 0);
  CHECK(last_keys(3, 5, 0).first(2) <= 0);
  CHECK(last_keys(3, 5, 0).keys() == 8);
}

TEST_CASE("expect_cached: inputs that do not fit are refused") {
  Cpu::Context ctx(1);
  KvCache<float, Cpu> cache(ctx, {.parts = 2, .width = 5, .longest = 9});
  CachedSequence<float, Cpu> extra{.cache = cache.of(4)};
  const auto message = [&](Index items, Index row, Index width = 0) {
    return message_of([&] { expect_cached("X", extra, items, 2, row, "numbers", width); });
  };
  CHECK(extra.has_cache());
  CHECK(message(4, 5) == "no ArgumentError");
  CHECK(message(4, 6) == "X: cache: expected rows of 6 values (numbers), got rows of 5");
  CHECK(message(10, 5) == "X: cache: expected room for 10 items for each sequence, got room for 9");
  CHECK(message_of([&] { expect_no_cache("X", extra); }) ==
        "X: cache: expected none, because keys of earlier segments have no gradients; use infer, got a cache");
  // A cache that has dropped items of the window, or items of an attention without a window.
  KvCache<float, Cpu> short_cache(ctx, {.parts = 2, .width = 5, .longest = 90, .keep = 3});
  for (int i = 0; i < 3; ++i) {
    short_cache.of(2);
    short_cache.advance();
  }
  extra.cache = short_cache.of(4);
  CHECK(message(4, 5, 4) == "no ArgumentError");
  CHECK(message(4, 5, 5) == "X: cache: expected at least 4 earlier items, got 3");
  CHECK(message(4, 5, 0) == "X: cache: expected at least 6 earlier items, got 3");
  extra = {.length = 3};
  CHECK_FALSE(extra.has_cache());
  CHECK(message(4, 5) == "X: sequence.length: expected a divisor of the number of items 4, got 3");
}
