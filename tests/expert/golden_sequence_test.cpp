// Experts on sequences, compared with PyTorch: tests/golden/expert_cases.py.

#include <doctest/doctest.h>

#include "gatefold/expert/attention_expert.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/multi_head_expert.hpp"
#include "gatefold/expert/rms_norm.hpp"
#include "gatefold/expert/transformer_expert.hpp"
#include "gatefold/papers/merged_transformer.hpp"
#include "support/golden_experts.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: AttentionExpert agrees with PyTorch") {
  expert_agrees("attention_expert", [](Golden& g) {
    return AttentionExpert{
        .model_dim = g.extent("model_dim"), .length = g.extent("length"), .outputs = g.extent("outputs")};
  });
}

TEST_CASE("golden: MergedTransformer agrees with PyTorch") {
  expert_agrees("merged_transformer", [](Golden& g) {
    return MergedTransformer{.model_dim = g.extent("model_dim"),
                             .length = g.extent("length"),
                             .heads = g.extent("heads"),
                             .filters = g.extent("filters")};
  });
}

TEST_CASE("golden: MultiHeadExpert agrees with PyTorch, causal or not") {
  for (const char* file : {"multi_head_expert", "multi_head_expert_causal"})
    expert_agrees(file, [](Golden& g) {
      return MultiHeadExpert{.model_dim = g.extent("model_dim"),
                             .heads = g.extent("heads"),
                             .length = g.extent("length"),
                             .causal = g.flag("causal")};
    });
}

TEST_CASE("golden: LayerNorm agrees with PyTorch") {
  expert_agrees("norm_expert", [](Golden& g) {
    return LayerNorm{.model_dim = g.extent("model_dim"), .epsilon = g.option("epsilon")};
  });
}

TEST_CASE("golden: RmsNorm agrees with PyTorch") {
  expert_agrees("rms_norm",
                [](Golden& g) { return RmsNorm{.model_dim = g.extent("model_dim"), .epsilon = g.option("epsilon")}; });
}

TEST_CASE("golden: TransformerExpert agrees with PyTorch, causal or not") {
  for (const char* file : {"transformer_expert", "transformer_expert_causal"})
    expert_agrees(file, [](Golden& g) {
      return TransformerExpert<Gelu>{.model_dim = g.extent("model_dim"),
                                     .hidden_dim = g.extent("hidden_dim"),
                                     .heads = g.extent("heads"),
                                     .length = g.extent("length"),
                                     .causal = g.flag("causal"),
                                     .bias = g.flag("bias"),
                                     .epsilon = g.option("epsilon")};
    });
}
