// Experts on single items, compared with PyTorch: tests/golden/expert_cases.py.

#include <doctest/doctest.h>

#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "support/golden_experts.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: Linear agrees with PyTorch, with or without bias") {
  expert_agrees("linear", [](Golden& g) {
    return Linear{.model_dim = g.extent("model_dim"), .output_dim = g.extent("output_dim"), .bias = g.flag("bias")};
  });
}

TEST_CASE("golden: Mlp agrees with PyTorch for four activations") {
  expert_agrees("mlp_relu", [](Golden& g) { return flat<Mlp<Relu>>(g); });
  expert_agrees("mlp_gelu_tanh", [](Golden& g) { return flat<Mlp<GeluTanh>>(g); });
  expert_agrees("mlp_cubic", [](Golden& g) { return flat<Mlp<Cubic>>(g); });
  expert_agrees("mlp_relu2", [](Golden& g) { return flat<Mlp<Relu2>>(g); });
}

TEST_CASE("golden: GatedMlp agrees with PyTorch") {
  expert_agrees("gated_mlp_gelu", [](Golden& g) { return flat<GatedMlp<Gelu>>(g); });
}

TEST_CASE("golden: GatedMlp equals transformers' GptOssExperts") {
  expert_agrees("gated_mlp_gpt_oss", [](Golden& g) { return flat<GatedMlp<ClampedSilu, ClampedPlusOne>>(g); });
}
