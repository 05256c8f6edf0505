#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "gatefold/io/published_maps.hpp"
#include "gatefold/io/tensor_map.hpp"
#include "gatefold/model/decoder.hpp"
#include "gatefold/train/decoder_config.hpp"

/// Maps the names of the tensors of a decoder to their names in folders of Hugging Face's hub.
namespace gatefold::io {

/// Returns the map from the tensors of a decoder and its loss (a ModelAndLoss) to their names in a folder of the hub.
/// @param experts  how the file stores the experts of a mixture; has no effect for Llama 4
/// @param first    beginning of each name in the file; it precedes `language_model.` for a Llama 4 with images
TensorMap decoder_map(const DecoderConfig& config,
                      published::ExpertStorage experts = published::ExpertStorage::one_by_one,
                      const std::string& first = "");

namespace decoder_maps {

/// Adds the entry of a gain or bias. Its shape is [1, D] in gatefold and [D] in the file.
inline void vector(TensorMap& map, const std::string& ours, const std::string& theirs) {
  map.push_back({.ours = ours, .theirs = theirs, .one_expert = true});
}
/// Adds the entries of a linear map (weight, and bias if there is one). In the file, its tensors have no dimension for
/// the experts.
inline void linear(TensorMap& map, const std::string& ours, const std::string& theirs, bool bias) {
  map.push_back(
      {.ours = ours + ".weight", .theirs = theirs + ".weight", .layout = MapEntry::transposed, .one_expert = true});
  if (bias) vector(map, ours + ".bias", theirs + ".bias");
}
inline void attention(TensorMap& map, const DecoderSizes& s, const std::string& ours, const std::string& theirs) {
  if (s.latent.latent_dim == 0) {
    linear(map, ours + "query", theirs + "q_proj", s.attention.bias);
    linear(map, ours + "key", theirs + "k_proj", s.attention.bias);
    linear(map, ours + "value", theirs + "v_proj", s.attention.bias);
    linear(map, ours + "output", theirs + "o_proj", s.attention.output_bias);
    if (s.attention.sinks) vector(map, ours + "sink", theirs + "sinks");
    if (s.attention.norm == QueryKeyNorm::none || s.attention.norm == QueryKeyNorm::rotated_head) return;
    vector(map, ours + "query_norm.gain", theirs + "q_norm.weight");
    vector(map, ours + "key_norm.gain", theirs + "k_norm.weight");
    return;
  }
  const bool two_steps = s.latent.query_rank > 0;
  if (two_steps) {
    linear(map, ours + "query_down", theirs + "q_a_proj", s.latent.bias);
    vector(map, ours + "query_norm.gain", theirs + "q_a_layernorm.weight");
  }
  linear(map, ours + "query", theirs + (two_steps ? "q_b_proj" : "q_proj"), false);
  linear(map, ours + "latent", theirs + "kv_a_proj_with_mqa", s.latent.bias);
  vector(map, ours + "latent_norm.gain", theirs + "kv_a_layernorm.weight");
  linear(map, ours + "key_value", theirs + "kv_b_proj", false);
  linear(map, ours + "output", theirs + "o_proj", s.latent.bias);
}
/// Returns the entries of the mixture of a layer. `at` is the beginning of the names in the file.
inline TensorMap mixture(const DecoderConfig& config, published::ExpertStorage experts, const std::string& at) {
  const bool one_by_one = experts == published::ExpertStorage::one_by_one;
  if (config.model_type == "mixtral" && one_by_one) return published::mixtral(at + "block_sparse_moe.");
  if (config.sizes.weight_on_input) return published::llama4(at + "feed_forward.");
  if (config.sizes.clamped) return published::gpt_oss(at + "mlp.", experts == published::ExpertStorage::mxfp4);
  if (config.model_type == "qwen2_moe") return published::qwen2_moe(at + "mlp.", experts);
  if (config.sizes.latent.latent_dim == 0) return published::qwen3_moe(at + "mlp.", experts);
  TensorMap map = published::deepseek_v3(at + "mlp.", experts);
  if (config.sizes.sigmoid_router) return map;
  // The files of DeepSeek-V2 have no bias of the router.
  std::erase_if(map, [](const MapEntry& entry) { return entry.ours.find(".selection.") != std::string::npos; });
  if (config.sizes.has_sigmoid_top_k())
    for (const char* name : {"branch.gate.selection.bias", "branch.gate.selection.speed"}) map.push_back({name});
  return map;
}

}  // namespace decoder_maps

inline TensorMap decoder_map(const DecoderConfig& config, published::ExpertStorage experts, const std::string& first) {
  const DecoderSizes& s = config.sizes;
  const std::string prefix = first + (config.model_type == "llama4" ? "language_model." : "");
  TensorMap map{{"model.layers.0.weight", prefix + "model.embed_tokens.weight"}};
  decoder_maps::vector(map, "model.layers.2.gain", prefix + "model.norm.weight");
  if (!s.tied) map.push_back({"loss.weight", prefix + "lm_head.weight"});
  for (Index l = 0; l < s.depth; ++l) {
    const std::string number = std::to_string(l), ours = "model.layers.1.layers." + number + ".layers.",
                      branch = ours + "1.branch.branch.", at = prefix + "model.layers." + number + ".";
    decoder_maps::vector(map, ours + "0.branch.norm.gain", at + "input_layernorm.weight");
    decoder_maps::vector(map, ours + "1.branch.norm.gain", at + "post_attention_layernorm.weight");
    decoder_maps::attention(map, s, ours + "0.branch.branch.", at + "self_attn.");
    if (std::find(s.dense_layers.begin(), s.dense_layers.end(), l) != s.dense_layers.end()) {
      published::maps::gated(map, branch + "second.", at + (s.weight_on_input ? "feed_forward." : "mlp."));
      continue;
    }
    for (MapEntry& entry : decoder_maps::mixture(config, experts, at)) {
      entry.ours = branch + "first." + entry.ours;
      map.push_back(std::move(entry));
    }
  }
  return map;
}

}  // namespace gatefold::io
