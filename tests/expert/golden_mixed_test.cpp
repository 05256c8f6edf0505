// Experts of several kinds, and an expert that all items share, compared with PyTorch: tests/golden/expert_cases.py.

#include <doctest/doctest.h>

#include <tuple>

#include "gatefold/expert/experts.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "support/golden_experts.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: Experts agrees with PyTorch") {
  expert_agrees("experts", [](Golden& g) {
    const Linear linear{.model_dim = g.extent("kinds.2.model_dim"),
                        .output_dim = g.extent("kinds.2.output_dim"),
                        .bias = g.flag("kinds.2.bias")};
    return Experts<Mlp<Gelu>, GatedMlp<Silu>, Linear>{
        .kinds = {flat<Mlp<Gelu>>(g, "kinds.0."), flat<GatedMlp<Silu>>(g, "kinds.1."), linear},
        .counts = {g.extent("counts.0"), g.extent("counts.1"), g.extent("counts.2")}};
  });
}

TEST_CASE("golden: WithShared agrees with PyTorch") {
  agrees("expert/with_shared", [](Golden& g) {
    return WithShared{Mixture{two_of_three(), flat<Mlp<Gelu>>(g, "branch.")}, flat<GatedMlp<Silu>>(g, "shared."),
                      g.option("weight")};
  });
}
