// Update rules that scale their steps, or evaluate twice, compared with PyTorch: tests/golden/rules.py.

#include <doctest/doctest.h>

#include <string>

#include "gatefold/update/adam.hpp"
#include "gatefold/update/first.hpp"
#include "gatefold/update/rms_prop.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "support/golden_rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

update::Adam adam(Golden& g, const std::string& at = "") {
  return {.beta1 = g.option(at + "beta1"),
          .beta2 = g.option(at + "beta2"),
          .gamma = g.option(at + "gamma"),
          .kappa = g.option(at + "kappa"),
          .epsilon = g.option(at + "epsilon"),
          .epsilon_inside = g.flag(at + "epsilon_inside"),
          .bias_correction = g.flag(at + "bias_correction")};
}
update::RmsProp rms_prop(Golden& g, const std::string& at = "") {
  return {.mu = g.option(at + "mu"), .gamma = g.option(at + "gamma"), .epsilon = g.option(at + "epsilon")};
}

}  // namespace

TEST_CASE("golden: Adam agrees with PyTorch") {
  for (const char* variant : {"adam", "adam_reference", "adam_corrected"})
    rule_agrees(variant, [](Golden& g) { return adam(g); });
}

TEST_CASE("golden: RmsProp agrees with PyTorch") {
  rule_agrees("rms_prop", [](Golden& g) { return rms_prop(g); });
}

TEST_CASE("golden: First agrees with PyTorch") {
  for (const char* variant : {"first_adam_warm", "first_adam_cold"})
    rule_agrees(variant, [](Golden& g) {
      return update::First{adam(g, "first."), heavy_ball(g, "rest."), g.flag("warm")};
    });
  rule_agrees("first_rms_prop", [](Golden& g) {
    return update::First{rms_prop(g, "first."), heavy_ball(g, "rest."), g.flag("warm")};
  });
}

TEST_CASE("golden: SharpnessAware agrees with PyTorch") {
  for (const char* variant : {"sharpness_aware", "sharpness_aware_batch"})
    rule_agrees(variant, [](Golden& g) {
      return update::SharpnessAware{.rho = g.option("rho"),
                                    .gamma = g.option("gamma"),
                                    .norm = g.flag("batch") ? update::Norm::batch : update::Norm::item};
    });
}
