// Options of update rules on the device, and rules that count layers. cuda/policies_* tests the rules themselves. Each
// model is a stack of three layers whose branch is one LayerNorm expert.

#include <doctest/doctest.h>

#include <string>
#include <type_traits>

#include "gatefold/gatefold.cuh"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

template <class T, class R>
void check(const R& rule, const Expected& expected = {}) {
  Backends on;
  expect_same_layer<T>(on, Stack{Residual{rule, OneExpert{LayerNorm{.model_dim = 37}}}, 3},
                       {.items = 21, .expected = expected});
}

/// Before the first layer the momentum is 0, so the first coefficient has no gradient.
const std::string first_momentum = "saved.0.0.0.0.0", first_mu = "grads.layers.0.rule.mu";

/// Rules that divide by a root have a large epsilon, so that no gradient loses its digits.
template <class T>
void check_rules() {
  SUBCASE("Nesterov") { check<T>(update::Nesterov{}); }
  SUBCASE("Nesterov, classical") { check<T>(update::Nesterov::classical()); }
  SUBCASE("TimeVarying") { check<T>(update::TimeVarying{}, {.zeros = {"dcarry.p"}}); }
  SUBCASE("ScheduledRestart") { check<T>(update::ScheduledRestart{}, {.zeros = {"dcarry.p"}}); }
  const Expected moments{.zeros = {"saved.0.0.0.1", "saved.0.0.0.2"}};  // 0 before the first layer
  SUBCASE("Adam") { check<T>(update::Adam{.kappa = 0.2, .epsilon = 0.3, .bias_correction = true}, moments); }
  SUBCASE("Adam, epsilon inside") { check<T>(update::Adam{.epsilon = 0.3, .epsilon_inside = true}, moments); }
  SUBCASE("First") {
    check<T>(update::First{update::Adam{.epsilon = 0.3}, update::HeavyBall{}},
             {.zeros = {"saved.0.0.0.0.1", "saved.0.0.0.0.2"}});
  }
  SUBCASE("First, cold") { check<T>(update::First{update::Plain{}, update::HeavyBall{}, false}); }
  for (const auto norm : {update::Norm::item, update::Norm::batch}) {
    CAPTURE(static_cast<int>(norm));
    const Expected expected{.of_doubles = std::is_same_v<T, double> ? 1 : relative_tolerance<float> / 1e-12};
    SUBCASE("SharpnessAware") { check<T>(update::SharpnessAware{.rho = 0.2, .norm = norm}, expected); }
  }
  SUBCASE("LearnedHeavyBall") { check<T>(update::LearnedHeavyBall{}, {.zeros = {first_momentum, first_mu}}); }
  SUBCASE("LearnedHeavyBall, fixed step") {
    check<T>(update::LearnedHeavyBall{.step = update::StepSize::fixed}, {.zeros = {first_momentum, first_mu}});
  }
  SUBCASE("LearnedHeavyBall, step per item") {
    check<T>(update::LearnedHeavyBall{.learn_mu = false, .step = update::StepSize::per_item},
             {.zeros = {first_momentum}});
  }
}

}  // namespace

TEST_CASE("cuda: update rules match the naive backend, double") { check_rules<double>(); }
#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda: update rules match the naive backend, float") { check_rules<float>(); }
#endif
