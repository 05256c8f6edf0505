#include "gatefold/train/decoder_config.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "gatefold/core/types.hpp"
#include "support/decoder_folders.hpp"
#include "support/decoders.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

std::string error_of(const CopiedFolder& folder) {
  return folder.error_of([](const std::filesystem::path& path) { io::read_decoder_config(path); });
}

}  // namespace

TEST_CASE("read_decoder_config: errors name file, option and value") {
  const auto error = [](const std::string& text, const std::string& by) {
    return error_of(CopiedFolder().config(text, by));
  };
  CHECK(error_of(CopiedFolder()) == "no error");
  CHECK(error_of(CopiedFolder().remove("config.json")) == "config.json: cannot open: No such file or directory");
  CHECK(error_of(CopiedFolder().cut("config.json", 10)) == "config.json: expected a JSON object");
  CHECK(error("\"mixtral\"", "\"llama\"") ==
        "config.json: model_type: expected mixtral, qwen2_moe, qwen3_moe, olmoe, gpt_oss, deepseek_v2, deepseek_v3, "
        "llama4_text or llama4, got \"llama\"");
  CHECK(error("\"model_type\"", "\"kind\"") ==
        "config.json: model_type: expected mixtral, qwen2_moe, qwen3_moe, olmoe, gpt_oss, deepseek_v2, deepseek_v3, "
        "llama4_text or llama4, got nothing");
  CHECK(error("\"hidden_size\"", "\"size\"") == "config.json: hidden_size: expected an integer, got nothing");
  CHECK(error("\"vocab_size\": 37", "\"vocab_size\": \"37\"") ==
        "config.json: vocab_size: expected an integer from 0 to 1000000000, got \"37\"");
  CHECK(error("\"vocab_size\": 37", "\"vocab_size\": -1") ==
        "config.json: vocab_size: expected an integer from 0 to 1000000000, got -1");
  CHECK(error("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2.5") ==
        "config.json: num_hidden_layers: expected an integer from 0 to 1000000000, got 2.5");
  for (const char* layers : {"0", "10001"})
    CHECK(error("\"num_hidden_layers\": 2", "\"num_hidden_layers\": " + std::string(layers)) ==
          "config.json: num_hidden_layers: expected 1 to 10000, got " + std::string(layers));
  CHECK(error("\"num_local_experts\": 5", "\"num_local_experts\": 100001") ==
        "config.json: num_local_experts: expected at most 100000, got 100001");
  CHECK(error("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0") ==
        "config.json: tie_word_embeddings: expected true or false, got 0");
  CHECK(error("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": \"small\"") ==
        "config.json: rms_norm_eps: expected a number, got \"small\"");
}

TEST_CASE("read_decoder_config: unsupported options are errors") {
  const auto error = [](const std::string& text, const std::string& by) {
    return error_of(CopiedFolder().config(text, by));
  };
  CHECK(error("\"silu\"", "\"gelu\"") == "config.json: hidden_act: expected silu, got \"gelu\"");
  CHECK(error("\"use_cache\": false", "\"clip_qkv\": 8") ==
        "config.json: clip_qkv: expected null, because clipping is not supported, got 8");
  CHECK(error("\"default\"", "\"dynamic\"") ==
        "config.json: rope_type: expected default, linear, llama3 or yarn, got \"dynamic\"");
  CHECK(error_of(CopiedFolder("qwen2_moe").config("\"full_attention\"", "\"linear_attention\"")) ==
        "config.json: layer_types: expected sliding_attention or full_attention, got \"linear_attention\"");
  CHECK(error_of(CopiedFolder("gpt_oss").config("\"swiglu_limit\": 7.0", "\"swiglu_limit\": 6.0")) ==
        "config.json: swiglu_limit: expected 7, got 6.0");
  CHECK(error_of(CopiedFolder("deepseek_v2").config("\"topk_method\": \"greedy\"", "\"topk_method\": \"noaux_tc\"")) ==
        "config.json: topk_method: expected greedy or group_limited_greedy, got \"noaux_tc\"");
  CHECK(error_of(CopiedFolder("qwen2_moe").config("\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 0")) ==
        "config.json: decoder_sparse_step: expected at least 1, got 0");
}

