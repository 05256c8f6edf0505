// Update rules with momentum, compared with PyTorch: tests/golden/rules.py.

#include <doctest/doctest.h>

#include "gatefold/update/complex_momentum.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/robust.hpp"
#include "gatefold/update/scheduled_momentum.hpp"
#include "support/golden_rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

update::Nesterov nesterov(Golden& g) {
  return {.mu = g.option("mu"), .gamma = g.option("gamma"), .ahead = g.flag("ahead")};
}

}  // namespace

TEST_CASE("golden: HeavyBall with either sign of momentum agrees with PyTorch") {
  rule_agrees("heavy_ball", [](Golden& g) { return heavy_ball(g); });
  rule_agrees("negative_momentum", [](Golden& g) { return heavy_ball(g); });
}

TEST_CASE("golden: Robust agrees with PyTorch") {
  for (const char* variant : {"robust", "robust_other"})
    rule_agrees(variant,
                [](Golden& g) { return update::Robust{.p = g.option("p"), .k = g.option("k"), .l = g.option("l")}; });
}

TEST_CASE("golden: Nesterov agrees with PyTorch") {
  rule_agrees("nesterov", nesterov);
  rule_agrees("nesterov_classical", nesterov);
}

TEST_CASE("golden: TimeVarying and ScheduledRestart agree with PyTorch") {
  rule_agrees("time_varying", [](Golden& g) { return update::TimeVarying{.gamma = g.option("gamma")}; });
  for (const char* variant : {"scheduled_restart", "scheduled_restart_offset"})
    rule_agrees(variant, [](Golden& g) {
      return update::ScheduledRestart{.schedule = {.period = g.extent("period"), .offset = g.extent("offset")},
                                      .gamma = g.option("gamma")};
    });
}

TEST_CASE("golden: ComplexMomentum agrees with PyTorch") {
  rule_agrees("complex_momentum", [](Golden& g) {
    return update::ComplexMomentum{
        .modulus = g.option("modulus"), .phase = g.option("phase"), .gamma = g.option("gamma")};
  });
}
