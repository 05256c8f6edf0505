// SigmoidTopK, also with published settings, compared with PyTorch: tests/golden/gate_cases.py.

#include <doctest/doctest.h>

#include <utility>

#include "gatefold/gate/gates.hpp"
#include "support/golden_gates.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: SigmoidBias and its published settings agree with PyTorch") {
  gate_agrees("sigmoid_bias", [](Golden& g) {
    return SigmoidTopK{
        .scores = {.experts = g.extent("experts")},
        .selection = {.k = g.extent("k"), .renormalise = g.flag("renormalise"), .scale = g.option("scale")}};
  });
  const std::pair<const char*, SigmoidTopK (*)(Index, Index)> all[] = {
      {"aux_loss_free",
       [](Index experts, Index k) {
         return published::aux_loss_free({experts, k});
       }},
      {"deepseek_v3", [](Index experts, Index k) {
         return published::deepseek_v3({experts, k, 1, 1});
       }}};
  for (const auto& [file, settings] : all)
    gate_agrees(file, [settings = settings](Golden& g) {
      const SigmoidTopK gate = settings(g.extent("experts"), g.extent("k"));
      CHECK(gate.scores.bias == g.flag("bias"));
      CHECK(gate.selection.renormalise == g.flag("renormalise"));
      CHECK(gate.selection.scale == g.option("scale"));
      return gate;
    });
}
