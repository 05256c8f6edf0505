#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

constexpr Index length = 3, width = 14;

/// Experts and gates whose items are whole sequences or sets of patches.
template <class F>
void each_layer(F&& f) {
  const SoftmaxTopK gate{.scores = {.experts = experts, .length = length}, .selection = {.k = 2}};
  const PatchMlp<Cubic> mlp{
      .model_dim = width, .patches = length, .filters = 10, .outputs = 5, .initial = Initial::normal(0.5)};
  f("PatchMlp", Mixture{gate, mlp});
  f("PatchCnn", Mixture{gate, PatchCnn<Cubic>{.model_dim = mlp.model_dim,
                                              .patches = mlp.patches,
                                              .filters = mlp.filters,
                                              .outputs = mlp.outputs,
                                              .initial = mlp.initial}});
  f("AttentionExpert",
    Mixture{gate, AttentionExpert{.model_dim = width, .length = length, .outputs = 5, .initial = mlp.initial}});
  f("MergedTransformer", Mixture{gate, MergedTransformer<Gelu>{.model_dim = width, .length = length, .heads = 2, .filters = 6}});
  f("MultiHeadExpert", Mixture{gate, MultiHeadExpert{.model_dim = width, .heads = 2, .length = length, .causal = true}});
  f("TransformerExpert",
    Mixture{gate, TransformerExpert<Silu>{.model_dim = width, .hidden_dim = 19, .heads = 2, .length = length}});
  f("PatchScores", Mixture{PatchNoisyTop1{.scores = {.experts = experts, .length = length, .initial = Initial::normal(1)}},
                           Linear{.model_dim = length * width}});
}

}  // namespace

TEST_CASE_TEMPLATE("items that are sequences: any threads", T, float, double) {
  each_layer([](const std::string& name, const auto& layer) {
    CAPTURE(name);
    on_any_threads<T>(layer, few, true);
    on_any_threads<T>(layer, 500, false);
  });
}

TEST_CASE_TEMPLATE("items that are sequences: alone and in any batch", T, float, double) {
  each_layer([](const std::string& name, const auto& layer) {
    CAPTURE(name);
    in_any_batch<T>(layer);
  });
}
