#include "gatefold/distributed/row_transfer.hpp"

#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "gatefold/distributed/shards.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;

TEST_CASE("PackedRows: adjacent ranges become one run, listed or in place") {
  Cpu::Context ctx(1);
  Tensor<Index, 1, Cpu> list(7);
  for (Index i = 0; i < 7; ++i) list(i) = 10 + i;
  const auto of = uniform_tensor<float>(ctx, Seed{1}, 1, 20, 3), packed = uniform_tensor<float>(ctx, Seed{2}, 1, 7, 3);
  const std::vector<dist::Range> ranges{{0, 2}, {2, 0}, {2, 1}, {5, 2}};
  for (const bool listed : {false, true}) {
    CAPTURE(listed);
    const dist::PackedRows<Cpu> rows{listed ? View<const Index, 1, Cpu>(list) : View<const Index, 1, Cpu>{}, 7, ranges};
    std::vector<std::array<Index, 3>> runs;  // first packed row, first other row, number of rows
    rows.each_run(of.view(), packed.view(), [&](const auto& of_run, const auto& from, const auto& in_packed) {
      CHECK(of_run.empty() == !listed);
      const Index first = (from.data() - of.data()) / 3;
      runs.push_back({(in_packed.data() - packed.data()) / 3, listed ? of_run(0) : first, in_packed.extent(0)});
    });
    const Index at = listed ? 10 : 0;
    CHECK(runs == std::vector<std::array<Index, 3>>{{0, at, 3}, {5, at + 5, 2}});
  }
}

TEST_CASE("carry_rows: shards send rows to the requested places") {
  dist::Alone world;
  dist::run(world, 2, [&](auto& shard) {
    Cpu::Context ctx(1);
    const Index me = shard.index();
    Tensor<float, 2, Cpu> from(3, 2);
    for (Index r = 0; r < 3; ++r) from(r, 0) = static_cast<float>(10 * me + r), from(r, 1) = -from(r, 0);
    // Each shard sends row 2 to shard 0 and row 0 to shard 1. It writes the row from shard 0 to row 1, and the row from
    // shard 1 to row 0.
    Tensor<Index, 1, Cpu> gives(2), takes(2);
    gives(0) = 2, gives(1) = 0, takes(0) = 1, takes(1) = 0;
    const std::vector<dist::Range> each{{0, 1}, {1, 1}};
    auto to = constant_tensor<float>(ctx, -1, 3, 2);
    dist::carry_rows<float, Cpu>(shard, ctx, false, {gives.view(), 2, each}, from.view(), {takes.view(), 2, each},
                                 to.view(), dist::NoWork{});
    const float row = me == 0 ? 2 : 0;
    CHECK(to(1, 0) == row);
    CHECK(to(1, 1) == -row);
    CHECK(to(0, 0) == 10 + row);
    CHECK(to(2, 0) == -1);
  });
}
