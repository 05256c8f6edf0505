#pragma once

#include "descriptors/row.hpp"
#include "gatefold/policies.hpp"

namespace gatefold::rows {

GATEFOLD_ROW(top_k, (TopK{}), .cannot_meet = "load: shows no noise",
             .hooks = "validate_options rows rows_backward complete_picks items_adjoint_is_optional")
GATEFOLD_ROW(dense, (Dense{}), .cannot_meet = "load: shows no noise")
GATEFOLD_ROW(noisy_top_1, (NoisyTop1<>{.scale = 3}), .cannot_meet = "load: shows no noise",
             .hooks = "validate_options rows complete_picks items_adjoint_is_optional Extra.at")
GATEFOLD_ROW(noisy_top_k, (NoisyTopK<>{.k = 2, .initial = Initial::normal(0.3)}),
             .hooks = "validate validate_options noisy shows_noise experts with_model_dim Extra.at")
GATEFOLD_ROW(capacity, (Capacity<TopK>{.selection = {.k = 2}, .factor = 0.7, .multiple_of = 1, .group = s.sequence}),
             .cannot_meet = "load: shows no noise", .hooks = "validate validate_options noisy shows_noise",
             .meets = Meets::sequence)
GATEFOLD_ROW(expert_choice, (ExpertChoice{.factor = 1.5}),
             .cannot_meet = "load gshard: the picks of an item do not stand side by side",
             .hooks = "validate validate_options picks_by_item Extra.with_valid", .meets = Meets::sequence)
GATEFOLD_ROW(sigmoid_bias, (SigmoidBias{}), .cannot_meet = "load: shows no noise",
             .hooks = "validate validate_options experts Params.adapt")
GATEFOLD_ROW(relu_routing, (ReluRouting{.coefficient = 0.3}),
             .cannot_meet =
                 "load gshard token_similarity attention_posterior learned_similarity confident_similarity: no picks "
                 "by item, and no positive ranks after a mixing",
             .hooks = "validate validate_options picks_by_item needs_logits experts auxiliary_loss Params.adapt")
GATEFOLD_ROW(distilled_top_1, (DistilledTop1{.vocabulary = 7, .router_dim = 3}),
             .cannot_meet =
                 "load token_similarity attention_posterior learned_similarity confident_similarity: shows no noise, "
                 "and needs logits as ranks",
             .hooks = "validate validate_options needs_logits items_adjoint_is_optional experts auxiliary_loss")
GATEFOLD_ROW(replay_top_k, (ReplayTopK{}), .cannot_meet = "load: shows no noise",
             .hooks = "validate validate_options Extra.at")
GATEFOLD_ROW(scheduled_top_k, (ScheduledTopK{}), .cannot_meet = "load: shows no noise",
             .hooks = "validate rows rows_backward complete_picks experts")
GATEFOLD_ROW(random_second, (RandomSecond{}), .cannot_meet = "load: shows no noise",
             .hooks = "validate_options rows rows_backward items_adjoint_is_optional Extra.at")

GATEFOLD_ROW(top_1, (TopK{.k = 1, .renormalise = false}), .cannot_meet = "load: shows no noise",
             .hooks = "validate_options rows rows_backward complete_picks items_adjoint_is_optional", .once = true)
GATEFOLD_ROW(gumbel_top_1, (NoisyTop1<GumbelNoise>{.noisy_weight = true}), .cannot_meet = "load: shows no noise",
             .hooks = "validate_options rows complete_picks items_adjoint_is_optional Extra.at", .once = true)
GATEFOLD_ROW(gumbel_top_k, (NoisyTopK<GumbelNoise>{.k = 2, .initial = Initial::normal(0.3)}),
             .cannot_meet = "load: counts on Gaussian noise",
             .hooks = "validate validate_options noisy shows_noise experts with_model_dim Extra.at", .once = true)
GATEFOLD_ROW(noisy_top_k_of_vmoe, (NoisyTopK<>::vmoe()),
             .hooks = "validate validate_options noisy shows_noise experts with_model_dim Extra.at", .once = true)
GATEFOLD_ROW(sigmoid_bias_of_groups, (SigmoidBias{.groups = s.experts, .top_groups = 2}),
             .cannot_meet = "load: shows no noise", .hooks = "validate validate_options experts Params.adapt",
             .once = true)
GATEFOLD_ROW(capacity_renormalised,
             (Capacity<TopK>{.selection = {.k = 2}, .slots = 3, .group = s.sequence, .renormalise = true}),
             .cannot_meet = "load: shows no noise", .hooks = "validate validate_options noisy shows_noise",
             .meets = Meets::sequence, .once = true)
GATEFOLD_ROW(global_balance, (GlobalBalance<TopK>{.weight = 0.3}), .cannot_meet = "load: shows no noise",
             .hooks = "validate validate_options noisy picks_by_item shows_noise experts auxiliary_loss", .once = true)
GATEFOLD_ROW(softmax_bias, (SigmoidBias{.renormalise = false, .score = RouterScore::softmax, .centred = true}),
             .cannot_meet = "load: shows no noise", .hooks = "validate validate_options experts Params.adapt",
             .once = true)
GATEFOLD_ROW(capacity_by_priority,
             (Capacity<NoisyTopK<>>{.selection = {.k = 2}, .group = s.sequence, .batch_priority = true}),
             .hooks = "validate validate_options noisy shows_noise Extra.at", .meets = Meets::sequence, .once = true)

}  // namespace gatefold::rows
