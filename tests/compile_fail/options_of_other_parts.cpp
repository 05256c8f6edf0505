// expect: gatefold: the number of experts is an option of the scores of a gate, SoftmaxTopK\{\.scores = \{\.experts = 8\}, \.selection = \{\.k = 2\}\}; count_experts\(gate\) returns it; see docs/how-to/extending_parts\.md#parts-of-a-gate
// expect: gatefold: model_dim is an option of the scores of a gate, SoftmaxTopK\{\.scores = \{\.model_dim = 16, \.experts = 8\}\}; if it is 0, a Mixture takes it from its experts; see docs/how-to/extending_parts\.md#parts-of-a-gate
// expect: gatefold: k is an option of the selection of a gate, SoftmaxTopK\{\.scores = \{\.experts = 8\}, \.selection = \{\.k = 2\}\}; see docs/how-to/extending_parts\.md#parts-of-a-gate
// expect: gatefold: the type of a gate must list its auxiliary losses: WithAuxiliary<SoftmaxTopK, Balance>\{\.scores = \{\.experts = 8\}, \.auxiliary = \{Balance\{\.weight = 0\.01\}\}\}; see docs/how-to/extending_parts\.md#parts-of-a-gate
// expect: gatefold: an Mlp maps items of model_dim to items of model_dim; another width is a Linear behind it, Chain\{mlp, Linear\{\.model_dim = 8, \.output_dim = 4\}\}; see docs/how-to/extending\.md#expert
// expect: gatefold: a GatedMlp maps items of model_dim to items of model_dim; another width is a Linear behind it, Chain\{mlp, Linear\{\.model_dim = 8, \.output_dim = 4\}\}; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
#ifndef GATEFOLD_FAIL
  SoftmaxTopK gate{.scores = {.model_dim = 2, .experts = 8}, .selection = {.k = 2}};
  gate.scores.experts = 4;
  SoftmaxTopK copied = gate, positional{{.experts = 8}, {}, {.k = 2}};
  copied = positional;
  const WithAuxiliary<SoftmaxTopK, Balance> losses{.scores = {.experts = 4}, .auxiliary = {Balance{.weight = 0.01}}};
  const Mlp<Gelu> mlp{.model_dim = 8, .hidden_dim = 16, .bias = false};
  const GatedMlp<Silu> gated{8, 16};
#else
  SoftmaxTopK gate{.experts = 8, .k = 2};
  gate.k = 1;
  const SoftmaxTopK widths{.model_dim = 2, .experts = 8}, best{.k = 2};
  const SimilarityAware<XMoe> similar{.scores = {.experts = 4}, .k = 2};
  const SoftmaxTopK losses{.scores = {.experts = 4}, .auxiliary = {Balance{.weight = 0.01}}};
  const Mlp<Gelu> mlp{.model_dim = 8, .hidden_dim = 16, .output_dim = 4};
  const GatedMlp<Silu> gated{.model_dim = 8, .hidden_dim = 16, .output_dim = 4};
#endif
}