TEST_CASE("read_decoder_config: errors for invalid sizes name the option") {
  // Replaces an option of a golden config.json, or adds it, and returns the error.
  const auto error = [](const std::string& decoder, const std::string& option, const nlohmann::json& value) {
    CopiedFolder folder(decoder);
    std::ifstream file(folder.to.path / "config.json");
    nlohmann::json json = nlohmann::json::parse(file);
    nlohmann::json* to = &json;
    for (const char* inside : {"text_config", "rope_parameters"})
      if (to->contains(inside) && (inside[0] == 't' || (*to)[inside].contains(option))) to = &(*to)[inside];
    (*to)[option] = value;
    folder.to.write(json.dump(), "config.json");
    const std::string text = error_of(folder);
    CHECK_MESSAGE(text.starts_with("config.json: "), decoder << ' ' << option << ": " << text);
    return text.substr(std::min<std::size_t>(text.size(), 13));
  };
  for (const std::string& decoder : all_decoders()) {
    CAPTURE(decoder);
    for (const char* size : {"vocab_size", "hidden_size", "num_experts_per_tok", "num_attention_heads"})
      CHECK(error(decoder, size, 0) == size + std::string(": expected at least 1, got 0"));
    for (const double epsilon : {0.0, -1.0})
      CHECK(error(decoder, "rms_norm_eps", epsilon).starts_with("rms_norm_eps: expected more than 0, got "));
    CHECK(error(decoder, "rope_theta", 0).starts_with("rope_theta: expected more than 0, got 0"));
    CHECK(error(decoder, "num_experts_per_tok", 100).starts_with("num_experts_per_tok: expected at most "));
    if (!decoder.starts_with("deepseek")) {
      CHECK(error(decoder, "num_key_value_heads", 3)
                .starts_with("num_key_value_heads: expected a divisor of num_attention_heads = "));
      CHECK(error(decoder, "num_key_value_heads", 0) == "num_key_value_heads: expected at least 1, got 0");
      CHECK(error(decoder, "head_dim", 7) == "head_dim: expected an even number of values of a head, got 7");
      CHECK(error(decoder, "head_dim", 0) == "head_dim: expected at least 1, got 0");
    }
  }
  CHECK(error("mixtral", "num_local_experts", nullptr) == "num_local_experts: expected an integer, got nothing");
  CHECK(error("mixtral", "num_local_experts", 1) ==
        "num_experts_per_tok: expected at most num_local_experts = 1, got 2");
  CHECK(error("mixtral", "intermediate_size", 0) == "intermediate_size: expected at least 1, got 0");
  CHECK(error("llama4_text", "intermediate_size_mlp", 0) == "intermediate_size_mlp: expected at least 1, got 0");
  CHECK(error("mixtral_llama3", "factor", 0.5) == "factor: expected at least 1, got 0.5");
  CHECK(error("gpt_oss", "beta_slow", 0).starts_with("beta_slow: expected above 0 and less than beta_fast = 32"));
  CHECK(error("deepseek_v3", "original_max_position_embeddings", 0).starts_with("original_max_position_embeddings: "));
  for (const char* width : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_shared_experts",
                            "moe_intermediate_size", "intermediate_size", "n_group", "topk_group"})
    CHECK(error("deepseek_v3", width, 0) == width + std::string(": expected at least 1, got 0"));
  CHECK(error("deepseek_v3", "qk_rope_head_dim", 3) == "qk_rope_head_dim: expected an even number, got 3");
  CHECK(error("deepseek_v2_groups", "n_group", 5) == "n_group: expected a divisor of n_routed_experts = 12, got 5");
  CHECK(error("deepseek_v3", "n_group", 3) == "n_group: expected a divisor of n_routed_experts = 8, got 3");
  CHECK(error("deepseek_v3", "topk_group", 5) == "topk_group: expected at most n_group = 4, got 5");
  CHECK(error("deepseek_v3", "num_experts_per_tok", 5) ==
        "num_experts_per_tok: expected at most 4 (the experts in topk_group groups), got 5");
}

