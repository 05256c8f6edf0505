#pragma once

#include "descriptors/row.hpp"
#include "gatefold/policies.hpp"

namespace gatefold::rows {

GATEFOLD_ROW(linear_scores, (LinearScores{}),
             .hooks = "validate forward_rows items_adjoint_is_optional experts with_model_dim")
GATEFOLD_ROW(cosine_scores, (CosineScores{.dim = s.hidden, .temperature = 0.5}),
             .hooks = "validate experts with_model_dim")
GATEFOLD_ROW(fixed_scores, (Fixed<LinearScores>{}), .hooks = "validate experts")
GATEFOLD_ROW(patch_scores, (PatchScores{.length = s.tokens, .initial = Initial::normal(1)}),
             .hooks = "validate forward_rows items_adjoint_is_optional experts with_model_dim")
GATEFOLD_ROW(jitter, (Jitter<LinearScores>{.epsilon = 0.2}), .hooks = "validate experts Extra.at")
GATEFOLD_ROW(jitter_of_gaussian, (Jitter<LinearScores, GaussianNoise>{.epsilon = 0.2}),
             .hooks = "validate experts Extra.at", .once = true)

}  // namespace gatefold::rows
