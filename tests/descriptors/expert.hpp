#pragma once

#include "descriptors/row.hpp"
#include "gatefold/papers/merged_transformer.hpp"
#include "gatefold/policies.hpp"

namespace gatefold::rows {

GATEFOLD_ROW(linear, (Linear{.model_dim = s.item()}), .hooks = "validate weighted_backward")
GATEFOLD_ROW(mlp, (Mlp<Gelu>{.model_dim = s.item(), .hidden_dim = s.hidden}),
             .hooks = "validate infer weighted_backward stores_slots")
GATEFOLD_ROW(gated_mlp, (GatedMlp<Silu>{.model_dim = s.item(), .hidden_dim = s.hidden}),
             .hooks = "validate infer weighted_backward stores_slots")
GATEFOLD_ROW(gated_mlp_gpt_oss,
             (GatedMlp<ClampedSilu, ClampedPlusOne>{
                 .model_dim = s.item(), .hidden_dim = s.hidden, .initial = Initial::normal(3), .bias = true}),
             .hooks = "validate infer weighted_backward stores_slots", .once = true)
GATEFOLD_ROW(hidden_dropout, (HiddenDropout{0.3, Mlp<Gelu>{.model_dim = s.item(), .hidden_dim = s.hidden}}),
             .hooks = "validate infer weighted_backward stores_slots with_noise")
GATEFOLD_ROW(hidden_dropout_gated, (HiddenDropout{0.3, GatedMlp<Silu>{.model_dim = s.item(), .hidden_dim = s.hidden}}),
             .hooks = "validate infer weighted_backward stores_slots with_noise", .once = true)
GATEFOLD_ROW(experts,
             (Experts<Mlp<Gelu>, Linear>{
                 .kinds = {Mlp<Gelu>{.model_dim = s.item(), .hidden_dim = s.hidden}, Linear{.model_dim = s.item()}},
                 .counts = {2, s.experts - 2}}),
             .hooks = "validate infer experts")
GATEFOLD_ROW(experts_without_products,
             (Experts<ZeroExpert, CopyExpert, ConstantExpert>{
                 .kinds = {ZeroExpert{s.item()}, CopyExpert{s.item()}, ConstantExpert{s.item()}},
                 .counts = {1, 1, s.experts - 2}}),
             .hooks = "validate infer experts", .once = true)
GATEFOLD_ROW(layer_norm, (LayerNorm{.model_dim = s.item()}), .hooks = "validate infer with_model_dim", .moved = 0.3)
GATEFOLD_ROW(rms_norm, (RmsNorm{.model_dim = s.item()}), .hooks = "validate infer with_model_dim", .moved = 0.3)
GATEFOLD_ROW(sigmoid_gated, (SigmoidGated{Mlp<Gelu>{.model_dim = s.item(), .hidden_dim = s.hidden}}),
             .hooks = "validate infer")
GATEFOLD_ROW(patch_mlp,
             (PatchMlp<Cubic>{.model_dim = s.width,
                              .patches = s.tokens,
                              .filters = s.item(),
                              .outputs = s.item(),
                              .initial = Initial::normal(0.7)}),
             .hooks = "validate items_adjoint_is_optional")
GATEFOLD_ROW(patch_cnn,
             (PatchCnn<Cubic>{.model_dim = s.width,
                              .patches = s.tokens,
                              .filters = s.item(),
                              .outputs = s.item(),
                              .initial = Initial::normal(0.7)}),
             .hooks = "validate items_adjoint_is_optional")
GATEFOLD_ROW(attention_expert,
             (AttentionExpert{
                 .model_dim = s.width, .length = s.tokens, .outputs = s.item(), .initial = Initial::normal(1)}),
             .hooks = "validate")
GATEFOLD_ROW(attention_expert_factors,
             (AttentionExpert{.model_dim = s.width,
                              .length = s.tokens,
                              .outputs = s.item(),
                              .key_dim = s.hidden,
                              .initial = Initial::normal(0.7)}),
             .hooks = "validate", .once = true)
// With seeds 1 to 4, difference quotients for a key are too coarse in compositions with SoftMoe or Adam.
GATEFOLD_ROW(multi_head_expert,
             (MultiHeadExpert{.model_dim = s.width, .heads = s.heads, .length = s.tokens, .causal = true}),
             .hooks = "validate", .seed = 5)
GATEFOLD_ROW(transformer_expert,
             (TransformerExpert<Gelu>{
                 .model_dim = s.width, .hidden_dim = s.hidden, .heads = s.heads, .length = s.tokens}),
             .hooks = "validate")
GATEFOLD_ROW(
    merged_transformer,
    (MergedTransformer<Gelu>{.model_dim = s.width, .length = s.tokens, .heads = s.heads, .filters = 6}),
    .cannot_meet = "rule residual with_shared skip stack post_norm: one number per item, which no stream holds",
    .hooks = "validate")

GATEFOLD_ROW(mlp_of_relu, (Mlp<Relu>{.model_dim = s.item(), .hidden_dim = s.hidden}),
             .hooks = "validate infer weighted_backward stores_slots", .once = true)
GATEFOLD_ROW(mlp_of_gelu_tanh, (Mlp<GeluTanh>{.model_dim = s.item(), .hidden_dim = s.hidden}),
             .hooks = "validate infer weighted_backward stores_slots", .once = true)
GATEFOLD_ROW(mlp_of_cubic, (Mlp<Cubic>{.model_dim = s.item(), .hidden_dim = s.hidden}),
             .hooks = "validate infer weighted_backward stores_slots", .once = true)
GATEFOLD_ROW(mlp_of_relu2, (Mlp<Relu2>{.model_dim = s.item(), .hidden_dim = s.hidden}),
             .hooks = "validate infer weighted_backward stores_slots", .once = true)

}  // namespace gatefold::rows
