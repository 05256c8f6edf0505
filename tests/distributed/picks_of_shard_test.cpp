#include "gatefold/distributed/picks_of_shard.hpp"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

TEST_CASE("picks: a range of items keeps its picks and order") {
  Cpu::Context ctx(1);
  SparsePlan<double, Cpu> all, own;
  all.resize(4, 3, 7);
  // Picks of items 3, 1, 2, 1, 0, 2, and a place that no pick uses. The first pick of item 2 was dropped.
  const std::vector<Index> item{3, 1, 2, 1, 0, 2, 1}, expert{0, 2, ~Index(1), 0, 1, 2, no_pick};
  for (Index p = 0; p < 7; ++p) {
    const auto i = static_cast<std::size_t>(p);
    all.item(p) = item[i];
    all.expert(p) = expert[i];
    all.weight(p) = 0.5 + static_cast<double>(p);
  }
  all.build(ctx);
  Tensor<Index, 1, Cpu> picks;
  dist::take_picks(ctx, all, 1, 2, picks, own);  // items 1 and 2
  const auto values = [](const auto& t) { return std::vector(t.data(), t.data() + t.size()); };
  CHECK(values(picks) == std::vector<Index>{1, 2, 3, 5});
  CHECK(values(own.item) == std::vector<Index>{0, 1, 0, 1});
  CHECK(values(own.expert) == std::vector<Index>{2, ~Index(1), 0, 2});
  CHECK(values(own.weight) == std::vector<double>{1.5, 2.5, 3.5, 5.5});
  CHECK(own.items() == 2);
  CHECK(values(own.offsets) == std::vector<Index>{0, 1, 1, 3});

  Tensor<double, 1, Cpu> d(4), dall = constant_tensor<double>(ctx, 0, 7);
  for (Index i = 0; i < 4; ++i) d(i) = 1 + static_cast<double>(i);
  dist::give_picks<double, Cpu>(ctx, picks, d, dall);
  CHECK(values(dall) == std::vector<double>{0, 1, 2, 3, 0, 4, 0});
}
