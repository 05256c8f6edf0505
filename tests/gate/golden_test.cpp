// Gates with Dense, TopK and NoisyTop1, compared with PyTorch: tests/golden/gate_cases.py.

#include <doctest/doctest.h>

#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/importance.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/scores/patch_scores.hpp"
#include "gatefold/gate/selection/noisy_top_1.hpp"
#include "support/golden_gates.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

template <class Law = UniformNoise>
NoisyTop1<Law> noisy(Golden& g) {
  return {.scale = g.option("scale"), .noisy_weight = g.flag("noisy_weight")};
}
void give_noise(Golden& g, auto& extra) { extra.selection = noise(g); }

}  // namespace

TEST_CASE("golden: Dense agrees with PyTorch") {
  gate_agrees("dense", [](Golden& g) { return SoftmaxDense{.scores = {.experts = g.extent("experts")}}; });
}

TEST_CASE("golden: TopK with losses, padding and ties agrees with PyTorch") {
  gate_agrees("top_k_losses", [](Golden& g) {
    return WithAuxiliary<SoftmaxTopK, Importance, GShard, Balance, ZLoss>{
        .scores = {.experts = g.extent("experts")},
        .selection = {.k = g.extent("k"), .renormalise = g.flag("renormalise")},
        .auxiliary = {Importance{.weight = 0.7}, GShard{.weight = 0.4}, Balance{.weight = 0.3}, ZLoss{.weight = 0.2}}};
  });
}

TEST_CASE("golden: NoisyTop1 on items and patch sequences agrees with PyTorch") {
  for (const char* file : {"noisy_top_1", "noisy_top_1_reference"})
    gate_agrees(
        file,
        [](Golden& g) {
          return ComposedGate<LinearScores, Independent, NoisyTop1<>>{.scores = {.experts = g.extent("experts")},
                                                                      .selection = noisy(g)};
        },
        [](Golden& g, auto& extra) { give_noise(g, extra); });
  gate_agrees(
      "noisy_top_1_shared",
      [](Golden& g) {
        return ComposedGate<LinearScores, Independent, NoisyTop1<>>{
            .scores = {.experts = g.extent("experts"), .length = g.extent("length"), .bias = g.flag("bias")},
            .selection = noisy(g)};
      },
      [](Golden& g, auto& extra) { give_noise(g, extra); });
}

TEST_CASE("golden: NoisyTop1 with Gumbel noise agrees with PyTorch") {
  gate_agrees(
      "noisy_top_1_gumbel",
      [](Golden& g) {
        return ComposedGate<LinearScores, Independent, NoisyTop1<GumbelNoise>>{
            .scores = {.experts = g.extent("experts")}, .selection = noisy<GumbelNoise>(g)};
      },
      [](Golden& g, auto& extra) { give_noise(g, extra); });
}

TEST_CASE("golden: PatchScores with NoisyTop1 agrees with PyTorch") {
  gate_agrees(
      "patch_noisy_top_1",
      [](Golden& g) {
        return ComposedGate<PatchScores, Independent, NoisyTop1<>>{
            .scores = {.experts = g.extent("experts"), .length = g.extent("length")}, .selection = noisy(g)};
      },
      [](Golden& g, auto& extra) { give_noise(g, extra); });
}
