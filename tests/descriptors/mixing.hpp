#pragma once

#include "descriptors/row.hpp"
#include "gatefold/policies.hpp"

namespace gatefold::rows {

GATEFOLD_ROW(independent, (Independent{}), .hooks = "rows rows_backward ranks_are_logits items_adjoint_is_optional")
GATEFOLD_ROW(independent_sigmoid, (IndependentSigmoid{}),
             .hooks = "rows rows_backward ranks_are_logits items_adjoint_is_optional")
GATEFOLD_ROW(token_similarity, (TokenSimilarity{.tau = 0.7}), .hooks = "validate with_model_dim Extra.with_valid",
             .meets = Meets::sequence)
GATEFOLD_ROW(attention_posterior, (AttentionPosterior{.sigma = 1.3}),
             .hooks = "validate Saved.choices Extra.with_valid Extra.WithoutTrace Extra.with_trace ExtraGrad.set_trace",
             .meets = Meets::sequence)

GATEFOLD_ROW(learned_similarity, (TokenSimilarity{.tau = 2, .causal = false, .learned_metric = true}),
             .hooks = "validate with_model_dim Extra.with_valid", .meets = Meets::sequence, .once = true)
GATEFOLD_ROW(confident_similarity, (TokenSimilarity{.only_confident = true}),
             .hooks = "validate with_model_dim Extra.with_valid", .meets = Meets::sequence, .once = true)

}  // namespace gatefold::rows
