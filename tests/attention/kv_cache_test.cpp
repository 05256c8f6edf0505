#include "gatefold/attention/kv_cache.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;
using namespace gatefold::detail_::attending;

using Cache = KvCache<double, Cpu>;

namespace {

/// Stores a row for each item and layer in a cache with one part. The values of a row encode the numbers of layer,
/// sequence, item and column.
void store(Cpu::Context& ctx, const CacheView<double, Cpu>& view, Index first_item, Index length) {
  for (Index l = 0; l < view.rows.extent(0); ++l) {
    Tensor<double, 2, Cpu> rows(view.sequences * length, view.rows.extent(2));
    for (Index n = 0; n < rows.extent(0); ++n)
      for (Index c = 0; c < rows.extent(1); ++c)
        rows(n, c) = double(1000 * l + 100 * (n / length) + first_item + n % length) + 0.001 * double(c);
    detail_::attending::store_rows<Cpu::Context, double, Cpu>(ctx, view.at(l), rows);
    detail_::attending::store_valid<Cpu::Context, double, Cpu>(ctx, view.at(l), {}, length);
  }
}

}  // namespace

TEST_CASE("KvCache: an item stays in its row until dropped") {
  Cpu::Context ctx(2);
  for (const Index keep : {0, 3, 5})
    for (const Index step : {1, 2, 7}) {
      CAPTURE(keep);
      CAPTURE(step);
      Cache cache(ctx, {.layers = 2, .sequences = 2, .width = 3, .longest = 42, .keep = keep});
      for (Index done = 0; done < 42; done += step) {
        const auto view = cache.of(step);
        CHECK(view.position == done);
        CHECK(view.items == (keep > 0 ? std::min(done, keep) : done));
        CHECK(cache.items() == view.items);
        cache.of(step);  // a segment can be run again
        store(ctx, view, done, step);
        const Index count = view.items + step;
        for (Index l = 0; l < 2; ++l) {
          const auto at = view.at(l);
          auto mark = ctx.mark();
          const auto rows = detail_::attending::read_rows<Cpu::Context, double, Cpu>(
              ctx, at, at.rows.as(at.rows.extent(1), 3), count);
          REQUIRE(rows.extent(0) == 2 * count);
          Index different = 0;
          for (Index n = 0; n < rows.extent(0); ++n) {
            const Index item = done + step - count + n % count;
            different += rows(n, 2) == double(1000 * l + 100 * (n / count) + item) + 0.002 ? 0 : 1;
          }
          CHECK(different == 0);
        }
        const auto mask = detail_::attending::read_rows<Cpu::Context, double, Cpu>(
            ctx, view, view.valid.as(view.valid.size(), 1), count);
        for (Index n = 0; n < mask.size(); ++n) CHECK(mask.data()[n] == 1);
        cache.advance();
      }
      cache.begin();
      CHECK(cache.items() == 0);
      CHECK(cache.of(1).position == 0);
    }
}

TEST_CASE("KvCache: without `keep` its memory never moves or grows") {
  Cpu::Context ctx(1);
  const CacheSize size{.layers = 3, .sequences = 2, .parts = 4, .width = 5, .longest = 10};
  CHECK(size.capacity() == 10);
  CHECK(size.size() == 3 * 2 * 4 * 5 * 10);
  Cache cache(ctx, size);
  const double* const address = cache.of(1).rows.data();
  for (int i = 0; i < 10; ++i) {
    CHECK(cache.of(1).rows.data() == address);
    CHECK(cache.of(1).rows.size() == size.size());
    cache.advance();
  }
}

TEST_CASE("KvCache: `keep` makes the size independent of the length") {
  Cpu::Context ctx(1);
  const CacheSize size{.width = 2, .longest = 1'000'000, .keep = 4};
  CHECK(size.capacity() == 8);
  Cache cache(ctx, size);
  const double* const address = cache.of(1).rows.data();
  for (int i = 0; i < 1000; ++i) {
    CHECK(cache.of(1).rows.data() == address);
    cache.advance();
  }
  CHECK(cache.of(20).capacity == 2 * 4 + 20);  // a long segment: the cache grows once
  cache.advance();
  for (int i = 0; i < 100; ++i) {
    CHECK(cache.of(1).capacity == 28);
    cache.advance();
  }
}

