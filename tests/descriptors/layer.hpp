#pragma once

#include <type_traits>

#include "descriptors/row.hpp"
#include "gatefold/policies.hpp"

// What stands around a mixture. These rows make it of a rule and a branch.
namespace gatefold::rows {

/// A residual stream by the rule, or none.
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
                   .cannot_meet = "soft_moe soft_moe_of_reference: its slots are not items",
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
GATEFOLD_LAYER_ROW(no_residual, (NoResidual{branch}), .cannot_meet = "rule: has no stream",
                   .hooks = "begin validate infer Saved.mixtures")

// Any layer, to the bit (layer/recompute_test.cpp).
GATEFOLD_LAYER_ROW(recompute, (Stack{Recompute{in_stream(rule, branch)}, 2}),
                   .hooks = "begin validate infer at Saved.mixtures", .once = true)

}  // namespace gatefold::rows
