// Update rules with learned coefficients, compared with PyTorch: tests/golden/rules.py.

#include <doctest/doctest.h>

#include "gatefold/update/learned_heavy_ball.hpp"
#include "gatefold/update/zero_order_hold.hpp"
#include "support/golden_rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

update::LearnedHeavyBall learned(Golden& g) {
  return {.mu = g.option("mu"),
          .gamma = g.option("gamma"),
          .learn_mu = g.flag("learn_mu"),
          .step = static_cast<update::StepSize>(g.extent("step"))};
}

}  // namespace

TEST_CASE("golden: LearnedHeavyBall agrees with PyTorch") {
  for (const char* variant :
       {"learned_heavy_ball", "learned_step", "learned_mu", "learned_step_per_item", "learned_mu_step_per_item"})
    rule_agrees(variant, learned);
}

TEST_CASE("golden: ZeroOrderHold agrees with PyTorch") {
  rule_agrees("zero_order_hold", [](Golden&) { return update::ZeroOrderHold{}; });
}