TEST_CASE("read_decoder_config: reads the kind of each layer of Llama 4") {
  const auto sizes = [](const CopiedFolder& folder) { return io::read_decoder_config(folder.to.path).sizes; };
  using List = std::vector<Index>;
  const DecoderSizes text = sizes(CopiedFolder("llama4_text"));
  CHECK(text.weight_on_input);
  CHECK(text.chunks == List{5, 0, 5});
  CHECK(text.unrotated_layers == List{1});
  CHECK(text.dense_layers == List{1});
  CHECK(text.attention_of(0).chunk == 5);
  CHECK(text.attention_of(0).norm == QueryKeyNorm::rotated_head);
  CHECK(text.attention_of(0).temperature.floor_scale == 0);
  CHECK(text.attention_of(0).rotary.interleaved);
  CHECK(text.attention_of(0).rotary.partial_rotary_factor == 1);
  CHECK(text.attention_of(1).chunk == 0);
  CHECK(text.attention_of(1).norm == QueryKeyNorm::none);
  CHECK(text.attention_of(1).temperature.floor_scale == 3);
  CHECK(text.attention_of(1).rotary.partial_rotary_factor == 0);
  CHECK(text.cache(1, 100).keep == 0);

  // Without lists of layers, interleave_moe_layer_step and no_rope_layer_interval decide: layers 1, 3, … are mixtures,
  // and layer 2 has no positions.
  CopiedFolder short_form("llama4");
  const auto without_lists = [&](const std::string& more) {
    short_form.to.write(
        "{\"model_type\": \"llama4\", \"text_config\": {\"vocab_size\": 23, \"hidden_size\": 8, "
        "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"head_dim\": 6, \"intermediate_size\": 5, \"intermediate_size_mlp\": 7, "
        "\"num_local_experts\": 3, \"num_experts_per_tok\": 1" +
            more + "}}",
        "config.json");
    return sizes(short_form);
  };
  const DecoderSizes steps = without_lists(", \"interleave_moe_layer_step\": 2, \"no_rope_layer_interval\": 3");
  CHECK(steps.dense_layers == List{0, 2});
  CHECK(steps.unrotated_layers == List{2});
  CHECK(steps.chunks == List{8192, 8192, 0});
  CHECK(steps.attention.rotary.rope_theta == 500000);
  CHECK(steps.attention.temperature.floor_scale == 8192);
  CHECK(steps.epsilon == 1e-5);
  CHECK(error_of(short_form) == "no error");
  const DecoderSizes defaults = without_lists(", \"attention_chunk_size\": null, \"no_rope_layers\": []");
  CHECK(defaults.dense_layers.empty());
  CHECK(defaults.unrotated_layers.empty());  // of three layers; the fourth would be unrotated
  CHECK(defaults.chunks == List{0, 0, 0});
  CHECK(without_lists(", \"attn_temperature_tuning\": 4").attention.temperature.floor_scale == 8192);
  CHECK(without_lists(", \"attn_temperature_tuning\": false").attention.temperature.floor_scale == 0);
  CHECK(without_lists(", \"use_qk_norm\": false").attention.norm == QueryKeyNorm::none);

  const auto error = [](const std::string& option, const std::string& by) {
    return error_of(CopiedFolder("llama4_text").config(option, by));
  };
  CHECK(error_of(CopiedFolder("llama4").config("\"text_config\"", "\"text\"")) ==
        "config.json: text_config: expected an object, got nothing");
  CHECK(error("\"full_attention\"", "\"sliding_attention\"") ==
        "config.json: layer_types: expected chunked_attention or full_attention, got \"sliding_attention\"");
  CHECK(error("\"interleave_moe_layer_step\": 1", "\"interleave_moe_layer_step\": 0") ==
        "config.json: interleave_moe_layer_step: expected at least 1, got 0");
  CHECK(error("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4") ==
        "config.json: no_rope_layers: expected one integer for each of 4 layers, got [1,0,1]");
  CHECK(error("\"attn_temperature_tuning\": true", "\"attn_temperature_tuning\": \"on\"") ==
        "config.json: attn_temperature_tuning: expected true or false, got \"on\"");
}

namespace {

io::DecoderConfig read(const std::string& json) {
  const TempDirectory to;
  to.write(json, "config.json");
  return io::read_decoder_config(to.path);
}
/// Returns the options that config.json must have, and `more`.
std::string json(const std::string& more) {
  return R"({"vocab_size": 37, "hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 4, )" + more + "}";
}

}  // namespace

