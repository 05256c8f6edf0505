#pragma once

#include <type_traits>

#include "descriptors/row.hpp"
#include "gatefold/policies.hpp"

// Layers around a mixture. These rows make them from a rule and a branch.
namespace gatefold::rows {

/// Returns a residual stream with the rule, or the branch alone if there is no rule.
template <class RuleT, class BranchT>
auto in_stream(const RuleT& rule, const BranchT& branch) {
  if constexpr (std::is_same_v<RuleT, Absent>) {
    return NoResidual{branch};
  } else {
    return Residual{rule, branch};
  }
}

GATEFOLD_LAYER_ROW(residual, (in_stream(rule, branch)), .hooks = "begin validate infer Saved.mixtures")
GATEFOLD_LAYER_ROW(with_shared,
                   (in_stream(rule, WithShared{branch, GatedMlp<Silu>{.model_dim = s.item(), .hidden_dim = s.hidden}})),
                   .hooks = "begin validate infer Saved.mixtures")
GATEFOLD_LAYER_ROW(latent_mixture, (in_stream(rule, LatentMixture{branch, s.item(), true})),
                   .cannot_meet = "soft_moe soft_moe_of_reference weight_on_input: has another plan",
                   .hooks = "begin validate infer Saved.mixtures")
GATEFOLD_LAYER_ROW(pre_norm, (in_stream(rule, PreNorm{LayerNorm{}, branch})),
                   .hooks = "begin validate infer Saved.mixtures")
GATEFOLD_LAYER_ROW(dropout, (in_stream(rule, Dropout{0.3, branch})), .hooks = "begin validate infer Saved.mixtures")
GATEFOLD_LAYER_ROW(post_norm, (PostNorm{in_stream(rule, branch), RmsNorm{}}),
                   .hooks = "begin validate infer Saved.mixtures")
GATEFOLD_LAYER_ROW(skip, (Skip{in_stream(rule, branch)}), .hooks = "begin validate infer Saved.mixtures")
GATEFOLD_LAYER_ROW(normed_point, (NormedPoint{LayerNorm{}, in_stream(rule, branch)}),
                   .hooks = "begin validate infer Saved.mixtures", .once = true)
GATEFOLD_LAYER_ROW(stack, (Stack{in_stream(rule, branch), 2}), .hooks = "begin validate infer at Saved.mixtures")
GATEFOLD_LAYER_ROW(competition, (in_stream(rule, Competition{branch, 1.0, 0.3, Affinity::softplus, false})),
                   .cannot_meet =
                       "hash_gate hierarchical_gate soft_moe weight_on_input soft_moe_of_reference noisy_top_k "
                       "gumbel_top_k capacity_by_priority distilled_top_1 load: needs a ComposedGate; the parameters "
                       "of a selection get no gradient in a competition",
                   .hooks = "begin validate infer Saved.mixtures")
GATEFOLD_LAYER_ROW(no_residual, (NoResidual{branch}), .cannot_meet = "rule: has no stream",
                   .hooks = "begin validate infer Saved.mixtures")

// The layers of recommenders. The items of these tests are no ids, so the fields here are numeric columns. In a Chain,
// carries have other names than in `zero` of the rules' rows, and a gate cannot get an attention trace.
GATEFOLD_LAYER_ROW(fields, (Chain{Fields{.numeric = s.item()}, in_stream(rule, branch)}),
                   .cannot_meet = "time_varying scheduled_restart attention_posterior: see above",
                   .hooks = "begin validate infer Saved.mixtures")
GATEFOLD_LAYER_ROW(multi_gate,
                   (Chain{in_stream(rule, OneExpert{Linear{.model_dim = s.item()}}),
                          MultiGate{branch.gate, branch.expert, 2},
                          Towers{Linear{.model_dim = branch.out_dim(), .output_dim = s.width}, 2}}),
                   .cannot_meet =
                       "soft_moe soft_moe_of_reference weight_on_input time_varying scheduled_restart "
                       "attention_posterior: see above, and needs a SparsePlan",
                   .hooks = "begin validate infer Saved.mixtures")

GATEFOLD_LAYER_ROW(competition_by_norm, (in_stream(rule, Competition{branch, 1.0, 0.3, Affinity::norm, false})),
                   .cannot_meet =
                       "hash_gate hierarchical_gate soft_moe weight_on_input soft_moe_of_reference noisy_top_k "
                       "gumbel_top_k capacity_by_priority distilled_top_1 load: needs a ComposedGate; the parameters "
                       "of a selection get no gradient in a competition",
                   .hooks = "begin validate infer Saved.mixtures", .once = true)

// Recompute gives the same bits as the layer inside it, which layer/recompute_test.cpp tests.
GATEFOLD_LAYER_ROW(recompute, (Stack{Recompute{in_stream(rule, branch)}, 2}),
                   .hooks = "begin validate infer at Saved.mixtures", .once = true)

}  // namespace gatefold::rows
