#pragma once

#include <string>

#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/golden.hpp"

/// The stacks of tests/golden/layers.py.
namespace gatefold::support {

inline update::HeavyBall heavy_ball(Golden& g) { return {.mu = g.option("mu"), .gamma = g.option("gamma")}; }
inline update::Plain plain(Golden&) { return {}; }

inline SoftmaxTopK top_k(Golden& g) {
  return {.scores = {.experts = g.extent("experts")},
          .selection = {.k = g.extent("k"), .renormalise = g.flag("renormalise")}};
}
inline WithAuxiliary<SoftmaxTopK, Balance, ZLoss> with_losses(Golden& g) {
  const auto gate = top_k(g);
  return {.scores = gate.scores,
          .selection = gate.selection,
          .auxiliary = {Balance{.weight = g.option("balance"), .per_pick = g.flag("per_pick")},
                        ZLoss{.weight = g.option("z")}}};
}
/// Checks that a pre-norm stack agrees with every case of the file.
template <class ExpertT>
void stack_agrees(const char* file, auto&& rule, auto&& gate) {
  agrees(std::string("layer/") + file, [&](Golden& g) {
    const ExpertT expert{.model_dim = g.extent("model_dim"), .hidden_dim = g.extent("hidden_dim")};
    return Stack{Residual{rule(g), PreNorm{LayerNorm{.epsilon = g.option("epsilon")}, Mixture{gate(g), expert}}},
                 g.extent("depth")};
  });
}

}  // namespace gatefold::support
