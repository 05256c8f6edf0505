// Noisy gates with their published settings, compared with PyTorch: tests/golden/gate_cases.py.

#include <doctest/doctest.h>

#include "gatefold/gate/gates.hpp"
#include "support/golden_gates.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: NoisyTopK of Shazeer and FastMoE agrees with PyTorch") {
  const auto give = [](Golden& g, auto& extra) {
    extra.selection = noise(g);
    extra.valid = valid(g);
  };
  gate_agrees(
      "shazeer",
      [](Golden& g) {
        const SoftmaxNoisyTopK gate = published::shazeer({.experts = g.extent("experts"), .k = g.extent("k")});
        CHECK(gate.scores.bias == g.flag("bias"));
        CHECK(gate.selection.epsilon == g.option("epsilon"));
        return gate;
      },
      give);
  gate_agrees(
      "fastmoe",
      [](Golden& g) {
        const CvSquared cv = CvSquared::fastmoe();
        return SoftmaxNoisyTopK{
            .scores = {.experts = g.extent("experts")},
            .selection = {.k = g.extent("k"), .epsilon = g.option("epsilon")},
            .auxiliary = {Importance{.weight = 0.1, .cv = cv}, Load{.weight = 0.1, .excluding = true, .cv = cv}}};
      },
      give);
}

TEST_CASE("golden: V-MoE agrees with PyTorch") {
  gate_agrees(
      "vmoe",
      [](Golden& g) {
        const VMoe gate =
            published::vmoe({.experts = g.extent("experts"), .k = g.extent("k"), .factor = g.option("factor")});
        CHECK(gate.scores.bias == g.flag("bias"));
        CHECK(gate.selection.multiple_of == g.extent("multiple_of"));
        return gate;
      },
      [](Golden& g, auto& extra) { extra.selection = noise(g); });
}

TEST_CASE("golden: Switch agrees with PyTorch") {
  gate_agrees(
      "switch",
      [](Golden& g) {
        const Switch gate =
            published::switch_transformer({.experts = g.extent("experts"), .factor = g.option("factor")});
        CHECK(gate.scores.scores.bias == g.flag("bias"));
        CHECK(gate.scores.epsilon == g.option("epsilon"));
        CHECK(gate.selection.selection.k == g.extent("k"));
        CHECK(gate.selection.selection.renormalise == g.flag("renormalise"));
        CHECK(gate.selection.multiple_of == g.extent("multiple_of"));
        return gate;
      },
      [](Golden& g, auto& extra) { extra.scores = noise(g); });
}
