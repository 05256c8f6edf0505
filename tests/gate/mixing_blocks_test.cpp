#include "gatefold/gate/mixing_blocks.hpp"

#include <doctest/doctest.h>

#include <set>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/random_fill.hpp"

using namespace gatefold;

namespace {

constexpr Index lengths[] = {1, 2, 5, 127, 128, 129, 255, 256, 257, 300, 513, 600};

/// Items that follow heads in no particular order.
struct Followed {
  Cpu::Context ctx{1};
  Tensor<Index, 1, Cpu> head;
  mixing::Following<Cpu> following;

  Followed(Index heads, Index items, Index length) : head(items) {
    for (Index i = 0; i < items; ++i) head(i) = (i * i + i / 7) % (heads + 1) % heads;
    following = mixing::following<Cpu::Context>(ctx, View<const Index, 1, Cpu>(head), heads, length);
  }
};

}  // namespace

TEST_CASE("blocks cover each pair of a row and a key it may see once, keys in ascending order") {
  Cpu::Context ctx(1);
  for (const mixing::BlockSize size : {mixing::BlockSize{}, mixing::Following<Cpu>::size})
    for (const bool causal : {false, true})
      for (const Index length : lengths) {
        CAPTURE(causal);
        CAPTURE(length);
        const Index items = 3 * length;
        std::vector<Index> next(static_cast<std::size_t>(items));  // the key that row i meets next, in its sequence
        mixing::for_each_block(ctx, items, length, causal, size, [&](Cpu::Context&, const mixing::Block& b) {
          REQUIRE(b.rows <= size.rows);
          REQUIRE(b.keys <= size.keys);
          REQUIRE(b.all_rows() * b.keys <= size.rows * size.keys);
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

TEST_CASE("ranges of sequences cover all items once, on one thread and on several") {
  for (const int threads : {1, 2, 3})
    for (const Index length : lengths)
      for (const Index sequences : {0, 1, 2, 6, 1000}) {
        if (length * sequences > 20000) continue;
        Cpu::Context ctx(threads);
        std::vector<int> visits(static_cast<std::size_t>(length * sequences));
        mixing::for_sequences(ctx, length * sequences, length, {}, [&](Cpu::Context&, Index first, Index count) {
          if (first % length != 0 || count % length != 0) throw ArgumentError("a sequence was cut");
          for (Index i = first; i < first + count; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        for (const int n : visits) REQUIRE(n == 1);
      }
}

TEST_CASE("rows by head are a permutation within each block, and keys stand without gaps") {
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

TEST_CASE("products of a block: each row with the keys of the head that its item follows") {
  for (const Index length : {5, 256, 300}) {
    CAPTURE(length);
    const Index items = 2 * length, heads = 3, dim = 2;
    Followed f(heads, items, length);
    const auto queries = uniform_tensor<double>(f.ctx, Seed{1}, 1, items, dim);
    const auto keys = uniform_tensor<double>(f.ctx, Seed{2}, 1, heads * items, dim);
    mixing::for_each_block(f.ctx, items, length, true, mixing::Following<Cpu>::size, [&](auto& own, const mixing::Block& b) {
      auto mark = own.mark();
      const auto s = mixing::Products<double, Cpu>(own, b, f.following).scores(own, queries, keys);
      for (Index r = 0; r < b.all_rows(); ++r)
        for (Index j = 0; j < b.keys; ++j) {
          const Index row = b.row + r, key = f.following.key_for(f.following.item(row), b.first_key(r) + j);
          const double dot = queries(row, 0) * keys(key, 0) + queries(row, 1) * keys(key, 1);
          REQUIRE(s(r, j) == doctest::Approx(dot).epsilon(1e-13));
        }
    });
  }
}
