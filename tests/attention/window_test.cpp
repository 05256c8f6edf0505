#include "gatefold/attention/window.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "gatefold/attention/blocks.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::detail_::attending;
using namespace gatefold::support;

TEST_CASE("Window (1): one block has a row's visible keys") {
  for (const bool itself : {true, false})
    for (const Index length : {1, 2, 5, 128, 129, 300})
      for (const Index past : {0, 1, 7, 200, 600})
        for (const Index width : {1, 3, 8, 257, 700}) {
          const Window window{length, past, width, itself};
          const Index sequences = 3, keys = window.keys();
          std::vector<std::vector<std::pair<Index, Index>>> met(std::size_t(sequences * length));  // key and place
          for_each_window_block(window, sequences, [&](const detail_::attending::Block& block) {
            REQUIRE(block.row % length + block.rows <= length);
            for (Index r = 0; r < block.all_rows(); ++r) {
              const auto seen = window.seen(block, block.row + r);
              REQUIRE(seen.first + seen.count <= block.keys);
              auto& of_row = met[std::size_t(block.row + r)];
              REQUIRE(of_row.empty());  // all keys in one block
              for (Index j = 0; j < seen.count; ++j)
                of_row.push_back({block.first_key(r) + seen.first + j, seen.place + j});
            }
          });
          for (Index n = 0; n < sequences * length; ++n) {
            std::vector<std::pair<Index, Index>> expected;
            bool sees = true;
            const Index g = n / length, i = past + n % length;  // the item's own place among the keys
            for (Index o = 0; o < width; ++o) {
              const Index j = i + o - (itself ? width - 1 : width);
              if (j >= 0) expected.push_back({g * keys + j, o});
              sees = sees && window.sees(n % length, j);
            }
            REQUIRE(sees);
            REQUIRE_FALSE(window.sees(n % length, i + (itself ? 1 : 0)));
            REQUIRE_FALSE(window.sees(n % length, i - width - (itself ? 0 : 1)));
            REQUIRE(met[std::size_t(n)] == expected);
          }
        }
}

TEST_CASE("Window (2): one block has a row's visible chunk keys") {
  for (const Index length : {1, 2, 5, 128, 129, 300})
    for (const Index past : {0, 1, 7, 200, 600})
      for (const Index width : {1, 3, 8, 257, 700})
        for (const Index before : {0, 1, 500}) {  // items that are no longer remembered
          const Window window{length, past, width, true, true, past + before};
          const Index sequences = 3, keys = window.keys();
          std::vector<std::vector<Index>> met(std::size_t(sequences * length));
          for_each_window_block(window, sequences, [&](const detail_::attending::Block& block) {
            REQUIRE(block.row % length + block.rows <= length);
            for (Index r = 0; r < block.all_rows(); ++r) {
              const auto seen = window.seen(block, block.row + r);
              REQUIRE(seen.first + seen.count <= block.keys);
              auto& of_row = met[std::size_t(block.row + r)];
              REQUIRE(of_row.empty());  // all keys in one block
              for (Index j = 0; j < seen.count; ++j) of_row.push_back(block.first_key(r) + seen.first + j);
            }
          });
          for (Index n = 0; n < sequences * length; ++n) {
            std::vector<Index> expected;
            bool sees = true;
            for (Index j = 0; j <= past + n % length; ++j) {  // key j has the position j + before
              const bool same = (j + before) / width == (past + n % length + before) / width;
              sees = sees && window.sees(n % length, j) == same;
              if (same) expected.push_back(n / length * keys + j);
            }
            REQUIRE(sees);
            REQUIRE(met[std::size_t(n)] == expected);
          }
        }
}

