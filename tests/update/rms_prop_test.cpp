#include "gatefold/update/rms_prop.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>
#include <limits>

#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("RmsProp (1): averages squares over four layers") {
  Cpu::Context ctx(1);
  for (const update::RmsProp& rule : {update::RmsProp{}, update::RmsProp{.mu = 0.4, .gamma = 0.3, .epsilon = 0.2}}) {
    Numbers p(12, 0);
    auto run = follow(ctx, rule, [&](int, const Numbers& x, const Evaluate& evaluate) {
      const Numbers u = evaluate(x);
      p = each([&](double pi, double ui) { return rule.mu * pi + (1 - rule.mu) * ui * ui; }, p, u);
      return each([&](double xi, double ui, double pi) { return xi + rule.gamma * ui / std::sqrt(pi + rule.epsilon); },
                  x, u, p);
    });
    CHECK(difference(values(run.carry), p) <= 1e-13);
  }
}

TEST_CASE("RmsProp (1): small ε gives equal steps in layer one") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Residual{update::RmsProp{.mu = 0.75, .gamma = 0.5, .epsilon = 1e-16}, Swirl{}}, 3);
  p.forward();
  for (Index i = 0; i < 12; ++i)
    CHECK(std::abs(p.y.data()[i] - p.x.data()[i]) == doctest::Approx(0.5 / std::sqrt(0.25)).epsilon(1e-10));
}

TEST_CASE("RmsProp (1): the first layer's small float gradient is exact") {
  Cpu::Context ctx(1);
  const functor::AdaptiveRoot<float> root{1e-8f, true};
  for (const float u : {1e-4f, -0.3f, 1.0f, 10.0f, -30.0f, 1e3f}) {
    const float zero = 0, one = 1;
    float du = 0, dp = 0, dx = 0;
    Cpu::for_each(ctx, 1, functor::RmsPropBackward<float>{0.9f, 0.1f, 1, root, &u, &zero, &one, &dp, &du, &dx});
    const double r = std::sqrt(0.1 * u * u + 1e-8);
    CHECK(du == doctest::Approx(1e-8 / (r * r * r)).epsilon(16 * 0x1p-24));  // 16 roundings of floats
  }
}

TEST_CASE_TEMPLATE("RmsProp: u = 0 gives finite outputs and gradients", T, float, double) {
  Cpu::Context ctx(1);
  auto p = pass<T>(ctx, Stack{Residual{update::RmsProp{}, Swirl{}}, 3}, 3);
  set_zero(ctx, p.params);
  p.forward();
  p.backward();
  CHECK(values(p.y) == values(p.x));
  for (const double v : values(p.dx, p.grads)) CHECK(std::isfinite(v));
}

TEST_CASE("RmsProp: wrong options or carry throw before any write") {
  Cpu::Context ctx(1);
  const auto says = [&](const update::RmsProp& rule, Index items) {
    auto p = pass<double>(ctx, Stack{Residual{rule, Swirl{}}, 4}, 3);
    p.carry.p.resize(items, 4);
    const auto message = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    return message;
  };
  CHECK(says({.epsilon = 0}, 3) == "RmsProp: epsilon: expected more than 0, got 0");
  CHECK(says({.mu = 1}, 3) == "RmsProp: mu: expected 0 <= mu < 1, got 1");
  CHECK(says({}, 2) == "RmsProp: carry.p: expected [3, 4], got [2, 4]");
}

TEST_CASE("RmsProp: gradients and conformance with a large ε") {
  keeps_its_promises(update::RmsProp{.epsilon = 0.1});
  keeps_its_promises(update::RmsProp{.mu = 0.5, .gamma = 0.5, .epsilon = 0.3});
}

TEST_CASE("RmsProp: NaN or infinite coefficients throw") {
  CHECK(refusal(update::RmsProp{.epsilon = std::numeric_limits<double>::infinity()}) ==
        "RmsProp: epsilon: expected a finite number, got inf");
  CHECK(refusal(update::RmsProp{.gamma = quiet_nan}) == "RmsProp: gamma: expected a finite number, got nan");
}

TEST_CASE("AdaptiveRoot (1): adds ε outside or inside the root") {
  const functor::AdaptiveRoot<double> outside{0.3, false}, inside{0.3, true};
  CHECK(outside.value(4.0) == doctest::Approx(2.3).epsilon(1e-15));
  CHECK(inside.value(4.0) == doctest::Approx(std::sqrt(4.3)).epsilon(1e-15));
  CHECK(outside.value(0.0) == doctest::Approx(0.3).epsilon(1e-15));
  CHECK(inside.value(0.0) == doctest::Approx(std::sqrt(0.3)).epsilon(1e-15));
}

TEST_CASE("AdaptiveRoot: the slope is the derivative, and finite at 0") {
  for (const bool within : {false, true}) {
    const functor::AdaptiveRoot<double> root{0.2, within};
    for (const double v : {0.01, 0.5, 3.0}) {
      const double h = 1e-6 * v, numeric = (root.value(v + h) - root.value(v - h)) / (2 * h);
      CHECK(root.slope(v) == doctest::Approx(numeric).epsilon(1e-8));  // 2^-53 / h
    }
  }
  for (const bool within : {false, true}) {  // (2)
    const functor::AdaptiveRoot<double> root{0.2, within};
    for (const double v : {0.01, 0.5, 3.0})
      for (const double rest : {0.0, 0.3, -2.0})
        CHECK(root.passed(v, 0.7, rest) ==
              doctest::Approx((0.7 * root.value(v) - 2 * root.slope(v) * (0.7 * v - rest)) / root.value(v))
                  .epsilon(1e-13));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  for (const bool within : {false, true})
    for (const double rest : {0.0, 1.0, infinity, -infinity})
      CHECK(functor::AdaptiveRoot<double>{0.2, within}.passed(infinity, 0.7, rest) == 0);
  CHECK(functor::AdaptiveRoot<double>{0.2, false}.passed(0.0, 0.7, 0.0) == doctest::Approx(0.7).epsilon(1e-15));
  CHECK(functor::AdaptiveRoot<double>{0.2, false}.slope(0.0) == 0);
  CHECK(functor::AdaptiveRoot<double>{0.25, true}.slope(0.0) == doctest::Approx(1).epsilon(1e-15));
}
