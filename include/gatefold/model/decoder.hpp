#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/attention/kv_cache.hpp"
#include "gatefold/core/weights.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/rms_norm.hpp"
#include "gatefold/expert/sigmoid_gated.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/either.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/layer/grouped_query_attention.hpp"
#include "gatefold/layer/latent_attention.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/update/plain.hpp"

namespace gatefold {

/// The sizes and options of a published decoder with mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE,
/// gpt-oss, DeepSeek-V2 and V3, Llama 4. io::read_decoder_config reads them from the file config.json of a model.
struct DecoderSizes {
  Index vocabulary = 0, model_dim = 0, depth = 0;
  GroupedQueryAttention attention{};  // its model_dim can be 0
  std::vector<Index> windows{};  // values of attention.window for each layer; empty: attention.window applies to all
  std::vector<Index> chunks{};   // values of attention.chunk for each layer; empty: attention.chunk applies to all
  // Layers without rotary positions. These layers have no norm of rotated heads. attention.temperature applies only to
  // these layers.
  std::vector<Index> unrotated_layers{};
  LatentAttention latent{};                      // if latent_dim > 0, this is the attention of all layers
  Index experts = 0, picks = 0, hidden_dim = 0;  // options of each mixture: experts, k, hidden width
  bool renormalise = true;                       // the weights of the picked experts sum to 1
  bool clamped = false;                          // experts and router of gpt-oss: clamped SwiGLU, with biases
  bool weight_on_input = false;                  // the gate of Llama 4 (SigmoidOnInput) instead of SoftmaxTopK
  bool sigmoid_router = false;                   // the gate of DeepSeek-V3 (SigmoidTopK) instead of SoftmaxTopK
  double router_scale = 1;                       // with latent attention, a factor for the weights of all picks
  Index groups = 1, top_groups = 1;              // with latent attention, the options of SigmoidBias with these names
  Index shared_dim = 0;               // hidden width of the shared expert of each mixture; 0: no shared expert
  std::vector<Index> dense_layers{};  // layers with one dense expert instead of a mixture
  Index dense_dim = 0;                // hidden width of the dense experts
  double epsilon = 1e-6;              // is added to the mean square in the norms
  bool tied = false;                  // the output layer uses the weights of the embedding

