// The layer of the reference code of papers 001 and 002, compared with PyTorch: tests/golden/windows.py.

#include <doctest/doctest.h>

#include <string>

#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/relative_attention.hpp"
#include "gatefold/layer/relative_keys.hpp"
#include "gatefold/layer/skip.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/golden.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Compares a stack of two reference layers that attend to an earlier segment, for every case of the file.
template <class RuleF>
void reference_agrees(const std::string& file, RuleF&& rule) {
  agrees(
      file,
      [&](Golden& g) {
        const Index dim = g.extent("model_dim"), heads = g.extent("heads"), window = g.extent("window");
        const RelativeAttention attention{
            .model_dim = dim, .heads = heads, .window = window, .itself = g.flag("itself")};
        const Mixture mixture{
            SoftmaxTopK{.scores = {.experts = g.extent("experts")}, .selection = {.k = g.extent("k")}},
            Mlp<Relu>{.model_dim = dim, .hidden_dim = g.extent("hidden_dim")}};
        return RelativeKeys{window, dim / heads,
                            Stack{reference_layer(attention, rule(g), mixture), g.extent("depth")}};
      },
      [](Golden& g, auto& extra) {
        const Index sequences = g.extent("sequences"), past = g.extent("past"), dim = g.extent("model_dim");
        auto& of_attention = std::get<0>(extra.layers);
        of_attention.length = g.extent("length");
        of_attention.memory.past = {g.values("before").data(), g.extent("depth"), sequences * past, dim};
      });
}

}  // namespace

TEST_CASE("golden: reference_layer without momentum agrees with PyTorch") {
  reference_agrees("layer/reference", [](Golden&) { return update::Plain{}; });
}

TEST_CASE("golden: reference_layer with subtracted momentum agrees with PyTorch") {
  reference_agrees("layer/reference_momentum",
                   [](Golden& g) { return update::HeavyBall{.mu = g.option("mu"), .gamma = -g.option("gamma")}; });
}
