#include "gatefold/optim/schedule.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/in_groups.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::optim;

TEST_CASE("Warmup (1): equals the formula") {
  const Warmup warmup{4};
  CHECK(warmup.factor(1) == 0.25);
  CHECK(warmup.factor(2) == 0.5);
  CHECK(warmup.factor(3) == 0.75);
  CHECK(warmup.factor(4) == 1);
  CHECK(warmup.factor(5) == 1);
  CHECK(warmup.factor(Index(1) << 40) == 1);
  CHECK(Warmup{1}.factor(1) == 1);
  CHECK(Warmup{}.factor(1) == 1);
  for (Index t = 1; t <= 10; ++t) CHECK(Warmup{7}.factor(t) == std::min(1.0, static_cast<double>(t) / 7));
}

TEST_CASE("WarmupCosine (2): follows warm-up, half a cosine, then the floor") {
  const WarmupCosine schedule{.warmup = 10, .total = 110, .floor = 0.1};
  const double pi = std::acos(-1.0);
  for (Index t = 1; t <= 130; ++t) {
    double expected = 0.1;
    if (t < 10) {
      expected = static_cast<double>(t) / 10;
    } else if (t <= 110) {
      expected = 0.1 + 0.9 * (1 + std::cos(pi * static_cast<double>(t - 10) / 100)) / 2;
    }
    CAPTURE(t);
    CHECK(schedule.factor(t) == doctest::Approx(expected).epsilon(1e-14));
  }
  CHECK(schedule.factor(9) == 0.9);
  CHECK(schedule.factor(10) == 1);
  CHECK(schedule.factor(60) == support::rounded(0.55));
  CHECK(schedule.factor(110) == support::rounded(0.1));
  CHECK(schedule.factor(111) == support::rounded(0.1));
}

TEST_CASE("WarmupCosine: works without warm-up or floor") {
  const WarmupCosine schedule{.total = 2};
  CHECK(schedule.factor(1) == support::rounded(0.5));
  CHECK(std::abs(schedule.factor(2)) < 1e-15);
  CHECK(std::abs(schedule.factor(100)) < 1e-15);
}

TEST_CASE("WarmupCosine: a total within the warm-up throws") {
  CHECK_THROWS_WITH_AS((WarmupCosine{.warmup = 5, .total = 5}.factor(1)),
                       "WarmupCosine: total: expected more than warmup = 5, got 5", ArgumentError);
  CHECK_THROWS_AS(WarmupCosine{}.factor(1), ArgumentError);
  CHECK_THROWS_AS((WarmupCosine{.warmup = -1, .total = 5}.factor(1)), ArgumentError);
}

TEST_CASE_TEMPLATE("Scheduled: lr_t = lr · factor(t), t from 1", T, float, double) {
  Cpu::Context ctx(1);
  const Scheduled scheduled{Sgd{.lr = 0.5}, Warmup{4}};
  CHECK(rate_of(scheduled) == 0.5);
  Tensor<T, 1, Cpu> p(1), g(1);
  p(0) = 0, g(0) = 1;
  auto state = scheduled.begin(ctx, p);
  T expected = 0;
  for (int t = 1; t <= 6; ++t) {
    scheduled.step(ctx, p, g, state);
    expected -= static_cast<T>(0.125 * std::min(t, 4));  // exact
    CHECK(p(0) == expected);
  }
  CHECK(state.step == 6);
}

TEST_CASE("Scheduled: lr_t = lr · factor(t) also in measured_step") {
  Cpu::Context ctx(1);
  const Scheduled scheduled{Sgd{.lr = 0.5}, Warmup{4}};
  Tensor<double, 1, Cpu> p(1), g(1);
  p(0) = 0, g(0) = 1;
  auto state = scheduled.begin(ctx, p);
  double expected = 0;
  for (int t = 1; t <= 6; ++t) {
    auto mark = ctx.mark();
    measured_step(scheduled, ctx, p, g, state, measure_gradients(scheduled, ctx, g));
    expected -= 0.125 * std::min(t, 4);
    CHECK(p(0) == expected);
  }
}

TEST_CASE("Scheduled: a rate changed during a run takes effect") {
  // Nested wrappers share one rate, that of the innermost optimizer.
  const auto check = [](auto optimizer, double& (*rate)(decltype(optimizer)&)) {
    Cpu::Context ctx(1);
    Tensor<double, 1, Cpu> p(1), g(1);
    p(0) = 0;
    auto state = optimizer.begin(ctx, p);
    double expected = 0;
    for (const double lr : {1.0, 0.5, 0.0, 4.0}) {
      rate(optimizer) = lr;
      CHECK(rate_of(optimizer) == lr);
      g(0) = 0.5;
      auto mark = ctx.mark();
      measured_step(optimizer, ctx, p, g, state, measure_gradients(optimizer, ctx, g));
      expected -= 0.5 * lr * std::min(static_cast<double>(state.step) / 2, 1.0);
      CHECK(p(0) == expected);
    }
  };
  using Inner = Scheduled<Sgd, Warmup>;
  check(Inner{{}, {2}}, [](Inner& o) -> double& { return o.optimizer.lr; });
  using Inside = Clipped<Inner>;
  check(Inside{{{}, {2}}}, [](Inside& o) -> double& { return o.optimizer.optimizer.lr; });
  using Outside = Scheduled<Clipped<Sgd>, Warmup>;
  check(Outside{{}, {2}}, [](Outside& o) -> double& { return o.optimizer.optimizer.lr; });
  using Groups = Scheduled<InGroups<Clipped<Sgd>, Sgd>, Warmup>;
  static_assert(Optimizer<Groups>);
}

TEST_CASE("Scheduled: works inside and outside of Clipped") {
  Cpu::Context ctx(1);
  Tensor<double, 1, Cpu> p(1), q(1), g(1);
  p(0) = q(0) = 0;
  const Clipped outside{Scheduled{Sgd{.lr = 1}, Warmup{2}}, 1.0};
  const Scheduled inside{Clipped{Sgd{.lr = 1}, 1.0}, Warmup{2}};
  auto a = outside.begin(ctx, p);
  auto b = inside.begin(ctx, q);
  for (const double expected : {-0.5, -1.5, -2.5}) {
    g(0) = 10;
    outside.step(ctx, p, g, a);
    CHECK(g(0) == 1);
    g(0) = 10;
    inside.step(ctx, q, g, b);
    CHECK(p(0) == expected);
    CHECK(q(0) == expected);
  }
}
