#include "gatefold/metric/fluctuation.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/pass.hpp"
#include "support/plans.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

std::vector<Index> numbers(const Tensor<Index, 2, Cpu>& t) { return {t.data(), t.data() + t.size()}; }

}  // namespace

TEST_CASE("fluctuation (1)-(3): counts changed sets, orders and best experts") {
  Cpu::Context ctx(2);
  // The items in order: same, swapped, first kept, all new, one lost, one gained, the other of two picks dropped
  const auto before = matrix<Index>({{0, 1}, {0, 1}, {2, 3}, {0, 1}, {4, 2}, {4, -1}, {3, -1}});
  const auto after = matrix<Index>({{0, 1}, {1, 0}, {2, 0}, {2, 3}, {4, -1}, {4, 2}, {-1, 3}});
  const auto f = metric::fluctuation(ctx, before.view(), after.view());
  CHECK(f.set == 4.0 / 7);      // first kept, all new, one lost, one gained
  CHECK(f.ordered == 6.0 / 7);  // all but same
  CHECK(f.first == 3.0 / 7);    // swapped, all new, the other of two picks dropped
  const std::vector<float> valid{1, 1, 0, 0, 0, 0, 0};
  const auto g = metric::fluctuation(ctx, before.view(), after.view(), View<const float, 1, Cpu>(valid));
  CHECK(g.set == 0);
  CHECK(g.ordered == 0.5);
  CHECK(g.first == 0.5);
}

TEST_CASE("fluctuation: works for another K and without items") {
  Cpu::Context ctx(1);
  const auto two = matrix<Index>({{1, 0}, {2, 1}}), one = matrix<Index>({{1}, {1}}),
             same = matrix<Index>({{1, -1}, {1, 1}});
  const auto f = metric::fluctuation(ctx, two.view(), one.view());
  CHECK(f.set == 1);
  CHECK(f.ordered == 1);
  CHECK(f.first == 0.5);
  CHECK(metric::fluctuation(ctx, one.view(), same.view()).set == 0);
  CHECK(metric::fluctuation(ctx, two.view().rows(0, 0), two.view().rows(0, 0)).set == 0);
  CHECK(message_of([&] { (void)metric::fluctuation(ctx, two.view(), two.view().rows(0, 1)); }) ==
        "fluctuation: after: expected [2, ?], got [1, 2]");
}

TEST_CASE("picks: sorts an item's experts by descending weight") {
  Cpu::Context ctx(2);
  const auto plan = plan_of<float>(ctx, 5, 4,
                                   {{2, 3, 0.5},
                                    {0, 2, 0.3},
                                    {1, 1, 0.2},
                                    {0, 0, 0.7},
                                    {2, 1, 0.5},
                                    {1, -1, 0.9},
                                    {4, 0, quiet_nan},
                                    {4, 2, 0.1},
                                    {2, 0, 0.1}});
  CHECK(numbers(metric::picks(ctx, plan, 2)) == std::vector<Index>{0, 2, 1, -1, 1, 3, -1, -1, 2, 0});
  CHECK(numbers(metric::picks(ctx, plan, 1)) == std::vector<Index>{0, 1, 1, -1, 2});
  CHECK(message_of([&] { (void)metric::picks(ctx, plan, 0); }) == "picks: k: expected at least 1, got 0");
}