TEST_CASE("read_decoder_config: absent options get the defaults of Hugging Face") {
  const io::DecoderConfig mixtral =
      read(json(R"("model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 7,
                   "rope_theta": 1e6, "head_dim": null)"));
  CHECK(mixtral.model_type == "mixtral");
  CHECK(mixtral.max_positions == 0);
  CHECK(mixtral.sizes.vocabulary == 37);
  CHECK(mixtral.sizes.depth == 4);
  CHECK(mixtral.sizes.experts == 5);
  CHECK(mixtral.sizes.picks == 2);
  CHECK(mixtral.sizes.hidden_dim == 7);
  CHECK(mixtral.sizes.renormalise);
  CHECK_FALSE(mixtral.sizes.tied);
  CHECK(mixtral.sizes.epsilon == 1e-5);
  CHECK(mixtral.sizes.attention.kv_heads == 4);
  CHECK(mixtral.sizes.attention.window == 0);
  CHECK(mixtral.sizes.attention.rotary.rope_theta == 1e6);
  const io::DecoderConfig deepseek = read(json(
      R"("model_type": "deepseek_v3", "n_routed_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 5,
         "n_shared_experts": 2, "intermediate_size": 9, "kv_lora_rank": 6, "qk_nope_head_dim": 3, "v_head_dim": 5,
         "qk_rope_head_dim": 4)"));
  CHECK(deepseek.sizes.router_scale == 2.5);
  CHECK(deepseek.sizes.groups == 8);
  CHECK(deepseek.sizes.top_groups == 4);
  CHECK(deepseek.sizes.shared_dim == 10);
  CHECK(deepseek.sizes.dense_layers == std::vector<Index>{0, 1, 2});
  CHECK(deepseek.sizes.latent.rotary.interleaved);
  CHECK(deepseek.sizes.latent.query_rank == 0);
}

TEST_CASE("read_decoder_config: reads which layers have windows or are dense") {
  const std::string qwen = R"("num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 5,
    "intermediate_size": 9, "shared_expert_intermediate_size": 9, "sliding_window": 3, "use_sliding_window": true, )";
  using Layers = std::vector<Index>;
  // In Qwen2-MoE, even layers below max_window_layers have the window, unless there is a list.
  CHECK(read(json(qwen + R"("model_type": "qwen2_moe", "max_window_layers": 3)")).sizes.windows == Layers{3, 0, 3, 0});
  CHECK(read(json(qwen + R"("model_type": "qwen2_moe", "layer_types": ["full_attention", "sliding_attention",
                            "sliding_attention", "full_attention"])"))
            .sizes.windows == Layers{0, 3, 3, 0});
  CHECK(read(json(qwen + R"("model_type": "qwen3_moe")")).sizes.windows == Layers{3, 3, 3, 3});
  CHECK(read(json(qwen + R"("model_type": "qwen3_moe", "decoder_sparse_step": 2, "mlp_only_layers": [1])"))
            .sizes.dense_layers == Layers{1, 0, 2});
  CHECK(read(json(R"("model_type": "gpt_oss", "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 6,
                     "sliding_window": 4)"))
            .sizes.windows == Layers{4, 0, 4, 0});
}

TEST_CASE("read_decoder_config: reads the options of scaled rotary positions") {
  const io::DecoderConfig config = io::read_decoder_config(decoder_folders() / "mixtral_llama3");
  const Rotary& llama3 = config.sizes.attention.rotary;
  CHECK(llama3.rope_type == RopeType::llama3);
  CHECK(llama3.factor == 8);
  CHECK(llama3.original_max_position_embeddings == 16);
  CHECK(config.max_positions == 128);
  const Rotary yarn = io::read_decoder_config(decoder_folders() / "gpt_oss").sizes.attention.rotary;
  CHECK(yarn.rope_type == RopeType::yarn);
  CHECK(yarn.rope_theta == 150000);
  CHECK_FALSE(yarn.truncate);
}

TEST_CASE("read_decoder_config: each option with a wrong type is an error") {
  std::set<std::string> read;  // the options that some architecture reads
  for (const std::string& name : all_decoders()) {
    if (name == "llama4") continue;  // it has the options of llama4_text in text_config
    const CopiedFolder folder(name);
    const auto whole = nlohmann::json::parse(read_bytes(folder.to.path / "config.json"));
    const auto check = [&](const std::string& option, const nlohmann::json& changed) {
      folder.to.write(changed.dump(), "config.json");
      const std::string error = error_of(folder);
      if (error == "no error") return;
      CAPTURE(name);
      CHECK(error.starts_with("config.json: " + option + ": expected "));
      CHECK(error.ends_with(R"(, got {"text":1})"));
      read.insert(option);
    };
    const nlohmann::json wrong{{"text", 1}};
    for (const auto& [option, value] : whole.items()) {
      auto changed = whole;
      if (option == "rope_parameters") {
        changed[option] = 7;
        folder.to.write(changed.dump(), "config.json");
        CHECK(error_of(folder) == "config.json: rope_parameters: expected an object, got 7");
        for (const auto& [inner, number] : value.items()) {
          changed = whole;
          changed[option][inner] = wrong;
          check(inner, changed);
        }
        continue;
      }
      changed[option] = wrong;
      check(option, changed);
    }
  }
  std::string options;
  for (const std::string& option : read) options += option + ' ';
  CHECK(options ==
        "attention_bias attention_chunk_size attn_scale attn_temperature_tuning beta_fast beta_slow clip_qkv "
        "decoder_sparse_step factor first_k_dense_replace floor_scale head_dim hidden_act hidden_size "
        "high_freq_factor interleave_moe_layer_step intermediate_size intermediate_size_mlp kv_lora_rank "
        "layer_types low_freq_factor max_position_embeddings max_window_layers mlp_only_layers model_type "
        "moe_intermediate_size moe_layers mscale mscale_all_dim n_group n_routed_experts n_shared_experts "
        "no_rope_layer_interval no_rope_layers norm_topk_prob num_attention_heads num_experts "
        "num_experts_per_tok num_hidden_layers num_key_value_heads num_local_experts "
        "num_nextn_predict_layers original_max_position_embeddings q_lora_rank qk_nope_head_dim "
        "qk_rope_head_dim qkv_bias rms_norm_eps rope_interleave rope_theta rope_type routed_scaling_factor "
        "shared_expert_intermediate_size sliding_window swiglu_alpha swiglu_limit tie_word_embeddings "
        "topk_group topk_method truncate use_qk_norm use_sliding_window v_head_dim vocab_size ");
}
