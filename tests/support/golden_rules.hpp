#pragma once

#include <string>

#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/golden.hpp"

/// The stacks of tests/golden/rules.py.
namespace gatefold::support {

inline update::HeavyBall heavy_ball(Golden& g, const std::string& at = "") {
  return {.mu = g.option(at + "mu"), .gamma = g.option(at + "gamma")};
}

/// Checks every case of the file: residual layers with the update rule rule(case) and a small mixture compute the
/// stored results.
template <class RuleF>
void rule_agrees(const char* file, RuleF&& rule) {
  agrees(std::string("update/") + file, [&](Golden& g) {
    return Stack{Residual{rule(g), Mixture{SoftmaxTopK{.scores = {.experts = g.extent("experts")},
                                                       .selection = {.k = 1, .renormalise = false}},
                                           Mlp<Gelu>{.model_dim = g.extent("model_dim"), .hidden_dim = 2}}},
                 g.extent("depth")};
  });
}

}  // namespace gatefold::support