  /// Checks that the options do not contradict each other.
  /// @throws ArgumentError if they do
  void validate() const {
    constexpr const char* where = "DecoderSizes";
    const bool short_rows = latent.latent_dim > 0;
    expect(depth >= 1, where, "depth", "at least 1", depth);
    expect(windows.empty() || static_cast<Index>(windows.size()) == depth, where, "windows.size()",
           Joined{"0 or ", depth, " (depth)"}, windows.size());
    expect(chunks.empty() || static_cast<Index>(chunks.size()) == depth, where, "chunks.size()",
           Joined{"0 or ", depth, " (depth)"}, chunks.size());
    for (const auto& [name, layers] :
         {std::pair{"dense_layers", &dense_layers}, std::pair{"unrotated_layers", &unrotated_layers}})
      for (const Index l : *layers)
        expect(0 <= l && l < depth, where, name, Joined{"a layer from 0 to ", depth - 1}, l);
    expect(!short_rows || windows.empty(), where, "windows", "none, because latent attention has no window",
           windows.size());
    expect(!short_rows || (chunks.empty() && unrotated_layers.empty()), where, "chunks and unrotated_layers",
           "none, because a latent_dim is given", chunks.size() + unrotated_layers.size());
    expect(!short_rows || shared_dim >= 1, where, "shared_dim", "at least 1, because latent_dim is given", shared_dim);
    expect(!sigmoid_router || short_rows, where, "sigmoid_router", "false, because latent_dim is 0", "true");
    expect(!clamped || (!short_rows && shared_dim == 0), where, "clamped",
           "false, because a latent_dim or shared_dim is given", "true");
    expect(!weight_on_input || (!short_rows && !clamped), where, "weight_on_input",
           "false, because a latent_dim or clamped is given", "true");
    expect(!weight_on_input || shared_dim >= 1, where, "shared_dim", "at least 1, because weight_on_input is given",
           shared_dim);
  }
  /// Returns whether the gate of a decoder with latent attention is SigmoidTopK, the gate of DeepSeek-V3. A decoder
  /// with softmax scores also uses this gate if top_groups < groups or router_scale is not 1, as DeepSeek-V2 does.
  bool has_sigmoid_top_k() const { return sigmoid_router || router_scale != 1 || top_groups < groups; }
  /// Returns the grouped-query attention of layer l. Do not call it for a decoder with latent attention.
  GroupedQueryAttention attention_of(Index l) const {
    GroupedQueryAttention of_layer = attention.with_model_dim(model_dim);
    if (!windows.empty()) of_layer.window = windows[static_cast<std::size_t>(l)];
    if (!chunks.empty()) of_layer.chunk = chunks[static_cast<std::size_t>(l)];
    if (std::find(unrotated_layers.begin(), unrotated_layers.end(), l) == unrotated_layers.end()) {
      of_layer.temperature = {};
    } else {
      of_layer.rotary.partial_rotary_factor = 0;
      if (of_layer.norm == QueryKeyNorm::rotated_head) of_layer.norm = QueryKeyNorm::none;
    }
    return of_layer;
  }
  /// Returns the loss, which consists of the output layer and its cross-entropy.
  StreamedCrossEntropy loss() const {
    return {.vocabulary = vocabulary, .model_dim = model_dim, .bias = false, .tied = tied};
  }
  /// Returns the size of the KV cache of all layers. If all layers have windows or chunks of the same size, the cache
  /// keeps only the items of one window or chunk.
  /// @param longest  the largest number of tokens of a sequence
  CacheSize cache(Index sequences, Index longest) const {
    if (latent.latent_dim > 0) return latent.cache(depth, sequences, longest);
    CacheSize size = attention_of(0).cache(depth, sequences, longest);
    for (Index l = 1; l < depth; ++l) {
      const CacheSize of_layer = attention_of(l).cache(depth, sequences, longest);
      if (of_layer.keep != size.keep) size.keep = 0;
      size.absolute = size.absolute || of_layer.absolute;
    }
    return size;
  }
};

namespace detail_::decoder {

/// Returns a decoder whose layers have the given attention and branch. Dense layers have one expert instead of the
/// branch.
template <class AttentionT, class BranchT>
auto of_parts(const DecoderSizes& s, const AttentionT& attention, const BranchT& branch) {
  const RmsNorm norm{.epsilon = s.epsilon};
  const auto layer = [&](Index l) {
    const bool dense = std::find(s.dense_layers.begin(), s.dense_layers.end(), l) != s.dense_layers.end();
    AttentionT of_layer = attention.with_model_dim(s.model_dim);
    if constexpr (std::is_same_v<AttentionT, GroupedQueryAttention>) of_layer = s.attention_of(l);
    return Chain{Residual{update::Plain{}, PreNorm{norm, of_layer}},
                 Residual{update::Plain{},
                          PreNorm{norm, Either{branch, OneExpert{GatedMlp<Silu>{s.model_dim, s.dense_dim}}, dense}}}};
  };
  std::vector layers{layer(0)};
  for (Index l = 1; l < s.depth; ++l) layers.push_back(layer(l));
  const Embedding embedding{.vocabulary = s.vocabulary, .model_dim = s.model_dim, .sparse = false};
  return Chain{embedding, stack_of(std::move(layers)), RmsNorm{s.model_dim, s.epsilon}};
}

}  // namespace detail_::decoder

/// Calls f(model) with the decoder of these sizes, whose type depends on the options.
///
///     x_0 = embedding(ids),   h = x_{l−1} + attention(norm(x_{l−1})),   x_l = h + branch(norm(h))       (1)
///     y = norm(x_depth)                                                                                (2)
///
/// `branch` is a mixture, with or without a shared expert, or a dense expert. The decoder reads ids [N] and returns the
/// input y [N, D] of the output layer, which is a part of the loss (DecoderSizes::loss):
///
///     with_decoder(sizes, [&](const auto& model) {
///       Trainer trainer{ctx, model, sizes.loss(), optim::AdamW{.lr = 1e-5}, Seed{1}};
///       …
///     });
///
/// Source: the files modeling_mixtral.py, …_qwen2_moe.py, …_qwen3_moe.py, …_olmoe.py, …_gpt_oss.py, …_deepseek_v2.py,
/// …_deepseek_v3.py and …_llama4.py of Hugging Face's transformers.
/// @throws ArgumentError if DecoderSizes::validate throws it
decltype(auto) with_decoder(const DecoderSizes& s, auto&& f) {
  using detail_::decoder::of_parts;
  s.validate();
  const GatedMlp<Silu> expert{s.model_dim, s.hidden_dim}, shared{s.model_dim, s.shared_dim};
  const SoftmaxTopK softmax{.scores = {.experts = s.experts, .bias = false},
                            .selection = {.k = s.picks, .renormalise = s.renormalise}};
  if (s.clamped) {
    SoftmaxTopK with_bias = softmax;
    with_bias.scores.bias = true;
    const GatedMlp<ClampedSilu, ClampedPlusOne> clamped{
        .model_dim = s.model_dim, .hidden_dim = s.hidden_dim, .bias = true};
    return f(of_parts(s, s.attention, Mixture{with_bias, clamped}));
  }
  if (s.weight_on_input) {
    const SigmoidOnInput router = published::llama4({.experts = s.experts, .k = s.picks});
    return f(of_parts(s, s.attention, WithShared{Mixture{router, expert}, shared}));
  }
  if (s.latent.latent_dim == 0) {
    if (s.shared_dim == 0) return f(of_parts(s, s.attention, Mixture{softmax, expert}));
    return f(of_parts(s, s.attention, WithShared{Mixture{softmax, expert}, SigmoidGated{shared}}));
  }
  if (!s.has_sigmoid_top_k()) return f(of_parts(s, s.latent, WithShared{Mixture{softmax, expert}, shared}));
  SigmoidTopK router{.scores = {.experts = s.experts, .bias = false},
                     .selection = {.k = s.picks,
                                   .renormalise = s.renormalise,
                                   .scale = s.router_scale,
                                   .groups = s.groups,
                                   .top_groups = s.top_groups}};
  if (!s.sigmoid_router) {
    // The gate of DeepSeek-V2 has no selection bias. Here, the bias is initially 0, and stays 0 because `speed` is 0.
    router.selection.score = RouterScore::softmax;
    router.selection.group_terms = 1;
    router.selection.speed = 0;
  }
  return f(of_parts(s, s.latent, WithShared{Mixture{router, expert}, shared}));
}

/// The parameters of a decoder, or of another language model with a StreamedCrossEntropy, for inference only. Pass
/// `model` to `infer`, and `loss` and `model` to StreamedCrossEntropy::logits.
template <class ModelP, class LossP, class B>
struct FrozenDecoder {
  FrozenParams<ModelP, B> model;  // its packed copies include the copy of the output layer
  LossP loss;
};

/// Prepares a language model for inference: freezes the parameters of the model (layer/frozen.hpp), and packs the
/// weights W [V, D] of its output layer:
///
///     auto frozen = freeze(ctx, std::move(trainer.params), {.weights = Weights::int8});
///     infer(model, ctx, frozen.model, ids, carry, y);
///     loss.logits(ctx, frozen.loss, frozen.model, y, z);                                 // z = y ŵᵀ + b
///
/// Weights::bfloat16 and the forms of 8 and 4 bits add ŵ, a packed copy of W. The groups of 32 weights with a common
/// scale (core/weights.hpp) are parts of a row of W, because D is the dimension over which the product sums. If the
/// loss is tied, the embedding still reads the unpacked rows of W, and the output layer reads ŵ. Weights::unchanged
/// makes no copy of W. Only `Cpu` and `CpuBf16` copy W. A pattern in the options is compared with the names of the
/// model's tensors, without their prefix `model.`. The name of W is `loss.weight`, also if the loss is tied.
/// @throws ArgumentError if freeze of the parameters (layer/frozen.hpp) throws it
/// @cost   the cost of freeze of the parameters, and memory for the packed copy of W
template <class C, class ModelP, class T, class B>
FrozenDecoder<ModelP, StreamedCrossEntropy::Params<T, B>, B> freeze(
    C& ctx, ModelAndLoss<ModelP, StreamedCrossEntropy::Params<T, B>>&& params, FreezeOptions options = {});

namespace detail_::frozen_decoder {

/// Returns the form (Weights) in which each tensor of a ModelAndLoss is stored, in the order of for_each_tensor.
/// @throws ArgumentError if a pattern selects no tensor
template <class P>
std::vector<Weights> forms(const FreezeOptions& options, const P& params) {
  return detail_::lookup::forms(options, params, "model.");
}

/// Returns the weights of the output layer: the weights of the loss or, if the loss is tied, the table of the
/// embedding.
template <class T, class B, class ModelP>
View<const T, 2, B> output_weights(const ModelP& model, const StreamedCrossEntropy::Params<T, B>& loss) {
  const auto* table = loss.weight.extent(0) == 0 ? first_table<T, B>(model) : nullptr;
  return table ? table->view() : loss.weight.view();
}

}  // namespace detail_::frozen_decoder

template <class C, class ModelP, class T, class B>
FrozenDecoder<ModelP, StreamedCrossEntropy::Params<T, B>, B> freeze(
    C& ctx, ModelAndLoss<ModelP, StreamedCrossEntropy::Params<T, B>>&& params, FreezeOptions options) {
  const std::vector<Weights> forms = detail_::frozen_decoder::forms(options, params);
  const auto of_model = static_cast<std::ptrdiff_t>(count_tensors(params.model));
  auto model = detail_::lookup::freeze_as(ctx, std::move(params.model), {forms.begin(), forms.begin() + of_model},
                                          options.keep_plain);
  const View<const T, 2, B> output = detail_::frozen_decoder::output_weights(model.params, params.loss);
  const Weights form = forms[static_cast<std::size_t>(of_model)];  // of the tensor loss.weight
  if constexpr (requires { B::pack_transposed(ctx, output, form, model.packed); }) {
    const auto here = ctx.here();
    B::pack_transposed(ctx, output, form, model.packed);
  }
  return {std::move(model), std::move(params.loss)};
}

}  // namespace gatefold
