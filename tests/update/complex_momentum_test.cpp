#include "gatefold/update/complex_momentum.hpp"

#include <doctest/doctest.h>

#include <complex>

#include "gatefold/update/momentum.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("ComplexMomentum (1): equals std::complex arithmetic over four layers") {
  Cpu::Context ctx(1);
  for (const update::ComplexMomentum& rule :
       {update::ComplexMomentum{}, update::ComplexMomentum{.modulus = 0.9, .phase = 2.1, .gamma = 0.6}}) {
    const std::complex<double> mu = std::polar(rule.modulus, rule.phase);
    std::vector<std::complex<double>> p(12, 0);
    auto run = follow(ctx, rule, [&](int, const Numbers& x, const Evaluate& evaluate) {
      const Numbers u = evaluate(x);
      Numbers y = x;
      for (std::size_t i = 0; i < 12; ++i) {
        p[i] = mu * p[i] + u[i];
        y[i] += rule.gamma * p[i].real();
      }
      return y;
    });
    for (std::size_t i = 0; i < 12; ++i) {
      CHECK(run.carry.re.data()[i] == doctest::Approx(p[i].real()).epsilon(1e-13));
      CHECK(run.carry.im.data()[i] == doctest::Approx(p[i].imag()).epsilon(1e-13));
    }
  }
}

TEST_CASE("ComplexMomentum: phase 0 equals HeavyBall, phase π negative momentum") {
  Cpu::Context ctx(1);
  const auto agree = [&](double phase, double mu, double tolerance) {
    auto turning = pass<double>(ctx, Stack{Residual{update::ComplexMomentum{.phase = phase}, Swirl{}}, 4}, 3);
    auto ball = pass<double>(ctx, Stack{Residual{update::HeavyBall{.mu = mu}, Swirl{}}, 4}, 3);
    turning.forward();
    ball.forward();
    CHECK(difference(values(turning.y), values(ball.y)) <= tolerance);
    CHECK(difference(values(turning.carry.re), values(ball.carry)) <= tolerance);
  };
  agree(0, 0.7, 0);
  agree(std::numbers::pi, -0.7, 1e-14);
}

TEST_CASE("ComplexMomentum: a carry of another batch throws") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{update::ComplexMomentum{}, Swirl{}}, 4}, 3);
  p.carry.im.resize(2, 4);
  CHECK(message_of([&] { p.forward(); }) == "ComplexMomentum: carry.im: expected [3, 4], got [2, 4]");
  CHECK(p.untouched());
}

TEST_CASE("ComplexMomentum: gradients and conformance through four layers") {
  keeps_its_promises(update::ComplexMomentum{});
  keeps_its_promises(update::ComplexMomentum{.modulus = 0.8, .phase = -1.2, .gamma = 0.5});
}

TEST_CASE("ComplexMomentum: NaN or infinite coefficients throw") {
  CHECK(refusal(update::ComplexMomentum{.modulus = quiet_nan}) ==
        "ComplexMomentum: modulus: expected a finite number, got nan");
  CHECK(refusal(update::ComplexMomentum{.phase = infinity}) ==
        "ComplexMomentum: phase: expected a finite number, got inf");
  CHECK(refusal(update::ComplexMomentum{.gamma = quiet_nan}) ==
        "ComplexMomentum: gamma: expected a finite number, got nan");
}
