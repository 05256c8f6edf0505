#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "gatefold/core/regular_file.hpp"
#include "gatefold/io/json.hpp"
#include "gatefold/model/decoder.hpp"
#include "gatefold/train/config_options.hpp"

/// Reads the architecture and the sizes of a decoder from config.json in a folder of Hugging Face's hub.
namespace gatefold::io {

/// The architecture and the sizes of a decoder.
struct DecoderConfig {
  // mixtral, qwen2_moe, qwen3_moe, olmoe, gpt_oss, deepseek_v2, deepseek_v3, llama4_text or llama4 (the text part of a
  // model with images)
  std::string model_type;
  DecoderSizes sizes{};
  Index max_positions = 0;   // the longest sequence for which the decoder was trained
  Index ignored_layers = 0;  // extra layers at the end, for multi-token prediction; their tensors are not read
};

/// Reads the architecture and the sizes of a decoder from `config.json` in a folder.
/// @throws FileError if the file is missing or not JSON, if an option is missing or has a wrong type, or if an
///         architecture or option is not supported. The message has the path, the name of the option, what was expected
///         and what the file has
template <class Json = nlohmann::json>
DecoderConfig read_decoder_config(const std::filesystem::path& folder);

namespace config_json {

// The largest number of layers. It limits memory, because a DecoderConfig and a decoder have options for each layer.
inline constexpr Index kMostLayers = 10'000;

/// Returns the options of the rotary positions.
/// @param theta  value of rope_theta for files without this option
template <class Json>
Rotary rotary(const Options<Json>& config, Index max_positions, double theta = 10000) {
  const Options<Json> of = config.inside(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  const bool scaled = config.has("rope_parameters") || config.has("rope_scaling");
  const std::string type = scaled ? of.text("rope_type", of.text("type", "default")) : "default";
  Rotary r{.rope_theta = of.number("rope_theta", config.number("rope_theta", theta)),
           .partial_rotary_factor = of.number("partial_rotary_factor", config.number("partial_rotary_factor", 1))};
  if (type == "default") return r;
  r.rope_type = type == "linear" ? RopeType::linear : type == "llama3" ? RopeType::llama3 : RopeType::yarn;
  if (type != "linear" && type != "llama3" && type != "yarn")
    of.fail(of.has("rope_type") ? "rope_type" : "type", "default, linear, llama3 or yarn");
  r.factor = of.number("factor", 1);
  r.original_max_position_embeddings = of.integer("original_max_position_embeddings", max_positions);
  r.low_freq_factor = of.number("low_freq_factor", r.low_freq_factor);
  r.high_freq_factor = of.number("high_freq_factor", r.high_freq_factor);
  r.beta_fast = of.number("beta_fast", r.beta_fast);
  r.beta_slow = of.number("beta_slow", r.beta_slow);
  r.truncate = of.flag("truncate", true);
  r.attention_factor = of.number("attention_factor", 0);
  r.mscale = of.number("mscale", 0);
  r.mscale_all_dim = of.number("mscale_all_dim", 0);
  return r;
}

/// Throws FileError if the file has an option that changes the results and that gatefold's decoders do not support.
template <class Json>
void expect_supported(const Options<Json>& o) {
  if (o.text("hidden_act", "silu") != "silu") o.fail("hidden_act", "silu");
  if (o.has("clip_qkv")) o.fail("clip_qkv", "null, because clipping is not supported");
}
/// Returns the width of the attention window of each layer, or 0 for a layer without a window. The option `layer_types`
/// lists the type of each layer; if the file has no such list, is_sliding(l) returns whether layer l has a window.
template <class Json, class F>
std::vector<Index> windows(const Options<Json>& o, Index depth, const F& is_sliding) {
  const Index window = o.integer("sliding_window", 0);
  const std::vector<std::string> types = o.texts("layer_types");
  if (!types.empty() && static_cast<Index>(types.size()) != depth)
    o.fail("layer_types", "one type for each of " + std::to_string(depth) + " layers");
  std::vector<Index> list;
  for (Index l = 0; l < depth; ++l) {
    const std::string type = !types.empty()  ? types[static_cast<std::size_t>(l)]
                             : is_sliding(l) ? "sliding_attention"
                                             : "full_attention";
    if (type != "sliding_attention" && type != "full_attention")
      o.fail("layer_types", "sliding_attention or full_attention", '"' + type + '"');
    list.push_back(type == "full_attention" ? 0 : window);
  }
  return list;
}

template <class Json>
GroupedQueryAttention grouped_queries(const Options<Json>& o, const DecoderConfig& c) {
  const bool mixtral = c.model_type == "mixtral", qwen2 = c.model_type == "qwen2_moe";
  const bool bias = o.flag("attention_bias", false);
  GroupedQueryAttention a{.model_dim = c.sizes.model_dim,
                          .heads = o.at_least(1, "num_attention_heads"),
                          .rotary = rotary(o, c.max_positions, c.model_type.starts_with("llama4") ? 500000 : 10000),
                          .bias = qwen2 ? o.flag("qkv_bias", true) : bias,
                          .output_bias = !qwen2 && bias,
                          .norm = c.model_type == "qwen3_moe" ? QueryKeyNorm::head
                                  : c.model_type == "olmoe"   ? QueryKeyNorm::all
                                                              : QueryKeyNorm::none,
                          .epsilon = c.sizes.epsilon,
                          .window = mixtral ? o.integer("sliding_window", 0) : 0};
  a.kv_heads = o.at_least(1, "num_key_value_heads", a.heads);
  if (a.heads % a.kv_heads != 0)
    o.fail("num_key_value_heads", "a divisor of num_attention_heads = " + std::to_string(a.heads));
  a.head_dim = o.at_least(1, "head_dim", 0);
  if (a.head_dim == 0 && a.model_dim % a.heads != 0)
    o.fail("hidden_size",
           "a multiple of num_attention_heads = " + std::to_string(a.heads) + ", because head_dim is absent");
  if (a.width() % 2 != 0 && a.rotary.partial_rotary_factor == 1)
    o.fail(a.head_dim > 0 ? "head_dim" : "hidden_size", "an even number of values of a head");
  o.check("rotary.", [&] { a.rotary.validate("config", a.width()); });
  return a;
}
template <class Json>
LatentAttention latent(const Options<Json>& o, const DecoderConfig& c) {
  LatentAttention a{.model_dim = c.sizes.model_dim,
                    .heads = o.at_least(1, "num_attention_heads"),
                    .query_rank = o.integer("q_lora_rank", 0),
                    .latent_dim = o.at_least(1, "kv_lora_rank"),
                    .plain_dim = o.at_least(1, "qk_nope_head_dim"),
                    .rotary_dim = o.at_least(1, "qk_rope_head_dim"),
                    .value_dim = o.at_least(1, "v_head_dim"),
                    .rotary = rotary(o, c.max_positions),
                    .bias = o.flag("attention_bias", false)};
  a.rotary.interleaved = o.flag("rope_interleave", true);
  if (a.rotary_dim % 2 != 0 && a.rotary.partial_rotary_factor == 1) o.fail("qk_rope_head_dim", "an even number");
  o.check("rotary.", [&] { a.rotary.validate("config", a.rotary_dim); });
  return a;
}
/// Adds the options of the mixtures of DeepSeek-V2 and V3.
template <class Json>
void add_deepseek(const Options<Json>& o, DecoderConfig& c) {
  DecoderSizes& s = c.sizes;
  s.latent = latent(o, c);
  s.sigmoid_router = c.model_type == "deepseek_v3";
  s.renormalise = s.sigmoid_router && o.flag("norm_topk_prob", true);
  s.router_scale = o.number("routed_scaling_factor", s.sigmoid_router ? 2.5 : 1);
  o.check("SigmoidBias: ", [&] { expect_finite("SigmoidBias", "routed_scaling_factor", s.router_scale); });
  const std::string method = o.text("topk_method", "greedy");
  if (!s.sigmoid_router && method != "greedy" && method != "group_limited_greedy")
    o.fail("topk_method", "greedy or group_limited_greedy");
  if (s.sigmoid_router || method != "greedy") {
    s.groups = o.at_least(1, "n_group", s.sigmoid_router ? 8 : 1);
    s.top_groups = o.at_least(1, "topk_group", s.sigmoid_router ? 4 : 1);
    if (s.experts % s.groups != 0) o.fail("n_group", "a divisor of n_routed_experts = " + std::to_string(s.experts));
    if (s.top_groups > s.groups) o.fail("topk_group", "at most n_group = " + std::to_string(s.groups));
    const Index most = s.experts / s.groups * s.top_groups;
    if (s.picks > most)
      o.fail("num_experts_per_tok", "at most " + std::to_string(most) + " (the experts in topk_group groups)");
  }
  s.shared_dim = s.hidden_dim * o.at_least(1, "n_shared_experts");
  s.dense_dim = o.at_least(1, "intermediate_size");
  c.ignored_layers = o.integer("num_nextn_predict_layers", 0);
  for (Index l = 0; l < std::min(o.integer("first_k_dense_replace", s.sigmoid_router ? 3 : 0), s.depth); ++l)
    s.dense_layers.push_back(l);
}
/// Adds the options of the mixtures of Qwen2-MoE and Qwen3-MoE.
template <class Json>
void add_qwen(const Options<Json>& o, DecoderConfig& c) {
  DecoderSizes& s = c.sizes;
  const bool qwen2 = c.model_type == "qwen2_moe";
  if (qwen2) s.shared_dim = o.integer("shared_expert_intermediate_size");
  if (o.flag("use_sliding_window", false)) {
    const Index last = o.integer("max_window_layers", 28);  // not used in Qwen3-MoE, where all layers have the window
    s.windows = qwen2 ? windows(o, s.depth, [&](Index l) { return l % 2 == 0 && l < last; })
                      : std::vector<Index>(static_cast<std::size_t>(s.depth), o.integer("sliding_window", 0));
  }
  s.dense_dim = o.at_least(1, "intermediate_size", 1);
  s.dense_layers = o.layers("mlp_only_layers", s.depth);
  const Index step = o.at_least(1, "decoder_sparse_step", 1);
  for (Index l = 0; l < s.depth; ++l)
    if ((l + 1) % step != 0 && std::find(s.dense_layers.begin(), s.dense_layers.end(), l) == s.dense_layers.end())
      s.dense_layers.push_back(l);
}

/// Adds the options of gpt-oss.
template <class Json>
void add_gpt_oss(const Options<Json>& o, DecoderConfig& c) {
  DecoderSizes& s = c.sizes;
  s.clamped = true;
  if (o.number("swiglu_limit", 7) != 7) o.fail("swiglu_limit", "7");
  if (o.number("swiglu_alpha", 1.702) != 1.702) o.fail("swiglu_alpha", "1.702");
  s.attention.bias = s.attention.output_bias = o.flag("attention_bias", true);
  s.attention.sinks = true;
  s.windows = windows(o, s.depth, [](Index l) { return l % 2 == 0; });
}

/// Adds the options of Llama 4.
template <class Json>
void add_llama4(const Options<Json>& o, DecoderConfig& c) {
  DecoderSizes& s = c.sizes;
  const auto of_layers = [&](const char* name) {
    const std::vector<Index> list = o.integers(name);
    if (!list.empty() && static_cast<Index>(list.size()) < s.depth)
      o.fail(name, "one integer for each of " + std::to_string(s.depth) + " layers");
    return list;
  };
  s.weight_on_input = true;
  s.shared_dim = s.hidden_dim;
  s.dense_dim = o.at_least(1, "intermediate_size_mlp", 16384);
  const std::vector<Index> mixtures = o.layers("moe_layers", s.depth),
                           rotated = of_layers("no_rope_layers");  // a 1 for each layer with rotary positions
  const std::vector<std::string> types = o.texts("layer_types");
  if (!types.empty() && static_cast<Index>(types.size()) != s.depth)
    o.fail("layer_types", "one type for each of " + std::to_string(s.depth) + " layers");
  const Index every = o.at_least(1, "interleave_moe_layer_step", 1),
              unrotated_every = o.at_least(1, "no_rope_layer_interval", 4),
              chunk = o.is_null("attention_chunk_size") ? 0 : o.integer("attention_chunk_size", 8192);
  for (Index l = 0; l < s.depth; ++l) {
    const auto at = static_cast<std::size_t>(l);
    const bool rotates = rotated.empty() ? (l + 1) % unrotated_every != 0 : rotated[at] != 0;
    if (!rotates) s.unrotated_layers.push_back(l);
    if (o.has("moe_layers") ? std::find(mixtures.begin(), mixtures.end(), l) == mixtures.end() : (l + 1) % every != 0)
      s.dense_layers.push_back(l);
    const std::string type = !types.empty() ? types[at] : rotates && chunk > 0 ? "chunked_attention" : "full_attention";
    if (type != "chunked_attention" && type != "full_attention")
      o.fail("layer_types", "chunked_attention or full_attention", '"' + type + '"');
    s.chunks.push_back(type == "full_attention" ? 0 : chunk);
  }
  s.attention.rotary.interleaved = true;
  if (o.flag("use_qk_norm", true)) s.attention.norm = QueryKeyNorm::rotated_head;
  if (o.flag_or_number("attn_temperature_tuning", true))
    s.attention.temperature = {.floor_scale = o.integer("floor_scale", 8192),
                               .attn_scale = o.number("attn_scale", 0.1)};
  o.check("temperature.", [&] { s.attention.temperature.validate("config"); });
}

template <class Json>
DecoderConfig config_of(const Options<Json>& all) {
  DecoderConfig c{.model_type = all.text("model_type", "")};
  const bool llama4 = c.model_type == "llama4" || c.model_type == "llama4_text";
  if (c.model_type == "llama4" && !all.has("text_config")) all.fail("text_config", "an object");
  const Options<Json> o = c.model_type == "llama4" ? all.inside("text_config") : all;
  const bool mixtral = c.model_type == "mixtral", olmoe = c.model_type == "olmoe", gpt_oss = c.model_type == "gpt_oss",
             qwen = c.model_type == "qwen2_moe" || c.model_type == "qwen3_moe",
             deepseek = c.model_type == "deepseek_v2" || c.model_type == "deepseek_v3";
  if (!mixtral && !olmoe && !gpt_oss && !qwen && !deepseek && !llama4)
    o.fail("model_type",
           "mixtral, qwen2_moe, qwen3_moe, olmoe, gpt_oss, deepseek_v2, deepseek_v3, llama4_text or llama4");
  expect_supported(o);
  DecoderSizes& s = c.sizes;
  c.max_positions = o.integer("max_position_embeddings", 0);
  s.vocabulary = o.at_least(1, "vocab_size");
  s.model_dim = o.at_least(1, "hidden_size");
  s.depth = o.integer("num_hidden_layers");
  const char* of_experts = deepseek ? "n_routed_experts" : qwen || olmoe ? "num_experts" : "num_local_experts";
  for (const char* name : {"n_routed_experts", "num_experts", "num_local_experts"})
    if (o.has(name)) of_experts = name;
  s.experts = o.at_least(1, of_experts);
  // A number of layers or experts above these limits means that the file is damaged. Without the checks, a load would
  // need memory for each layer and expert before it looks up any tensor.
  if (s.depth < 1 || s.depth > kMostLayers) o.fail("num_hidden_layers", "1 to " + std::to_string(kMostLayers));
  if (s.experts > 100'000) o.fail(of_experts, "at most 100000");
  s.picks = o.at_least(1, "num_experts_per_tok");
  if (s.picks > s.experts)
    o.fail("num_experts_per_tok", "at most " + std::string(of_experts) + " = " + std::to_string(s.experts));
  s.hidden_dim = o.at_least(1, qwen || deepseek ? "moe_intermediate_size" : "intermediate_size");
  s.renormalise = mixtral || gpt_oss || o.flag("norm_topk_prob", false);
  s.epsilon = o.number("rms_norm_eps", mixtral || olmoe || gpt_oss || llama4 ? 1e-5 : 1e-6);
  o.check("config: ", [&] { expect_positive("config", "rms_norm_eps", s.epsilon); });
  s.tied = o.flag("tie_word_embeddings", false);
  if (deepseek) {
    add_deepseek(o, c);
  } else {
    s.attention = grouped_queries(o, c);
    if (qwen) add_qwen(o, c);
    if (gpt_oss) add_gpt_oss(o, c);
    if (llama4) add_llama4(o, c);
  }
  return c;
}

}  // namespace config_json

template <class Json>
DecoderConfig read_decoder_config(const std::filesystem::path& folder) {
  RegularFile file(folder / "config.json");
  if (file.size() > 10'000'000) file.fail("expected at most 10000000 bytes, got " + std::to_string(file.size()));
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) file.fail("expected a JSON object");
  return config_json::config_of(config_json::Options<Json>(file.path(), json));
}

#if defined(GATEFOLD_IO_KERNEL)
GATEFOLD_IO_KERNEL DecoderConfig read_decoder_config<nlohmann::json>(const std::filesystem::path&);
#endif

}  // namespace gatefold::io
