#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/io/published_maps.hpp"
#include "gatefold/train/decoder_config.hpp"
#include "gatefold/train/load_parameters.hpp"

/// Reads decoders from folders of Hugging Face's hub. A folder contains config.json and the tensors, which are in
/// model.safetensors or in the files that model.safetensors.index.json names.
///
///     const auto config = io::read_decoder_config(folder);
///     with_decoder(config.sizes, [&](const auto& model) {
///       auto params = io::load_decoder(folder, ctx, config, model);      // params.model and params.loss
///       …
///       io::save("new/model.safetensors", ctx, {}, io::decoder_map(config), params, io::Stored::bf16);
///     });
namespace gatefold::io {

/// Returns the parameters of a decoder from the tensors of a folder, converted to T. Tensors for images in a folder of
/// Llama 4 are ignored.
/// @param model  the decoder that with_decoder makes of config.sizes
/// @return a ModelAndLoss: `model` has the parameters of the decoder, `loss` has the parameters of the output layer
/// @throws FileError with path, tensor and reason: if a file or a tensor is missing, a tensor has a different shape, a
///         file has a tensor that the decoder does not have, or the output layer of a file differs from the embedding
///         although config.sizes.tied is true. Then no parameters have been allocated
/// @cost   memory for the parameters; in addition host memory for four blocks of 1 MiB, or for four copies of the
///         largest matrix if it has more than 1 MiB
template <class T = float, class C, class M>
auto load_decoder(const std::filesystem::path& folder, C& ctx, const DecoderConfig& config, const M& model);

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
/// Adds the entries of a linear map (weight, and bias if there is one). In gatefold, the first extent of its tensors is
/// the number of experts, 1. The tensors in the file do not have this dimension.
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

namespace decoder_folder {

/// Returns true if a decoder ignores a tensor. It ignores the frequencies of rotary positions, because it computes them
/// from config.json. It also ignores the layers for multi-token prediction (DecoderConfig::ignored_layers), and tensors
/// for images in a folder of Llama 4.
inline bool is_ignored(const DecoderConfig& config, const std::string& name) {
  for (Index l = 0; l < std::min(config.ignored_layers, config_json::kMostLayers); ++l)
    if (name.starts_with("model.layers." + std::to_string(config.sizes.depth + l) + ".")) return true;
  return name.ends_with("rotary_emb.inv_freq") ||
         (config.model_type == "llama4" &&
          (name.starts_with("vision_model.") || name.starts_with("multi_modal_projector.")));
}
/// Returns the names of the tensors of all files, without the tensors that the decoder ignores.
inline std::set<std::string> names(const TensorFiles& files, const DecoderConfig& config) {
  std::set<std::string> all;
  for (const TensorInfo& info : files.tensors())
    if (!is_ignored(config, info.name)) all.insert(info.name);
  return all;
}

/// Returns the map from the tensors of a decoder to tensors in its files. The names in the files show in which form
/// experts are stored.
inline TensorMap map_of(const TensorFiles& files, const DecoderConfig& config) {
  bool fused = false, scaled = false;
  for (const TensorInfo& tensor : files.tensors())
    if (tensor.name.ends_with("experts.gate_up_proj")) {
      fused = true;
      scaled = scaled || files.has_scales(tensor.name);
    }
  return decoder_map(config, config.sizes.clamped && scaled ? published::ExpertStorage::mxfp4
                             : fused                        ? published::ExpertStorage::fused
                                                            : published::ExpertStorage::one_by_one);
}

/// Returns whether two tensors have the same shape and values. Only a part of their elements is in memory at a time.
inline bool same_values(const TensorFiles& files, const std::string& a, const std::string& b) {
  if (files.info(a).shape != files.info(b).shape) return false;
  for (const std::string& name : {a, b}) files.expect_reads_as<double>(files.info(name));
  std::uint64_t all = 1;
  for (const std::uint64_t extent : files.info(a).shape) all *= extent;
  const std::uint64_t at_once = tensor_map::kReadAtOnce / sizeof(double);
  const auto read = [&](const std::string& name, std::uint64_t first, std::uint64_t count) {
    const std::vector<std::byte> bytes = files.read_part(name, {all, 0, 1}, first, count);
    std::vector<double> values(count);
    safetensors::decode(files.info(name).dtype, bytes.data(), values.size(), values.data());
    return values;
  };
  for (std::uint64_t first = 0; first < all; first += at_once) {
    const std::uint64_t count = std::min(at_once, all - first);
    if (read(a, first, count) != read(b, first, count)) return false;
  }
  return true;
}

/// Checks that the files have all tensors of the decoder, and no others. Reads the shapes of `params`, not the
/// elements.
/// @throws FileError under the same conditions as load_decoder
void expect_tensors(const TensorFiles& files, const TensorMap& map, const DecoderConfig& config, const auto& params) {
  tensor_map::expect_stored(files, map, params);
  std::set<std::string> ours;
  for_each_stored(map, params, [&](const std::string& name) { ours.insert(name); });
  const std::string& embedding = map.front().theirs;
  for (const std::string& name : names(files, config)) {
    const bool again = config.sizes.tied && name.ends_with("lm_head.weight");
    if (!again && !ours.contains(name)) files.fail(name, "a decoder with this config.json has no such tensor");
    if (again && !same_values(files, name, embedding))
      files.fail(name, "expected the values of " + embedding + ", because tie_word_embeddings is true");
  }
}

/// Returns the parameters of a decoder and its loss as tensors with extents but without elements (backend Shapes).
/// Checks with expect_tensors that the files have these tensors.
template <class T, class M>
auto checked_shapes(const TensorFiles& files, const TensorMap& map, const DecoderConfig& config, const M& model) {
  Shapes::Context ctx;
  ModelAndLoss<ParametersOf<T, Shapes::Context, M>, Params<StreamedCrossEntropy, T, Shapes>> shapes{
      shapes_of<T>(model), init_params<T, Shapes>(config.sizes.loss(), ctx, Seed{})};
  expect_tensors(files, map, config, shapes);
  return shapes;
}

/// Sets the tensors of a decoder that are not in its files. These are the speeds at which the biases of SigmoidTopK
/// gates change. The files of DeepSeek-V2 have no biases either: biases and speeds are set to 0, so the biases remain
/// 0.
template <class C, class P>
void set_others(C& ctx, const DecoderConfig& config, P& params) {
  const bool biased = config.sizes.sigmoid_router;
  for_each_tensor(
      [&]<class Tensor>(const Name& name, Tensor& t) {
        if constexpr (Tensor::rank == 1) {
          if (name.str().ends_with(".selection.speed")) fill(ctx, t.view(), biased ? SigmoidBias{}.speed : 0);
          if (!biased && name.str().ends_with(".selection.bias")) fill(ctx, t.view(), 0);
        }
      },
      params);
}

}  // namespace decoder_folder

template <class T, class C, class M>
auto load_decoder(const std::filesystem::path& folder, C& ctx, const DecoderConfig& config, const M& model) {
  const TensorFiles files(folder / "model.safetensors");
  const TensorMap map = decoder_folder::map_of(files, config);
  const auto shapes = decoder_folder::checked_shapes<T>(files, map, config, model);
  const auto here = ctx.here();
  ModelAndLoss<ParametersOf<T, C, M>, Params<StreamedCrossEntropy, T, typename C::Backend>> params;
  shape_like(params, shapes);
  tensor_map::fill(files, ctx, map, params);
  decoder_folder::set_others(ctx, config, params);
  return params;
}

}  // namespace gatefold::io
