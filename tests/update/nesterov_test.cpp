#include "gatefold/update/nesterov.hpp"

#include <doctest/doctest.h>

#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("Nesterov (1): equals the paper's form, over four layers") {
  Cpu::Context ctx(1);
  const double mu = 0.6, gamma = 1.5;
  Numbers momentum(12, 0);
  auto p = follow(ctx, update::Nesterov{.mu = mu, .gamma = gamma}, [&](int, const Numbers& x, const Evaluate& u) {
    momentum = gamma * u(x + -mu * momentum) + mu * momentum;
    return x + momentum;
  });
  CHECK(difference(gamma * values(p.carry), momentum) <= 1e-14);
}

TEST_CASE("Nesterov (1): classical equals Nesterov's own form") {
  Cpu::Context ctx(1);
  const double mu = 0.6, gamma = 1.5;
  Numbers before;
  follow(ctx, update::Nesterov::classical(mu, gamma), [&](int t, const Numbers& x, const Evaluate& u) {
    const Numbers z = t == 1 ? x : x + mu * (x + -1.0 * before);
    before = x;
    return z + gamma * u(z);
  });
}

TEST_CASE("Nesterov: a carry of another batch throws") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{update::Nesterov{}, Swirl{}}, 4}, 3);
  p.carry.p.resize(2, 4);
  CHECK(message_of([&] { p.forward(); }) == "Nesterov: carry.p: expected [3, 4], got [2, 4]");
  CHECK(p.untouched());
}

TEST_CASE("Nesterov: gradients and conformance, looking back and ahead") {
  keeps_its_promises(update::Nesterov{});
  keeps_its_promises(update::Nesterov::classical(0.5, 0.8));
}

TEST_CASE("Nesterov: NaN or infinite coefficients throw") {
  CHECK(refusal(update::Nesterov{.mu = quiet_nan}) == "Nesterov: mu: expected a finite number, got nan");
  CHECK(refusal(update::Nesterov{.gamma = infinity}) == "Nesterov: gamma: expected a finite number, got inf");
}
