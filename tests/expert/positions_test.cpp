#include "gatefold/expert/positions.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const std::vector<Index> offsets{0, 2, 2, 5}, rows{4, 1, 0, 4, 3, -1, -1};  // two spare slots
const Groups<Cpu> items{offsets, rows, 7};

}  // namespace

TEST_CASE("Positions (1): without `apart`, positions of a slot are consecutive") {
  Cpu::Context ctx(1);
  auto mark = ctx.mark();
  const Positions<Cpu> positions{items, 3};
  const auto g = position_groups(ctx, positions);
  CHECK(g.experts() == 3);
  CHECK(g.slots == 21);
  for (Index s = 0; s < 5; ++s)
    for (Index l = 0; l < 3; ++l) {
      CHECK(positions.slot(s, l) == 3 * s + l);
      CHECK(g.expert(3 * s + l) == items.expert(s));
      CHECK(g.row(3 * s + l) == 3 * items.row(s) + l);
    }
  CHECK(g.expert(15) == -1);
}

TEST_CASE("Positions (2): with `apart`, each position counts as an expert") {
  Cpu::Context ctx(1);
  auto mark = ctx.mark();
  const Positions<Cpu> positions{items, 3, true};
  const auto g = position_groups(ctx, positions);
  CHECK(g.experts() == 9);
  std::vector<int> used(15, 0);
  for (Index s = 0; s < 5; ++s)
    for (Index l = 0; l < 3; ++l) {
      const Index t = positions.slot(s, l);
      REQUIRE(t < 15);
      ++used[std::size_t(t)];
      CHECK(g.expert(t) == 3 * items.expert(s) + l);
      CHECK(g.row(t) == 3 * items.row(s) + l);
    }
  CHECK(used == std::vector<int>(15, 1));
  CHECK(g.expert(15) == -1);
}

TEST_CASE("Positions: works for a range of experts") {
  Cpu::Context ctx(1);
  for (const bool apart : {false, true}) {
    auto mark = ctx.mark();
    const Positions<Cpu> positions{items.experts(2, 1), 2, apart};
    const auto g = position_groups(ctx, positions);
    CHECK(g.offsets(0) == 4);
    CHECK(g.offsets(g.experts()) == 10);
    for (Index s = 2; s < 5; ++s)
      for (Index l = 0; l < 2; ++l) {
        CHECK(g.expert(positions.slot(s, l)) == (apart ? l : 0));
        CHECK(g.row(positions.slot(s, l)) == 2 * items.row(s) + l);
      }
  }
}

TEST_CASE("add_rows: adds gathered rows to used slots") {
  Cpu::Context ctx(2);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 5, 3);
  auto y = constant_tensor<double>(ctx, 2, 7, 3);
  add_rows(ctx, items, x, y.view());
  for (Index s = 0; s < 7; ++s)
    for (Index j = 0; j < 3; ++j) CHECK(y(s, j) == (s < 5 ? 2 + x(rows[std::size_t(s)], j) : 2));

  auto narrow = constant_tensor<double>(ctx, 2, 7, 1);
  add_rows(ctx, items, x, narrow.view(), 2);
  for (Index s = 0; s < 7; ++s) CHECK(narrow(s, 0) == (s < 5 ? 2 + x(rows[std::size_t(s)], 2) : 2));
}

TEST_CASE("take_rows: copies columns of gathered rows to used slots") {
  Cpu::Context ctx(2);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 5, 6);
  auto y = constant_tensor<double>(ctx, quiet_nan, 7, 2);
  take_rows(ctx, items, x, y.view(), 3);
  for (Index s = 0; s < 7; ++s)
    for (Index j = 0; j < 2; ++j) CHECK((s < 5 ? y(s, j) == x(rows[std::size_t(s)], 3 + j) : y(s, j) != y(s, j)));
}
