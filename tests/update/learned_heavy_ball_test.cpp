#include "gatefold/update/learned_heavy_ball.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/update/momentum.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;
using update::LearnedHeavyBall;
using update::StepSize;

TEST_CASE("LearnedHeavyBall (1): before training it equals HeavyBall") {
  Cpu::Context ctx(1);
  auto ball = pass<double>(ctx, Stack{Residual{update::HeavyBall{.mu = 0.4, .gamma = 0.9}, Swirl{}}, 3}, 3);
  ball.forward();
  for (const bool learn_mu : {false, true})
    for (const StepSize step : {StepSize::fixed, StepSize::learned}) {
      const LearnedHeavyBall rule{.mu = 0.4, .gamma = 0.9, .learn_mu = learn_mu, .step = step};
      auto p = pass<double>(ctx, Stack{Residual{rule, Swirl{}}, 3}, 3);
      p.forward();
      CHECK(same_bits(values(p.y, p.carry), values(ball.y, ball.carry)));
      CHECK(count_values(p.params.layers[0].rule) == (learn_mu ? 1 : 0) + (step == StepSize::learned ? 1 : 0));
    }
}

TEST_CASE("LearnedHeavyBall (1), (2): layers with learned values equal loops") {
  Cpu::Context ctx(1);
  const LearnedHeavyBall rules[] = {{}, {.learn_mu = false, .step = StepSize::per_item}};
  for (const LearnedHeavyBall& rule : rules) {
    auto p = pass<double>(ctx, Stack{Residual{rule, Swirl{}}, 4}, 3);
    if (rule.learn_mu)
      for (std::size_t l = 0; l < 4; ++l) {
        p.params.layers[l].rule.mu(0) = 0.1 * double(l + 1);
        p.params.layers[l].rule.gamma(0) = 1 - 0.2 * double(l);
      }
    p.forward();
    Numbers stream = values(p.x), momentum(12, 0);
    for (std::size_t l = 0; l < 4; ++l) {
      const auto& params = p.params.layers[l];
      const double mu = rule.learn_mu ? 0.1 * double(l + 1) : 0.7;
      momentum = mu * momentum + swirl(values(params.branch), stream);
      const Numbers x = stream, w = values(params.rule.linear.weight);
      for (std::size_t n = 0; n < 3; ++n) {
        double gamma = 1 - 0.2 * double(l);
        if (!rule.learn_mu) {
          double z = params.rule.linear.bias(0);
          for (std::size_t d = 0; d < 4; ++d) z += w[d] * x[4 * n + d];
          gamma = 1 / (1 + std::exp(-z));
        }
        for (std::size_t d = 0; d < 4; ++d) stream[4 * n + d] += gamma * momentum[4 * n + d];
      }
    }
    CHECK(difference(values(p.y), stream) <= 1e-14);
    CHECK(difference(values(p.carry), momentum) <= 1e-14);
  }
}

TEST_CASE("LearnedHeavyBall (2): zero items use gamma, or 0.5 outside (0,1)") {
  Cpu::Context ctx(1);
  for (const double gamma : {0.2, 0.9, 1.0, -2.0}) {
    const LearnedHeavyBall rule{.gamma = gamma, .step = StepSize::per_item, .initial = Initial::normal(0.5)};
    auto p = pass<double>(ctx, Residual{rule, Swirl{}}, 3);
    for (Index d = 0; d < 4; ++d) p.x(1, d) = 0;
    p.forward();
    CHECK(p.saved.rule.gamma(1) == doctest::Approx(gamma > 0 && gamma < 1 ? gamma : 0.5).epsilon(1e-14));
    CHECK(p.saved.rule.gamma(0) != p.saved.rule.gamma(1));
  }
}

TEST_CASE("LearnedHeavyBall: wrong options or shapes throw before any write") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{LearnedHeavyBall{}, Swirl{}}, 2}, 3);
  p.params.layers[1].rule.mu.resize(0);
  CHECK(message_of([&] { p.forward(); }) == "LearnedHeavyBall: params.mu: expected [1], got [0]");
  CHECK(p.untouched());
  CHECK(message_of([&] {
          pass<double>(ctx, Residual{LearnedHeavyBall{.step = StepSize::per_item, .model_dim = 5}, Swirl{}}, 3);
        }) == "LearnedHeavyBall: model_dim: expected 4 (the width of the branch), got 5");
  CHECK(message_of([&] { LearnedHeavyBall{.step = StepSize::per_item}.init<double, Cpu>(ctx, Seed{1}); }) ==
        "LearnedHeavyBall.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { LearnedHeavyBall{.mu = quiet_nan}.init<double, Cpu>(ctx, Seed{1}); }) ==
        "LearnedHeavyBall.init: mu: expected a finite number, got nan");
}

TEST_CASE("LearnedHeavyBall: gradients and conformance, including mu and gamma") {
  keeps_its_promises(LearnedHeavyBall{.mu = 0.5, .gamma = 0.8});
  keeps_its_promises(LearnedHeavyBall{.mu = 0.5, .learn_mu = false});
  keeps_its_promises(LearnedHeavyBall{.learn_mu = false, .step = StepSize::per_item});
  keeps_its_promises(LearnedHeavyBall{.mu = -0.5, .step = StepSize::per_item});
}