TEST_CASE("Window: blocks of a sequence ignore other sequences") {
  for (const auto& window :
       {Window{3, 2, 4}, Window{40, 60, 100}, Window{1, 1023, 1024}, Window{200, 700, 500}, Window{1, 70000, 70001},
        Window{300, 0, 900, false}, Window{300, 0, 200, true, true, 0}, Window{300, 700, 500, true, true, 950}}) {
    std::map<Index, Index> cuts;  // first row -> number of keys, for each block of the first sequence
    for (const Index sequences : {1, 2, 7}) {
      std::map<Index, Index> now;
      for_each_window_block(window, sequences, [&](const detail_::attending::Block& block) {
        if (block.row >= window.length) return;
        now[block.row] = block.keys;
        CHECK((block.rows == 1 || block.all_rows() * block.keys <= BlockSize{}.rows * BlockSize{}.keys));
      });
      if (cuts.empty()) cuts = now;
      CHECK(now == cuts);
    }
  }
}

/// Returns for each item the keys at which the sum over its visible keys is cut.
std::vector<std::vector<Index>> cuts(const Window& window) {
  std::vector<std::vector<Index>> all(std::size_t(window.length));
  for_each_window_block(window, 1, [&](const detail_::attending::Block& block) {
    for (Index r = 0; r < block.rows; ++r)
      for (Index key = block.key + keys_of_a_chain; key < block.key + block.keys; key += keys_of_a_chain)
        if (window.sees(block.row + r, key - 1) && window.sees(block.row + r, key))
          all[std::size_t(block.row + r)].push_back(key);
  });
  return all;
}

TEST_CASE("Window: blocks of sums do not depend on later items") {
  static_assert(keys_of_a_chain == cpu::Tile<float>::depth && keys_of_a_chain == cpu::Tile<double>::depth);
  const Index lengths[] = {1, 2, 50, 102, 103, 128, 129, 150, 200, 255, 256, 257, 300, 500, 900};
  for (const bool itself : {true, false})
    for (const Index width : {1, 5, 64, 100, 127, 128, 129, 200, 256, 257, 512, 1024, 5000})
      for (const Index past : {Index(0), width / 2, width - 1, width, width + 100}) {
        CAPTURE(width);
        CAPTURE(past);
        const auto longest = cuts({1500, past, width, itself});
        for (const Index length : lengths) {
          auto expected = longest;
          expected.resize(std::size_t(length));
          CHECK(cuts({length, past, width, itself}) == expected);
        }
        if (width <= 128) CHECK(longest == std::vector<std::vector<Index>>(1500));
      }
}

/// Returns for each item the keys at which the sum over its chunk is cut, counted from the first key of the chunk.
std::vector<std::vector<Index>> cuts_of_chunk(Index position, Index past, Index length, Index width) {
  const Window window{length, past, width, true, true, position};
  auto all = cuts(window);
  for (Index t = 0; t < length; ++t)
    for (Index& key : all[std::size_t(t)]) key -= window.first(t);
  return all;
}

TEST_CASE("Window: segments do not change sums over a chunk") {
  constexpr Index items = 1500;
  for (const Index width : {1, 5, 64, 127, 128, 129, 200, 256, 257, 300, 500, 512, 1024, 5000}) {
    CAPTURE(width);
    const auto whole = cuts_of_chunk(0, 0, items, width);
    for (const Index step : {1, 3, 90, 100, 128, 255, 700})
      for (const bool all : {false, true}) {  // remembered: at most width − 1 items, or all items
        auto parts = whole;
        for (Index first = 0; first < items; first += step) {
          const Index length = std::min(step, items - first), past = all ? first : std::min(first, width - 1);
          const auto part = cuts_of_chunk(first, past, length, width);
          std::copy(part.begin(), part.end(), parts.begin() + first);
        }
        CAPTURE(step);
        CHECK(parts == whole);
      }
  }
}

TEST_CASE("Window: an item's own key comes after the remembered keys") {
  const Window window{4, 3, 6};
  for (Index n = 0; n < 12; ++n) CHECK(window.own(n) == n / 4 * 7 + 3 + n % 4);
}

