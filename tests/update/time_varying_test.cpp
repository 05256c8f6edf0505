#include "gatefold/update/time_varying.hpp"

#include <doctest/doctest.h>

#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("TimeVarying (1): equals loops over four layers") {
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
