#include "gatefold/metric/load.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/metric/fluctuation.hpp"
#include "gatefold/metric/routing_table.hpp"
#include "gatefold/papers/norm_rank.hpp"
#include "gatefold/papers/pareto_gap.hpp"
#include "support/pass.hpp"
#include "support/plans.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("load (1): counts picks and dropped picks, without padding") {
  Cpu::Context ctx(2);
  const std::vector<Pick> picks{{0, 2}, {0, 0}, {1, 2}, {1, -1}, {2, 2}, {2, 1}, {3, -1}, {3, 0}};
  const auto plan = plan_of<float>(ctx, 4, 4, picks);
  const auto all = metric::load(ctx, plan);
  CHECK(all.counts == std::vector<Index>{2, 1, 3, 0});
  CHECK(all.dropped == 2);
  CHECK(all.picks() == 6);
  const auto fewer = metric::load(ctx, plan_of<float>(ctx, 2, 4, {{0, 2}, {0, no_pick}, {1, ~Index(3)}, {1, 1}}));
  CHECK(fewer.counts == std::vector<Index>{0, 1, 1, 0});
  CHECK(fewer.dropped == 1);  // an unused entry (no_pick) does not count as dropped
  const std::vector<float> valid{1, 1, 0, 0}, one{1};
  const auto some = metric::load(ctx, plan, valid);
  CHECK(some.counts == std::vector<Index>{1, 0, 2, 0});
  CHECK(some.dropped == 1);
  CHECK(message_of([&] { (void)metric::load(ctx, plan, one); }) == "load: valid: expected [4], got [1]");
}

TEST_CASE("metrics: work for a new plan without items and experts") {
  Cpu::Context ctx(1);
  const SparsePlan<float, Cpu> plan;
  CHECK(plan.items() == 0);
  CHECK(plan.experts() == 0);
  const auto load = metric::load(ctx, plan);
  CHECK(load.counts.empty());
  CHECK(load.dropped == 0);
  CHECK(load.largest_share() == 0);
  CHECK(load.coefficient_of_variation() == 0);
  CHECK(metric::picks(ctx, plan, 2).extent(0) == 0);
  CHECK(metric::gate_weights(ctx, plan).extent(0) == 0);
  const std::vector<Index> labels{0, 1};
  CHECK(message_of([&] { (void)metric::routing_table(ctx, plan, labels, 2); }) ==
        "routing_table: labels: expected [0], got [2]");
  CHECK(metric::experts_by_norm(ctx, plan, Tensor<float, 2, Cpu>(0, 3)).empty());
}

TEST_CASE("load (2): returns the coefficient of variation") {
  const metric::Load l{{2, 1, 3, 0}, 0};
  const double squares = 0.25 + 0.25 + 2.25 + 2.25, mean = 1.5;
  CHECK(l.coefficient_of_variation() == doctest::Approx(std::sqrt(squares / 4) / mean).epsilon(1e-15));
  CHECK(l.coefficient_of_variation(1) == doctest::Approx(std::sqrt(squares / 3) / mean).epsilon(1e-15));
  CHECK(metric::Load{{5, 5, 5}, 0}.coefficient_of_variation() == 0);
  CHECK(metric::Load{{0, 9, 0, 0, 0}, 0}.coefficient_of_variation() == rounded(2));  // sqrt(E - 1)
  CHECK(metric::Load{{7}, 0}.coefficient_of_variation(1) == 0);
  CHECK(message_of([&] { (void)l.coefficient_of_variation(-1); }) == "Load: ddof: expected at least 0, got -1");
}

TEST_CASE("load (3), (4): returns shares and overflow") {
  const metric::Load l{{2, 1, 5, 0}, 2};
  CHECK(l.largest_share() == 5.0 / 8);
  CHECK(l.smallest_share() == 0);
  CHECK(l.overflow() == 0.2);
  CHECK(metric::Load{{1, 3}, 0}.smallest_share() == 0.25);
}

TEST_CASE("load: works without picks and without items") {
  Cpu::Context ctx(1);
  const auto none = metric::load(ctx, plan_of<double>(ctx, 0, 3, {}));
  CHECK(none.counts == std::vector<Index>{0, 0, 0});
  CHECK(none.coefficient_of_variation() == 0);
  CHECK(none.largest_share() == 0);
  CHECK(none.overflow() == 0);
  CHECK(metric::load(ctx, plan_of<double>(ctx, 1, 3, {{0, -1}})).overflow() == 1);
}

TEST_CASE("entropy (1): returns -sum q ln q for each item") {
  Cpu::Context ctx(2);
  const auto q = matrix<double>({{0.25, 0.25, 0.25, 0.25}, {0, 1, 0, 0}, {0.5, 0, 0.5, 0}, {0.7, 0.1, 0.1, 0.1}});
  const auto h = metric::entropies(ctx, q.view());
  REQUIRE(h.size() == 4);
  CHECK(h[0] == doctest::Approx(std::log(4.0)).epsilon(1e-15));
  CHECK(h[1] == 0);
  CHECK(h[2] == doctest::Approx(std::log(2.0)).epsilon(1e-15));
  CHECK(h[3] == doctest::Approx(-0.7 * std::log(0.7) - 0.3 * std::log(0.1)).epsilon(1e-15));
}

TEST_CASE("entropy (2): the mean over items excludes padding") {
  Cpu::Context ctx(2);
  auto q = matrix<float>({{0.5, 0.5}, {1, 0}, {quiet_nan, 0}});
  const std::vector<float> valid{1, 1, 0}, one{1};
  CHECK(std::isnan(metric::entropy(ctx, q.view())));
  CHECK(metric::entropy(ctx, q.view(), valid) == doctest::Approx(std::log(2.0) / 2).epsilon(1e-15));
  CHECK(metric::entropy(ctx, q.view().rows(0, 0)) == 0);
  CHECK(message_of([&] { (void)metric::entropy(ctx, q.view(), one); }) == "metric: valid: expected [3], got [1]");
}
