#pragma once

#include <string>
#include <utility>

#include "gatefold/io/tensor_map.hpp"

/// Maps the names of tensors in gatefold's mixtures of experts to the names in checkpoints of published language
/// models, as Hugging Face's transformers saves them.
///
/// Each function returns the map of one transformer block, for the parameters of the gatefold layer that the comment of
/// the function names. `at` is the prefix of the names of the block in the checkpoint, for example
/// `model.layers.0.mlp.`. The maps do not cover norms and attention.
namespace gatefold::io::published {

/// Selects how a checkpoint stores the experts of a block: one by one, with three tensors (gate, up, down) for each
/// expert, or fused, with two tensors for all E experts. The fused tensors have the form of Hugging Face's transformers
/// 5: `experts.gate_up_proj` [E, 2·H, D], with first the H rows of gate and then the H rows of up, and
/// `experts.down_proj` [E, D, H]. mxfp4 is the form of gpt-oss with weights of four bits. It is for
/// train/load_decoder.hpp, which then sets the parameter `mxfp4` of gpt_oss to true. The functions below treat mxfp4 as
/// one_by_one.
enum class ExpertStorage { one_by_one, fused, mxfp4 };

namespace maps {

/// Adds map entries for the weights gate, up and down of gated experts without bias. `theirs` is the prefix of the
/// names in the file. If it contains `{}`, the file has separate tensors for each expert; otherwise the tensors belong
/// to a single expert.
inline void gated(TensorMap& map, const std::string& ours, const std::string& theirs,
                  const std::string& gate = "gate_proj", const std::string& up = "up_proj",
                  const std::string& down = "down_proj") {
  for (const auto& [mine, name] : {std::pair{"gate", &gate}, std::pair{"up", &up}, std::pair{"down", &down}})
    map.push_back({.ours = ours + mine,
                   .theirs = theirs + *name + ".weight",
                   .layout = MapEntry::transposed,
                   .one_expert = theirs.find("{}") == std::string::npos});
}

/// Adds map entries for experts that a file stores in two tensors for all E experts, with gate and up fused into one.
/// With layout `as_it_is`, these tensors are [E, D, 2·H] and [E, H, D]; with `transposed`, [E, 2·H, D] and [E, D, H].
inline void fused(TensorMap& map, const std::string& ours, const std::string& theirs,
                  MapEntry::Layout layout = MapEntry::transposed) {
  map.push_back({ours + "gate", theirs + "gate_up_proj", layout, 0, 2});
  map.push_back({ours + "up", theirs + "gate_up_proj", layout, 1, 2});
  map.push_back({ours + "down", theirs + "down_proj", layout});
}
inline void bank(TensorMap& map, const std::string& ours, const std::string& at, ExpertStorage experts) {
  if (experts == ExpertStorage::fused)
    fused(map, ours, at + "experts.");
  else
    gated(map, ours, at + "experts.{}.");
}

}  // namespace maps

/// Returns the tensor names of Qwen3-MoE and OLMoE checkpoints for the layer `Mixture{SoftmaxTopK{.scores = {.experts =
/// E, .bias = false}, .selection = {.k = 8}}, GatedMlp<Silu>{D, H}}`. The gate's option `renormalise` is
/// `norm_topk_prob` of the checkpoint's configuration: true in Qwen3-MoE, false in OLMoE.
///
/// Source: transformers' modeling_qwen3_moe.py, modeling_olmoe.py; at = "model.layers.0.mlp."
inline TensorMap qwen3_moe(const std::string& at, ExpertStorage experts = ExpertStorage::one_by_one) {
  TensorMap map{{"gate.scores.weight", at + "gate.weight", MapEntry::transposed}};
  maps::bank(map, "expert.", at, experts);
  return map;
}
inline TensorMap olmoe(const std::string& at, ExpertStorage experts = ExpertStorage::one_by_one) {
  return qwen3_moe(at, experts);
}

/// Returns the tensor names of Mixtral checkpoints for the layer `Mixture{SoftmaxTopK{.scores = {.experts = E, .bias =
/// false}, .selection = {.k = 2}}, GatedMlp<Silu>{D, H}}`.
///
/// Source: Jiang et al. 2024, arXiv:2401.04088; transformers' modeling_mixtral.py;
/// at = "model.layers.0.block_sparse_moe.", or "model.layers.0.mlp." if `experts` is fused
inline TensorMap mixtral(const std::string& at, ExpertStorage experts = ExpertStorage::one_by_one) {
  if (experts == ExpertStorage::fused) return qwen3_moe(at, experts);
  TensorMap map{{"gate.scores.weight", at + "gate.weight", MapEntry::transposed}};
  maps::gated(map, "expert.", at + "experts.{}.", "w1", "w3", "w2");
  return map;
}

/// Returns the tensor names of Qwen2-MoE checkpoints for the layer `WithShared{Mixture{SoftmaxTopK{…},
/// GatedMlp<Silu>{D, H}}, SigmoidGated{GatedMlp<Silu>{D, H'}}}`. The gate has no bias and does not renormalise.
///
/// Source: transformers' modeling_qwen2_moe.py; at = "model.layers.0.mlp."
inline TensorMap qwen2_moe(const std::string& at, ExpertStorage experts = ExpertStorage::one_by_one) {
  TensorMap map{{"branch.gate.scores.weight", at + "gate.weight", MapEntry::transposed},
                {.ours = "shared.gate",
                 .theirs = at + "shared_expert_gate.weight",
                 .layout = MapEntry::transposed,
                 .one_expert = true}};
  maps::bank(map, "branch.expert.", at, experts);
  maps::gated(map, "shared.expert.", at + "shared_expert.");
  return map;
}

/// Returns the tensor names of DeepSeek-V3 checkpoints for the layer `WithShared{Mixture{gate, GatedMlp<Silu>{D, H}},
/// GatedMlp<Silu>{D, H'}}` with the gate `gatefold::published::deepseek_v3({.experts = E, .k = K, .groups = groups,
/// .top_groups = top_groups})`. The checkpoint has no tensor for the speed at which the gate's bias changes in
/// training, so loading leaves this speed as it is.
///
/// Source: DeepSeek-AI 2024, arXiv:2412.19437; transformers' modeling_deepseek_v3.py; at = "model.layers.3.mlp."
inline TensorMap deepseek_v3(const std::string& at, ExpertStorage experts = ExpertStorage::one_by_one) {
  TensorMap map{{"branch.gate.scores.weight", at + "gate.weight", MapEntry::transposed},
                {"branch.gate.selection.bias", at + "gate.e_score_correction_bias"},
                {"branch.gate.selection.speed"}};
  maps::bank(map, "branch.expert.", at, experts);
  maps::gated(map, "shared.", at + "shared_experts.");
  return map;
}

/// Returns the tensor names of gpt-oss checkpoints for the layer `Mixture{SoftmaxTopK{.scores = {.experts = E},
/// .selection = {.k = K}}, GatedMlp<ClampedSilu, ClampedPlusOne>{.model_dim = D, .hidden_dim = H, .bias = true}}`. The
/// columns of gate and up alternate in one tensor of the file.
/// @param mxfp4  true for files with MXFP4 weights (`gate_up_proj_blocks`), whose matrices are transposed
///
/// Source: OpenAI 2025, arXiv:2508.10925; transformers' modeling_gpt_oss.py; at = "model.layers.0.mlp."
inline TensorMap gpt_oss(const std::string& at, bool mxfp4 = false) {
  const MapEntry::Layout layout = mxfp4 ? MapEntry::transposed : MapEntry::as_it_is;
  const std::string experts = at + "experts.";
  TensorMap map{{"gate.scores.weight", at + "router.weight", MapEntry::transposed},
                {"gate.scores.bias", at + "router.bias"},
                {"expert.down", experts + "down_proj", layout},
                {"expert.down_bias", experts + "down_proj_bias"}};
  for (const Index part : {0, 1}) {
    const std::string ours = part == 0 ? "expert.gate" : "expert.up";
    map.push_back({.ours = ours,
                   .theirs = experts + "gate_up_proj",
                   .layout = layout,
                   .part = part,
                   .parts = 2,
                   .interleaved = true});
    map.push_back({.ours = ours + "_bias",
                   .theirs = experts + "gate_up_proj_bias",
                   .part = part,
                   .parts = 2,
                   .interleaved = true});
  }
  return map;
}

/// Returns the tensor names of Llama 4 checkpoints for the layer
/// `WithShared{Mixture{gatefold::published::llama4({.experts = E, .k = K}), GatedMlp<Silu>{D, H}}, GatedMlp<Silu>{D,
/// H}}`. All experts are in two tensors, `gate_up_proj` [E, D, 2·H] and `down_proj` [E, H, D].
///
/// Source: transformers' modeling_llama4.py; at = "model.layers.0.feed_forward.", in models with images
/// "language_model.model.layers.0.feed_forward."
inline TensorMap llama4(const std::string& at) {
  TensorMap map{{"branch.gate.scores.weight", at + "router.weight", MapEntry::transposed}};
  maps::fused(map, "branch.expert.", at + "experts.", MapEntry::as_it_is);
  maps::gated(map, "shared.", at + "shared_expert.");
  return map;
}

/// Returns the tensor names of Switch Transformer checkpoints for the layer
/// `Mixture{gatefold::published::switch_transformer({.experts = E}), Mlp<Relu>{.model_dim = D, .hidden_dim = H, .bias =
/// false}}`.
///
/// Source: Fedus et al. 2021, arXiv:2101.03961; transformers' modeling_switch_transformers.py;
/// at = "encoder.block.1.layer.1.mlp."
inline TensorMap switch_transformer(const std::string& at) {
  return {{"gate.scores.weight", at + "router.classifier.weight", MapEntry::transposed},
          {"expert.up", at + "experts.expert_{}.wi.weight", MapEntry::transposed},
          {"expert.down", at + "experts.expert_{}.wo.weight", MapEntry::transposed}};
}

}  // namespace gatefold::io::published