TEST_CASE("KvCache: forget masks the items of one sequence") {
  Cpu::Context ctx(1);
  Cache cache(ctx, {.sequences = 3, .width = 1, .longest = 4});
  store(ctx, cache.of(2), 0, 2);
  cache.advance();
  cache.forget(1);
  const auto valid = cache.of(1).valid;
  for (Index s = 0; s < 3; ++s)
    for (Index j = 0; j < 2; ++j) CHECK(valid(s * 4 + j) == (s == 1 ? 0 : 1));
}

TEST_CASE("KvCache: wrong sizes and lengths are refused") {
  Cpu::Context ctx(1);
  Cache absolute(ctx, {.width = 1, .longest = 4, .absolute = true});
  CHECK(message_of([&] { absolute.forget(0); }) ==
        "KvCache.forget: absolute: expected false, because chunks and temperatures depend on the position from the "
        "begin of a sequence; use one cache for each sequence, got true");
  CHECK(message_of([&] { Cache(ctx, {.longest = 4}); }) == "KvCache: width: expected at least 1, got 0");
  CHECK(message_of([&] { Cache(ctx, {.width = 4}); }) == "KvCache: longest: expected at least 1, got 0");
  CHECK(message_of([&] { Cache(ctx, {.width = 4, .longest = 4, .keep = -1}); }) ==
        "KvCache: keep: expected at least 0, got -1");
  Cache cache(ctx, {.layers = 2, .sequences = 3, .parts = 2, .width = 4, .longest = 5});
  CHECK(message_of([&] { cache.forget(3); }) == "KvCache.forget: s: expected 0 to 2, got 3");
  CHECK(message_of([&] { cache.of(0); }) == "KvCache.of: length: expected at least 1, got 0");
  cache.of(3);
  cache.advance();
  CHECK(message_of([&] { cache.of(3); }) ==
        "KvCache.of: length: expected at most 2, because a sequence has at most 5 items, got 3");
  CHECK(message_of([&] { cache.of(1).at(2); }) ==
        "CacheView.at: cache: expected at least 3 layers, because a layer with index 2 reads it, got 2");
  const auto says = [&](const CacheView<double, Cpu>& view, Index count, Index length, Index parts, Index row,
                        Index least) {
    return message_of([&] { view.validate("f", count, length, parts, row, "numbers", least); });
  };
  auto view = cache.of(2);
  CHECK(says(view, 3, 2, 2, 4, 3) == "no ArgumentError");
  CHECK(says(view, 1, 2, 2, 4, 3) == "f: cache: expected a cache of 1 sequences (items / length), got a cache of 3");
  CHECK(says(view, 3, 2, 2, 5, 3) == "f: cache: expected rows of 5 values (numbers), got rows of 4");
  CHECK(says(view, 3, 2, 1, 4, 3) ==
        "f: cache.rows: expected 15 rows (1 parts of 3 sequences with 5 rows), got 30 rows");
  CHECK(says(view, 3, 3, 2, 4, 3) == "f: cache: expected room for 3 items for each sequence, got room for 2");
  view.items = 2;
  CHECK(says(view, 3, 2, 2, 4, 2) == "no ArgumentError");
  CHECK(says(view, 3, 2, 2, 4, 3) == "f: cache: expected at least 3 earlier items, got 2");
  view.valid = {};
  CHECK(says(view, 3, 2, 2, 4, 2) == "f: cache.valid: expected 15 values, got 0");
}

TEST_CASE("CachedSequence: returns the number and length of sequences") {
  const CachedSequence<float, Cpu> all{}, three{.length = 3};
  CHECK(all.sequences(0) == 0);
  CHECK(all.sequences(7) == 1);
  CHECK(all.of(7) == 7);
  CHECK(three.sequences(12) == 4);
  CHECK(three.of(12) == 3);
  CHECK_FALSE(all.has_cache());
}

TEST_CASE("last_keys: returns the window, or all keys for width 0") {
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
  // A cache that keeps 3 earlier items fits a window of 4 items. A longer window, or no window (0), needs more items.
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
