// Gates whose experts have room for a limited number of items, compared with PyTorch: tests/golden/gate_cases.py.

#include <doctest/doctest.h>

#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "support/golden_gates.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: Capacity with priority, groups, padding agrees with PyTorch") {
  gate_agrees("capacity", [](Golden& g) {
    Capacity<TopK> limited{.selection = {.k = g.extent("k"), .renormalise = g.flag("renormalise")},
                           .factor = g.option("factor"),
                           .multiple_of = g.extent("multiple_of")};
    if (g.has("options.slots")) limited.slots = g.extent("slots");
    if (g.has("options.group")) limited.group = g.extent("group");
    if (g.has("options.batch_priority")) limited.batch_priority = g.flag("batch_priority");
    return ComposedGate<LinearScores, Independent, Capacity<TopK>>{.scores = {.experts = g.extent("experts")},
                                                                   .selection = limited};
  });
}

TEST_CASE("golden: GShard agrees with PyTorch") {
  gate_agrees("gshard", [](Golden& g) {
    const GShardTop2 gate = published::gshard({.experts = g.extent("experts")});
    CHECK(gate.scores.bias == g.flag("bias"));
    CHECK(gate.selection.selection.k == g.extent("k"));
    CHECK(g.flag("renormalise"));  // as RandomSecond always does
    CHECK(gate.selection.factor == g.option("factor"));
    CHECK(gate.selection.multiple_of == g.extent("multiple_of"));
    return gate;
  });
}

TEST_CASE("golden: ExpertChoice agrees with PyTorch") {
  gate_agrees(
      "expert_choice",
      [](Golden& g) {
        return SoftmaxExpertChoice{.scores = {.experts = g.extent("experts")},
                                   .selection = {.factor = g.option("factor")}};
      },
      [](Golden& g, auto& extra) {
        extra.selection.length = length(g);
        extra.valid = valid(g);
      });
}
