#include "gatefold/update/scheduled_restart.hpp"

#include <doctest/doctest.h>

#include "gatefold/update/time_varying.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("ScheduledRestart (1): restarts after layers 3 and 6 equal loops") {
  Cpu::Context ctx(1);
  const double mu[] = {0, 1. / 4, 2. / 5, 0, 1. / 4, 2. / 5, 0};
  Numbers momentum(12, 0);
  auto p = follow(
      ctx, update::ScheduledRestart{},
      [&](int t, const Numbers& x, const Evaluate& u) {
        momentum = mu[t - 1] * momentum + u(x);
        return x + momentum;
      },
      7);
  CHECK(difference(values(p.carry), momentum) <= 1e-14);
}

TEST_CASE("ScheduledRestart (1): other periods and other origins of t") {
  const update::RestartingMu two{.period = 2, .offset = 0};
  CHECK(two.mu(1) == 0.25);
  CHECK(two.mu(2) == 0);
  CHECK(two.mu(3) == 0.25);
  const update::RestartingMu none{.period = 1};
  for (Index t = 1; t < 5; ++t) CHECK(none.mu(t) == 0);
  for (Index t = 1; t <= 9; ++t) CHECK(update::RestartingMu{}.mu(t) == update::GrowingMu{}.mu((t - 1) % 3 + 1));
  const update::RestartingMu printed{.offset = 0};  // (t mod 3)/(t mod 3 + 3)
  const double mu[] = {1. / 4, 2. / 5, 0, 1. / 4};
  for (Index t = 1; t <= 4; ++t) CHECK(printed.mu(t) == mu[t - 1]);
}

TEST_CASE("ScheduledRestart: options outside their range throw before any write") {
  Cpu::Context ctx(1);
  const auto says = [&](const update::RestartingMu& schedule) {
    auto p = pass<double>(ctx, Stack{Residual{update::ScheduledRestart{.schedule = schedule}, Swirl{}}, 7}, 3);
    const auto message = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    return message;
  };
  CHECK(says({.period = 0}) == "ScheduledRestart: period: expected at least 1, got 0");
  CHECK(says({.offset = -2}) == "ScheduledRestart: offset: expected at least -1, got -2");
}

TEST_CASE("ScheduledRestart: gradients and conformance through four layers") {
  keeps_its_promises(update::ScheduledRestart{},
                     {.gradients = {.zero = {"carry.p"}}, .items_are_independent = true});  // μ_1 = 0
  keeps_its_promises(update::ScheduledRestart{.schedule = {.period = 4, .offset = 1}, .gamma = 0.5});
}
