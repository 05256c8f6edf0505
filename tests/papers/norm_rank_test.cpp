#include "gatefold/papers/norm_rank.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "support/pass.hpp"
#include "support/plans.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("norm_rank (1), (2): returns shares of picks by norm rank") {
  Cpu::Context ctx(2);
  const Index items = 13, experts = 4, dim = 3;
  auto u = uniform_tensor<double>(ctx, Seed{4}, 1, items, experts, dim);
  std::vector<Pick> picks{{5, -1}};
  for (Index n = 0; n < items; ++n)
    for (Index j = 0; j < 2; ++j) picks.push_back({n, (n * 3 + j + n / 4 + 1) % experts});
  std::vector<double> valid(static_cast<std::size_t>(items), 1.0);
  valid[7] = 0;
  std::vector<double> expected(4, 0.0);
  for (const Pick& p : picks) {
    if (p.expert < 0 || p.item == 7) continue;
    const auto squares = [&](Index e) {
      double s = 0;
      for (Index d = 0; d < dim; ++d) s += u(p.item, e, d) * u(p.item, e, d);
      return s;
    };
    std::size_t rank = 0;
    for (Index e = 0; e < experts; ++e)
      rank += squares(e) > squares(p.expert) || (squares(e) == squares(p.expert) && e < p.expert);
    expected[rank] += 1.0 / 24;
  }
  const auto plan = plan_of<double>(ctx, items, experts, picks);
  const auto share = metric::norm_rank(ctx, plan, u, valid);
  CHECK(difference(share, expected) <= 1e-15);
  CHECK(expected[0] != expected[3]);  // otherwise a reversed order would pass
  CHECK(message_of([&] { (void)metric::norm_rank(ctx, plan, u.view().as(experts, items, dim)); }) ==
        "norm_rank: outputs: expected [13, 4, ?], got [4, 13, 3]");
  const auto none = plan_of<double>(ctx, 0, 2, {});
  CHECK(metric::norm_rank(ctx, none, u.view().rows(0, 0).as(0, 2, 3)) == std::vector<double>{0, 0});
}

TEST_CASE("norm_rank: ties go to the lower expert index") {
  Cpu::Context ctx(1);
  const auto u = constant_tensor<float>(ctx, 2, 3, 3, 2);
  const auto plan = plan_of<float>(ctx, 3, 3, {{0, 2}, {1, 2}, {2, 1}});
  const auto share = metric::norm_rank(ctx, plan, u);
  CHECK(share[0] == 0);
  CHECK(share[1] == rounded(1.0 / 3));
  CHECK(share[2] == rounded(2.0 / 3));
}

TEST_CASE("norm_rank, experts_by_norm: NaN is last; ties go by index") {
  Cpu::Context ctx(1);
  auto u = constant_tensor<double>(ctx, 1, 1, 4, 1);  // norms 1, NaN, 2, NaN
  u(0, 1, 0) = u(0, 3, 0) = quiet_nan;
  u(0, 2, 0) = 2;
  for (const auto& [expert, rank] : {std::pair<Index, std::size_t>{0, 1}, {1, 2}, {2, 0}, {3, 3}}) {
    const auto share = metric::norm_rank(ctx, plan_of<double>(ctx, 1, 4, {{0, expert}}), u);
    CHECK(share[rank] == 1);
  }
  std::vector<Pick> picks;
  for (Index n = 0; n < 40; ++n) picks.push_back({n, n});
  Tensor<double, 2, Cpu> z(40, 1);  // NaN, 0, 0, NaN, 0, 0, NaN, 1, 1, …
  for (Index s = 0; s < 40; ++s) z(s, 0) = s % 3 ? double(s / 6) : quiet_nan;
  const auto order = metric::experts_by_norm(ctx, plan_of<double>(ctx, 40, 40, picks), z);
  REQUIRE(order.size() == 40);
  for (std::size_t i = 0; i + 1 < 40; ++i) {
    const auto &a = order[i], &b = order[i + 1];
    const bool last_number = !std::isnan(a.norm) && std::isnan(b.norm);
    CHECK((last_number || a.norm > b.norm ||
           ((a.norm == b.norm || (std::isnan(a.norm) && std::isnan(b.norm))) && a.expert < b.expert)));
  }
}

TEST_CASE("experts_by_norm (3): sorts experts by mean norm, largest first") {
  Cpu::Context ctx(2);
  // Expert 0 has slots for items 1 and 2, and expert 2 has slots for items 0 and 1. One pick is dropped.
  const auto plan = plan_of<float>(ctx, 3, 3, {{0, 2}, {1, 0}, {1, 2}, {2, 0}, {2, -1}});
  const auto z = matrix<float>({{3, 4}, {0, 1}, {6, 8}, {0, -2}, {quiet_nan, quiet_nan}});
  const auto all = metric::experts_by_norm(ctx, plan, z);
  REQUIRE(all.size() == 3);
  CHECK(all[0].expert == 2);
  CHECK(all[0].norm == 6);
  CHECK(all[1].expert == 0);
  CHECK(all[1].norm == 3);
  CHECK(all[1].share == 0.5);
  CHECK(all[2].expert == 1);
  CHECK(all[2].share == 0);
  const std::vector<float> valid{1, 0, 1};
  const auto some = metric::experts_by_norm(ctx, plan, z, valid);
  CHECK(some[0].norm == 10);
  CHECK(some[1].norm == 1);
  CHECK(message_of([&] { (void)metric::experts_by_norm(ctx, plan, z.view().rows(0, 4)); }) ==
        "experts_by_norm: z: expected [5, ?], got [4, 2]");
}

TEST_CASE("mean_norm (4): averages the norms of items, without padding") {
  Cpu::Context ctx(1);
  const auto u = matrix<double>({{3, 4}, {0, 0}, {quiet_nan, 0}});
  const std::vector<double> valid{1, 1, 0};
  CHECK(metric::mean_norm(ctx, u.view(), valid) == 2.5);
}
