#include "gatefold/update/zero_order_hold.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;
using update::ZeroOrderHold;

TEST_CASE("ZeroOrderHold (1), (2): layers with learned values equal the equations") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{ZeroOrderHold{}, Swirl{}}, 4}, 3);
  const double s[] = {0.3, -1, 2, -0.2}, mu[] = {-0.4, 0.2, -1.5, 0.01};
  for (std::size_t l = 0; l < 4; ++l) p.params.layers[l].rule.step(0) = s[l], p.params.layers[l].rule.mu(0) = mu[l];
  p.forward();
  Numbers stream = values(p.x), momentum(12, 0);
  for (std::size_t l = 0; l < 4; ++l) {
    const auto& params = p.params.layers[l];
    const double delta = std::log(1 + std::exp(s[l]));
    momentum = std::exp(delta * mu[l]) * momentum + swirl(values(params.branch), stream);
    const Numbers x = stream, w = values(params.rule.linear.weight);
    for (std::size_t n = 0; n < 3; ++n) {
      double gamma = params.rule.linear.bias(0);
      for (std::size_t d = 0; d < 4; ++d) gamma += w[d] * x[4 * n + d];
      gamma *= (std::exp(delta * mu[l]) - 1) / (delta * mu[l]) * delta;
      for (std::size_t d = 0; d < 4; ++d) stream[4 * n + d] += gamma * momentum[4 * n + d];
    }
  }
  CHECK(difference(values(p.y), stream) <= 1e-13);
  CHECK(difference(values(p.carry), momentum) <= 1e-13);
}

TEST_CASE("ZeroOrderHold (2): starts with mu and delta of the options") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Residual{ZeroOrderHold{.mu = 0.3, .delta = 2}, Swirl{}}, 3);
  p.forward();
  CHECK(p.saved.rule.held(0) == doctest::Approx(0.3).epsilon(1e-14));
  CHECK(p.saved.rule.held(1) == doctest::Approx(2 * (0.3 - 1) / std::log(0.3)).epsilon(1e-14));
}

TEST_CASE_TEMPLATE("ZeroOrderHold (2): (e^z − 1)/z is precise near 0", T, float, double) {
  const double epsilon = 8 * std::numeric_limits<T>::epsilon();
  CHECK(functor::held(T(0)) == 1);
  CHECK(functor::held_slope(T(0)) == T(0.5));
  for (const double size : {1e-12, 1e-7, 1e-3, 0.1, 0.4999, 0.5001, 2.0, 20.0})
    for (const double z : {size, -size}) {
      // Expected values are computed in long double, near 0 from the series, because the quotient loses digits there.
      const long double v = static_cast<T>(z);
      long double value = std::expm1(v) / v, slope = (std::exp(v) - value) / v;
      if (size < 1) {
        long double term = 1;
        value = slope = 0;
        for (int k = 1; k < 40; ++k) {  // term = z^(k−1)/k!
          term = k == 1 ? 1 : term * v / k;
          value += term;
          slope += k * term / (k + 1);
        }
      }
      CHECK(double(functor::held(T(z))) == doctest::Approx(double(value)).epsilon(epsilon));
      CHECK(double(functor::held_slope(T(z))) == doctest::Approx(double(slope)).epsilon(epsilon));
    }
}

TEST_CASE("ZeroOrderHold: wrong options or shapes throw before any write") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{ZeroOrderHold{}, Swirl{}}, 2}, 3);
  p.params.layers[1].rule.step.resize(2);
  CHECK(message_of([&] { p.forward(); }) == "ZeroOrderHold: params.step: expected [1], got [2]");
  CHECK(p.untouched());
  CHECK(message_of([&] {
          pass<double>(ctx, Residual{ZeroOrderHold{.model_dim = 5}, Swirl{}}, 3);
        }) == "ZeroOrderHold: model_dim: expected 4 (the width of the branch), got 5");
  CHECK(message_of([&] { ZeroOrderHold{.mu = 0, .model_dim = 4}.init<double, Cpu>(ctx, Seed{1}); }) ==
        "ZeroOrderHold.init: mu: expected more than 0, got 0");
  CHECK(message_of([&] { ZeroOrderHold{.delta = 0, .model_dim = 4}.init<double, Cpu>(ctx, Seed{1}); }) ==
        "ZeroOrderHold.init: delta: expected more than 0, got 0");
  CHECK(message_of([&] { ZeroOrderHold{.mu = infinity, .model_dim = 4}.init<double, Cpu>(ctx, Seed{1}); }) ==
        "ZeroOrderHold.init: mu: expected a finite number, got inf");
}

TEST_CASE("ZeroOrderHold: gradients and conformance, including learned values") {
  keeps_its_promises(ZeroOrderHold{.mu = 0.4, .delta = 1.7});
  keeps_its_promises(ZeroOrderHold{.mu = 1});  // Δ μ = 0
}
