#include "gatefold/update/scheduled_momentum.hpp"

#include <doctest/doctest.h>

#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// A schedule of a user: momentum of either sign, different in each layer.
struct Alternating {
  double mu(Index t) const { return t % 2 ? 0.1 * static_cast<double>(t) : -0.3 / static_cast<double>(t); }
};
using Rule = update::ScheduledMomentum<Alternating>;

}  // namespace

TEST_CASE("ScheduledMomentum (1): layer t uses the schedule's μ_t") {
  Cpu::Context ctx(1);
  Numbers momentum(12, 0);
  auto p = follow(ctx, Rule{.schedule = {}, .gamma = 0.7}, [&](int t, const Numbers& x, const Evaluate& u) {
    momentum = (t == 1 ? 0.1 : t == 2 ? -0.15 : t == 3 ? 0.3 : -0.075) * momentum + u(x);
    return x + 0.7 * momentum;
  });
  CHECK(difference(values(p.carry), momentum) <= 1e-14);
  CHECK(p.carry.layer == 4);
}

TEST_CASE("ScheduledMomentum: begin resets the layer count") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{Rule{}, Swirl{}}, 3}, 3);
  p.forward();
  const auto once = values(p.y);
  CHECK(p.carry.layer == 3);
  p.layer.begin(ctx, p.params, 3, p.carry);
  CHECK(p.carry.layer == 0);
  p.forward();
  CHECK(same_bits(values(p.y), once));
}

TEST_CASE("ScheduledMomentum: gradients and conformance, also in a Chain") {
  keeps_its_promises(Rule{});
  survives_a_chain(Rule{});
}

TEST_CASE("TimeVarying (1): μ grows over four layers") {
  Cpu::Context ctx(1);
  const double mu[] = {0, 1. / 4, 2. / 5, 3. / 6};
  Numbers momentum(12, 0);
  auto p = follow(ctx, update::TimeVarying{.gamma = 1.2}, [&](int t, const Numbers& x, const Evaluate& u) {
    momentum = mu[t - 1] * momentum + u(x);
    return x + 1.2 * momentum;
  });
  CHECK(difference(values(p.carry), momentum) <= 1e-14);
}

TEST_CASE("TimeVarying: a carry of another batch throws") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{update::TimeVarying{}, Swirl{}}, 4}, 3);
  p.carry.p.resize(2, 4);
  CHECK(message_of([&] { p.forward(); }) == "ScheduledMomentum: carry.p: expected [3, 4], got [2, 4]");
  CHECK(p.untouched());
}

TEST_CASE("TimeVarying: gradients and conformance; layer one ignores the carry") {
  keeps_its_promises(update::TimeVarying{}, {.gradients = {.zero = {"carry.p"}}, .items_are_independent = true});
}

TEST_CASE("ScheduledMomentum: NaN or infinite coefficients throw") {
  CHECK(refusal(update::TimeVarying{.gamma = quiet_nan}) ==
        "ScheduledMomentum: gamma: expected a finite number, got nan");
}

TEST_CASE("ScheduledRestart (1): restarts after layers 3 and 6") {
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

TEST_CASE("ScheduledRestart (1): μ follows other periods and offsets") {
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