TEST_CASE("Window: most() and remembered() count the rows of memory") {
  CHECK(Window{4, 0, 6}.most() == 5);
  CHECK(Window{4, 0, 6, false}.most() == 6);
  CHECK(Window{4, 0, 6}.remembered() == 4);
  CHECK(Window{4, 4, 6}.remembered() == 5);
  CHECK(Window{9, 0, 1}.remembered() == 0);
}

using detail_::attending::Block;
using detail_::attending::Window;

namespace {

/// The scores of a block of rows, and the queries and places (relative positions) whose products are added to the
/// scores.
struct Scored {
  Cpu::Context ctx{2};
  Window window{.length = 5, .past = 2, .width = 4};
  Block block{.row = 5, .rows = 5, .key = 7, .keys = 7, .sequences = 2};  // the second and third sequence
  std::vector<double> keys = std::vector<double>(21, 1.0);
  Tensor<double, 2, Cpu> queries = uniform_tensor<double>(ctx, Seed{1}, 1, 15, 3);
  Tensor<double, 2, Cpu> places = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 3);
  Tensor<double, 2, Cpu> score = uniform_tensor<double>(ctx, Seed{3}, 1, 10, 7);

  /// Calls f(row of the block, column, place) for every key that a row sees.
  template <class F>
  void for_each_seen(const F& f) const {
    for (Index row = 0; row < 10; ++row)
      for (Index o = 0; o < window.width; ++o) {
        const Index j = window.past + row % 5 - (window.itself ? window.width - 1 : window.width) + o;
        if (j >= 0) f(row, j, o);
      }
  }
};

}  // namespace

TEST_CASE("positions (1): visible keys get their position's score") {
  for (const bool itself : {true, false}) {
    Scored s;
    s.window.itself = itself;
    s.keys[7 + 3] = -infinity;  // padding
    s.keys[14 + 4] = quiet_nan;
    auto expected = values(s.score);
    s.for_each_seen([&](Index row, Index j, Index o) {
      double& v = expected[std::size_t(row * 7 + j)];
      const double key = s.keys[std::size_t(7 + row / 5 * 7 + j)];
      for (Index d = 0; d < 3; ++d) v += s.queries(5 + row, d) * s.places(o, d);
      if (!(key > 0)) v = key;
    });
    auto mark = s.ctx.mark();
    const auto position =
        detail_::attending::position_scores<Cpu::Context, double, Cpu>(s.ctx, s.block, s.queries, s.places);
    Cpu::for_rows(s.ctx, 10, functor::WindowScores<double, Cpu>{s.window, s.block, s.keys, position, s.score, {}});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double v = s.score.data()[i];
      if (std::isfinite(expected[i]))
        CHECK(std::abs(v - expected[i]) <= 1e-14);
      else
        CHECK((std::isnan(expected[i]) ? std::isnan(v) : v == expected[i]));
    }
  }
}

TEST_CASE("positions: gradients of scores reach positions and queries") {
  Scored s;
  Tensor<double, 2, Cpu> dqueries = constant_tensor<double>(s.ctx, 1, 15, 3), expected(10, 4);
  fill(s.ctx, expected.view(), 0);
  s.for_each_seen([&](Index row, Index j, Index o) { expected(row, o) = s.score(row, j); });
  auto mark = s.ctx.mark();
  const auto dposition = detail_::attending::position_scores_backward<Cpu::Context, double, Cpu>(
      s.ctx, s.block, s.window, {}, s.score, s.places, dqueries);
  for (Index i = 0; i < expected.size(); ++i) CHECK(dposition.data()[i] == expected.data()[i]);
  for (Index n = 0; n < 15; ++n)
    for (Index d = 0; d < 3; ++d) {
      double v = 1;
      for (Index o = 0; o < 4 && n >= 5; ++o) v += expected(n - 5, o) * s.places(o, d);
      CHECK(std::abs(dqueries(n, d) - v) <= 1e-14);
    }
  CHECK(detail_::attending::position_scores<Cpu::Context, double, Cpu>(s.ctx, s.block, s.queries, {}).empty());
}
