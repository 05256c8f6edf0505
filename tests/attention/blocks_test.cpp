#include "gatefold/attention/blocks.hpp"

#include <doctest/doctest.h>

#include <set>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/followed.hpp"

using namespace gatefold;
using support::Followed;

namespace {

constexpr Index lengths[] = {1, 2, 5, 127, 128, 129, 255, 256, 257, 300, 513, 600};

}  // namespace

TEST_CASE("for_each_block: covers each visible pair once, in key order") {
  Cpu::Context ctx(1);
  for (const detail_::attending::BlockSize size :
       {detail_::attending::BlockSize{}, detail_::attending::BlockSize{256, 256},
        detail_::attending::BlockSize::whole_rows(300, 4)})
    for (const bool causal : {false, true})
      for (const Index length : lengths) {
        CAPTURE(causal);
        CAPTURE(length);
        const Index items = 3 * length;
        std::vector<Index> next(static_cast<std::size_t>(items));  // for each row, the first key of its next block
        detail_::attending::for_each_block(
            ctx, items, length, causal, size, [&](Cpu::Context&, const detail_::attending::Block& b) {
              REQUIRE(b.rows <= size.rows);
              REQUIRE(b.keys <= size.keys);
              REQUIRE((b.sequences == 1 || b.all_rows() * b.keys <= size.rows * size.keys));
              for (Index r = 0; r < b.all_rows(); ++r) {
                const Index i = b.row + r, first = i / length * length;
                REQUIRE(b.first_key(r) - first == next[static_cast<std::size_t>(i)]);
                next[static_cast<std::size_t>(i)] += b.keys;
              }
            });
        for (Index i = 0; i < items; ++i) {
          const Index met = next[static_cast<std::size_t>(i)];
          REQUIRE(met <= length);
          REQUIRE(met >= (causal ? i % length + 1 : length));
        }
      }
}

TEST_CASE("sequence ranges: cover all items once, on any threads") {
  for (const int threads : {1, 2, 3})
    for (const Index length : lengths)
      for (const Index sequences : {0, 1, 2, 6, 1000}) {
        if (length * sequences > 20000) continue;
        Cpu::Context ctx(threads);
        std::vector<int> visits(static_cast<std::size_t>(length * sequences));
        detail_::attending::for_sequences(ctx, length * sequences, length, {},
                                          [&](Cpu::Context&, Index first, Index count) {
                                            if (first % length != 0 || count % length != 0)
                                              throw ArgumentError("a sequence was cut");
                                            for (Index i = first; i < first + count; ++i)
                                              ++visits[static_cast<std::size_t>(i)];
                                          });
        for (const int n : visits) REQUIRE(n == 1);
      }
}

TEST_CASE("whole-row blocks: each row has all keys in one block") {
  Cpu::Context ctx(1);
  const Index most = detail_::attending::BlockSize{}.rows * detail_::attending::BlockSize{}.keys;
  for (const Index length : lengths)
    for (const Index wide : {1, 3, 16}) {
      const Index items = 3 * length;
      std::vector<int> met(static_cast<std::size_t>(items));
      const auto size = detail_::attending::BlockSize::whole_rows(length, wide);
      detail_::attending::for_each_block(ctx, items, length, false, size,
                                         [&](Cpu::Context&, const detail_::attending::Block& b) {
                                           REQUIRE(b.keys == length);
                                           REQUIRE((b.all_rows() == 1 || b.all_rows() * b.keys * wide <= most));
                                           for (Index r = 0; r < b.all_rows(); ++r)
                                             ++met[static_cast<std::size_t>(b.row + r)];
                                         });
      for (const int times : met) REQUIRE(times == 1);
    }
  CHECK(detail_::attending::BlockSize::whole_rows(most + 1).rows == 1);
}

TEST_CASE("InUse: contains the rows of used slots, or all rows") {
  const std::vector<Index> offsets{2, 2, 5};  // slots 2, 3, 4
  const detail_::attending::InUse<Cpu> slots{offsets, 3}, part = slots.from(7), heads = slots.times(2), all{};
  for (Index row = -10; row < 50; ++row) {
    CHECK(slots.has(row) == (row >= 6 && row < 15));
    CHECK(part.has(row) == slots.has(row + 7));
    CHECK(heads.has(row) == (row >= 12 && row < 30));
    CHECK(part.times(2).has(row) == heads.has(row + 14));
    CHECK(all.has(row));
  }
  Cpu::Context ctx(1);
  std::vector<int> visits(20);
  const auto visit = [&](const auto&, Index row) { ++visits[static_cast<std::size_t>(row)]; };
  detail_::attending::for_rows(ctx, 20, slots, visit);
  for (Index row = 0; row < 20; ++row) CHECK(visits[static_cast<std::size_t>(row)] == (slots.has(row) ? 1 : 0));
}

TEST_CASE("Following: sorts a block's rows by head; keys are contiguous") {
  for (const Index length : lengths) {
    CAPTURE(length);
    const Index items = 3 * length;
    const Followed f(3, items, length);
    std::set<Index> keys;
    for (Index row = 0; row < items; ++row) {
      const Index i = f.following.item(row);
      REQUIRE(f.following.row(i) == row);
      REQUIRE(f.following.block(i) == f.following.block(row));
      if (row > 0 && f.following.block(row) == f.following.block(row - 1)) {
        const Index before = f.following.item(row - 1);
        REQUIRE(std::pair{f.head(before), before} < std::pair{f.head(i), i});
      }
      for (Index h = 0; h < 3; ++h) keys.insert(f.following.key(row, h));
    }
    CHECK(static_cast<Index>(keys.size()) == 3 * items);
    CHECK(*keys.begin() == 0);
    CHECK(*keys.rbegin() == 3 * items - 1);
  }
}

TEST_CASE("Following: with one head nothing is reordered") {
  const Followed f(1, 12, 4);
  for (Index n = 0; n < 12; ++n) {
    CHECK(f.following.item(n) == n);
    CHECK(f.following.row(n) == n);
    CHECK(f.following.key(n, 0) == n);
    CHECK(f.following.key_for(n, n) == n);
  }
  CHECK(f.following.block_size().keys == detail_::attending::BlockSize{}.keys);
}
