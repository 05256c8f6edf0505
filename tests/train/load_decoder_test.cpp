#include "gatefold/train/load_decoder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/decoders.hpp"
#include "support/pass.hpp"
#include "support/safetensors_text.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const std::filesystem::path folders = decoder_folders();

/// Returns the logits of the output y of a decoder.
template <class M, class P>
Tensor<double, 2, Cpu> logits_of(Cpu::Context& ctx, const DecoderSizes& sizes, const M&, const P& params,
                                 const Tensor<double, 2, Cpu>& y) {
  Tensor<double, 2, Cpu> z(y.extent(0), sizes.vocabulary);
  sizes.loss().logits(ctx, params.loss, params.model, y.view(), z.view());
  return z;
}

/// Runs one segment of a decoder.
template <class M, class P>
Tensor<double, 2, Cpu> run(Cpu::Context& ctx, const DecoderSizes& sizes, const M& model, const P& params,
                           const std::vector<Index>& ids, const Segment<double, Cpu>& segment) {
  Tensor<double, 2, Cpu> y(static_cast<Index>(ids.size()), sizes.model_dim);
  Carry<M, double, Cpu> carry;
  const View<const Index, 1, Cpu> x(ids.data(), static_cast<Index>(ids.size()));
  const auto extra = extra_of<Extra<M, double, Cpu>>(segment);
  model.begin(ctx, params.model, x.extent(0), carry);
  infer(model, ctx, params.model, x, carry, y.view(), extra);
  return logits_of(ctx, sizes, model, params, y);
}

Index best(const Tensor<double, 2, Cpu>& logits, Index row) {
  Index top = 0;
  for (Index v = 1; v < logits.extent(1); ++v)
    if (logits(row, v) > logits(row, top)) top = v;
  return top;
}

double largest_difference(const Tensor<double, 2, Cpu>& got, const std::vector<double>& expected) {
  REQUIRE(std::size_t(got.size()) == expected.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(got.data()[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return worst / largest;
}

/// The names and values of a pack.
struct Collect {
  std::vector<std::pair<std::string, std::vector<double>>>& all;
  void operator()(const Name& name, const auto& t) const { all.push_back({name.str(), values(t)}); }
};

/// A copy of a folder of a decoder, which a test can damage.
struct CopiedFolder {
  TempDirectory to;
  explicit CopiedFolder(const std::string& name = "mixtral") {
    for (const char* file : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(folders / name / file, to.path / file);
  }
  /// Replaces the only occurrence of a text in a file.
  const CopiedFolder& replace(const char* file, const std::string& text, const std::string& by) const {
    std::string bytes = read_bytes(to.path / file);
    const std::size_t at = bytes.find(text);
    REQUIRE(at != bytes.npos);
    REQUIRE(bytes.find(text, at + 1) == bytes.npos);
    to.write(bytes.replace(at, text.size(), by), file);
    return *this;
  }
  const CopiedFolder& config(const std::string& text, const std::string& by) const {
    return replace("config.json", text, by);
  }
  const CopiedFolder& cut(const char* file, std::uintmax_t bytes) const {
    std::filesystem::resize_file(to.path / file, std::filesystem::file_size(to.path / file) - bytes);
    return *this;
  }
  const CopiedFolder& remove(const char* file) const {
    std::filesystem::remove(to.path / file);
    return *this;
  }
  /// Replaces the weights by the weights of a golden decoder and further tensors.
  const CopiedFolder& weights(const std::string& name, std::vector<GivenTensor<float>> more) const {
    const auto own = tensors_of(name);
    more.insert(more.begin(), own.begin(), own.end());
    to.write(safetensors_text(more), "model.safetensors");
    return *this;
  }
  /// Replaces the weights by an index with two parts. The first part has layer 0 of the decoder `name`. The second part
  /// has the other tensors of the decoder `other`, but the index has the names of the decoder `name`.
  const CopiedFolder& parts(const std::string& name, const std::string& other) const {
    const auto is_first = [](const GivenTensor<float>& tensor) {
      return tensor.name.find("layers.0.") != tensor.name.npos;
    };
    std::vector<GivenTensor<float>> first, second;
    std::string map;
    for (const auto& tensor : tensors_of(name)) {
      const bool in_first = is_first(tensor);
      map += (map.empty() ? "\"" : ",\"") + tensor.name + "\":\"" + (in_first ? "first" : "second") + ".safetensors\"";
      if (in_first) first.push_back(tensor);
    }
    for (const auto& tensor : tensors_of(other))
      if (!is_first(tensor)) second.push_back(tensor);
    to.write(safetensors_text(first), "first.safetensors");
    to.write(safetensors_text(second), "second.safetensors");
    to.write("{\"weight_map\":{" + map + "}}", "model.safetensors.index.json");
    return remove("model.safetensors");
  }
  static std::vector<GivenTensor<float>> tensors_of(const std::string& name) {
    const io::TensorFiles files(folders / name / "model.safetensors");
    std::vector<GivenTensor<float>> all;
    for (const io::TensorInfo& info : files.tensors())
      all.push_back({info.name, info.shape, files.read<float>(info.name)});
    return all;
  }
  /// Returns the message of the error that reading the folder throws, without the path of the folder.
  std::string error() const {
    Cpu::Context ctx(1);
    try {
      const auto config = io::read_decoder_config(to.path);
      with_decoder(config.sizes, [&](const auto& model) { io::load_decoder(to.path, ctx, config, model); });
    } catch (const Error& e) {
      std::string message = e.what();
      const std::string path = to.path.string() + "/";
      for (std::size_t at = 0; (at = message.find(path)) != message.npos;) message.erase(at, path.size());
      return message;
    }
    return "no error";
  }
};

}  // namespace

TEST_CASE("load_decoder: logits and greedy tokens are those of transformers") {
  Cpu::Context ctx(2);
  for (const std::string& name : all_decoders()) {
    CAPTURE(name);
    const auto config = io::read_decoder_config(folders / name);
    const io::TensorFiles expected(folders / name / "expected.safetensors");
    const std::vector<Index> ids = expected.read<Index>("ids"), greedy = expected.read<Index>("greedy");
    const auto length = static_cast<Index>(expected.info("ids").shape[1]);
    with_decoder(config.sizes, [&](const auto& model) {
      const auto params = io::load_decoder<double>(folders / name, ctx, config, model);
      const auto z = run(ctx, config.sizes, model, params, ids, {.length = length});
      CHECK(largest_difference(z, expected.read<double>("logits")) <= 1e-11);

      // Greedy tokens with a KV cache: the first call has the whole prompt, each later call one token.
      KvCache<double, Cpu> cache(ctx, config.sizes.cache(1, length + static_cast<Index>(greedy.size())));
      std::vector<Index> now(ids.begin(), ids.begin() + length);
      Index different = 0;
      for (const Index token : greedy) {
        const auto count = static_cast<Index>(now.size());
        const auto next = run(ctx, config.sizes, model, params, now, {.length = count, .cache = cache.of(count)});
        cache.advance();
        now = {best(next, count - 1)};
        different += now[0] != token ? 1 : 0;
      }
      CHECK(different == 0);
    });
  }
}

TEST_CASE("load_decoder: loss and gradients are those of PyTorch") {
  Cpu::Context ctx(2);
  for (const std::string& name : all_decoders()) {
    CAPTURE(name);
    const auto config = io::read_decoder_config(folders / name);
    const io::TensorFiles expected(folders / name / "expected.safetensors");
    if (name == "gpt_oss_mxfp4") continue;  // weights of four bits have no gradients
    const NextTokens tokens(expected.read<Index>("ids"), static_cast<Index>(expected.info("ids").shape[1]));
    with_decoder(config.sizes, [&](const auto& model) {
      using M = std::remove_cvref_t<decltype(model)>;
      const auto params = io::load_decoder<double>(folders / name, ctx, config, model);
      auto grads = zeros_like(ctx, params);
      const auto x = View<const Index, 1, Cpu>(tokens.in.data(), static_cast<Index>(tokens.in.size()));
      const auto target = View<const Index, 1, Cpu>(tokens.label.data(), x.extent(0));
      const auto extra = extra_of<Extra<M, double, Cpu>>(Segment<double, Cpu>{.length = tokens.length});
      Tensor<double, 2, Cpu> y(x.extent(0), config.sizes.model_dim), dy(x.extent(0), config.sizes.model_dim);
      Carry<M, double, Cpu> carry, dcarry;
      Saved<M, double, Cpu> saved;
      model.begin(ctx, params.model, x.extent(0), carry);
      model.forward(ctx, params.model, x, carry, y.view(), saved, extra);
      const auto loss = config.sizes.loss();
      Saved<StreamedCrossEntropy, double, Cpu> of_loss;
      Tensor<double, 1, Cpu> value(1);
      loss.template forward<double, Cpu>(ctx, params.loss, params.model, y.view(), target, value.view(), of_loss);
      CHECK(value(0) == doctest::Approx(expected.read<double>("loss")[0]).epsilon(1e-12));
      loss.template backward<double, Cpu>(ctx, params.loss, params.model, y.view(), target, of_loss, dy.view(),
                                          grads.loss, grads.model);
      model.begin(ctx, params.model, x.extent(0), dcarry);
      backward(model, ctx, params.model, x, saved, std::as_const(dy).view(), dcarry, Nothing<double, Cpu>{},
               grads.model, extra);

      auto theirs = zeros_like(ctx, params);
      io::TensorMap map = io::decoder_map(config, io::published::ExpertStorage::fused, "gradient.");
      for (io::MapEntry& entry : map)
        if (entry.theirs.ends_with("e_score_correction_bias")) entry.theirs = "";  // not learned by its gradient
      io::load(expected, ctx, map, theirs);
      std::vector<std::pair<std::string, std::vector<double>>> got, wanted;
      for_each_tensor(Collect{got}, grads);
      for_each_tensor(Collect{wanted}, theirs);
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (got[i].first.find(".selection.") != std::string::npos) continue;
        CAPTURE(got[i].first);
        if (name == "llama4_text" && got[i].first == "model.layers.1.layers.1.layers.0.branch.branch.key.bias") {
          // Without positions, this bias changes all scores of an item equally: both gradients are 0 up to rounding.
          for (const double v : got[i].second) CHECK(std::abs(v) <= 1e-15);
          for (const double v : wanted[i].second) CHECK(std::abs(v) <= 1e-15);
          continue;
        }
        CHECK(difference(got[i].second, wanted[i].second) <= 1e-8);
      }
    });
  }
}

TEST_CASE("decoder_map: a saved decoder has the bytes of the folder") {
  Cpu::Context ctx(1);
  for (const std::string& name : all_decoders()) {
    if (name == "gpt_oss_mxfp4") continue;  // weights of four bits are saved as floats
    CAPTURE(name);
    const TempDirectory to;
    const auto config = io::read_decoder_config(folders / name);
    with_decoder(config.sizes, [&](const auto& model) {
      const auto params = io::load_decoder(folders / name, ctx, config, model);
      io::save(to.file(), ctx, {}, io::decoder_map(config), params);
    });
    const io::TensorFiles saved(to.file()), expected(folders / name / "model.safetensors");
    std::size_t compared = 0;
    for (const io::TensorInfo& tensor : expected.tensors()) {
      if (name == "llama4" && !tensor.name.starts_with("language_model.")) continue;  // for images
      ++compared;
      CAPTURE(tensor.name);
      CHECK(saved.info(tensor.name).shape == tensor.shape);
      CHECK(saved.info(tensor.name).dtype == tensor.dtype);
      CHECK(saved.read_bytes(tensor.name) == expected.read_bytes(tensor.name));
    }
    CHECK(saved.tensors().size() == compared);
  }
}

TEST_CASE("load_decoder: fused experts give the same parameters") {
  Cpu::Context ctx(1);
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe_yarn"}) {
    CAPTURE(name);
    const TempDirectory to;
    const auto config = io::read_decoder_config(folders / name);
    with_decoder(config.sizes, [&](const auto& model) {
      const auto params = io::load_decoder(folders / name, ctx, config, model);
      io::save(to.path / "model.safetensors", ctx, {}, io::decoder_map(config, io::published::ExpertStorage::fused),
               params);
      const auto fused = io::load_decoder(to.path, ctx, config, model);
      std::vector<std::pair<std::string, std::vector<double>>> got, wanted;
      for_each_tensor(Collect{got}, fused);
      for_each_tensor(Collect{wanted}, params);
      CHECK(got == wanted);
    });
  }
}

TEST_CASE("read_decoder_config: errors name file, option and value") {
  const auto error = [](const std::string& text, const std::string& by) {
    return CopiedFolder().config(text, by).error();
  };
  CHECK(CopiedFolder().error() == "no error");
  CHECK(CopiedFolder().remove("config.json").error() == "config.json: cannot open: No such file or directory");
  CHECK(CopiedFolder().cut("config.json", 10).error() == "config.json: expected a JSON object");
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
  CHECK(error("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0") ==
        "config.json: tie_word_embeddings: expected true or false, got 0");
  CHECK(error("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": \"small\"") ==
        "config.json: rms_norm_eps: expected a number, got \"small\"");
}

TEST_CASE("read_decoder_config: unsupported options are errors") {
  const auto error = [](const std::string& text, const std::string& by) {
    return CopiedFolder().config(text, by).error();
  };
  CHECK(error("\"silu\"", "\"gelu\"") == "config.json: hidden_act: expected silu, got \"gelu\"");
  CHECK(error("\"use_cache\": false", "\"clip_qkv\": 8") ==
        "config.json: clip_qkv: expected null, because clipping is not supported, got 8");
  CHECK(error("\"default\"", "\"dynamic\"") ==
        "config.json: rope_type: expected default, linear, llama3 or yarn, got \"dynamic\"");
  CHECK(CopiedFolder("qwen2_moe").config("\"full_attention\"", "\"linear_attention\"").error() ==
        "config.json: layer_types: expected sliding_attention or full_attention, got \"linear_attention\"");
  CHECK(CopiedFolder("gpt_oss").config("\"swiglu_limit\": 7.0", "\"swiglu_limit\": 6.0").error() ==
        "config.json: swiglu_limit: expected 7, got 6.0");
  CHECK(
      CopiedFolder("deepseek_v2").config("\"routed_scaling_factor\": 1.0", "\"routed_scaling_factor\": 16.0").error() ==
      "config.json: routed_scaling_factor: expected 1, because the softmax router has no factor, got 16.0");
  CHECK(CopiedFolder("qwen2_moe").config("\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 0").error() ==
        "config.json: decoder_sparse_step: expected at least 1, got 0");
}

TEST_CASE("read_decoder_config: Llama 4 has a kind of each layer") {
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

  // Without the lists, the layers follow from the steps: layers 1, 3, … are mixtures, layer 2 has no positions.
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
  CHECK(short_form.error() == "no error");
  const DecoderSizes defaults = without_lists(", \"attention_chunk_size\": null, \"no_rope_layers\": []");
  CHECK(defaults.dense_layers.empty());
  CHECK(defaults.unrotated_layers.empty());  // of three layers; the fourth would be one
  CHECK(defaults.chunks == List{0, 0, 0});
  CHECK(without_lists(", \"attn_temperature_tuning\": 4").attention.temperature.floor_scale == 8192);
  CHECK(without_lists(", \"attn_temperature_tuning\": false").attention.temperature.floor_scale == 0);
  CHECK(without_lists(", \"use_qk_norm\": false").attention.norm == QueryKeyNorm::none);

  const auto error = [](const std::string& option, const std::string& by) {
    return CopiedFolder("llama4_text").config(option, by).error();
  };
  CHECK(CopiedFolder("llama4").config("\"text_config\"", "\"text\"").error() ==
        "config.json: text_config: expected an object, got nothing");
  CHECK(error("\"full_attention\"", "\"sliding_attention\"") ==
        "config.json: layer_types: expected chunked_attention or full_attention, got \"sliding_attention\"");
  CHECK(error("\"interleave_moe_layer_step\": 1", "\"interleave_moe_layer_step\": 0") ==
        "config.json: interleave_moe_layer_step: expected at least 1, got 0");
  CHECK(error("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4") ==
        "config.json: no_rope_layers: expected one integer for each of 4 layers, got [1,0,1]");
  CHECK(error("\"attn_temperature_tuning\": true", "\"attn_temperature_tuning\": \"on\"") ==
        "config.json: attn_temperature_tuning: expected true or false, got \"on\"");
  CHECK(error("\"num_local_experts\": 4", "\"num_local_experts\": 3") ==
        "model.safetensors: tensor \"model.layers.0.feed_forward.router.weight\": expected [3, 8], got [4, 8]");
}

TEST_CASE("load_decoder: damaged files are errors") {
  CHECK(CopiedFolder().remove("model.safetensors").error() ==
        "model.safetensors: cannot open: No such file or directory");
  CHECK(CopiedFolder().cut("model.safetensors", 4).error() ==
        "model.safetensors: offset 19204: truncated: tensor \"model.norm.weight\": ends at 19208");
  CHECK(CopiedFolder().cut("model.safetensors", 19208 - 100).error() ==
        "model.safetensors: offset 0: truncated: the header is 5024 bytes, the file has 92 after its length");
  CHECK(CopiedFolder().cut("model.safetensors", 19208).error() ==
        "model.safetensors: offset 0: truncated: expected 8 bytes of header length");
  const CopiedFolder parts;
  parts.to.write("{\"weight_map\": {\"model.norm.weight\": \"part.safetensors\"}}", "model.safetensors.index.json");
  CHECK(parts.error() == "part.safetensors: cannot open: No such file or directory");
}

TEST_CASE("load_decoder: tensors must be those of config.json") {
  const auto error = [](const std::string& text, const std::string& by) {
    return CopiedFolder().config(text, by).error();
  };
  CHECK(error("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3") ==
        "model.safetensors: tensor \"model.layers.2.input_layernorm.weight\": missing");
  CHECK(error("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1") ==
        "model.safetensors: tensor \"model.layers.1.block_sparse_moe.experts.0.w1.weight\": a decoder with this "
        "config.json has no such tensor");
  CHECK(error("\"num_local_experts\": 5", "\"num_local_experts\": 4") ==
        "model.safetensors: tensor \"model.layers.0.block_sparse_moe.gate.weight\": expected [4, 8], got [5, 8]");
  CHECK(error("\"vocab_size\": 37", "\"vocab_size\": 38") ==
        "model.safetensors: tensor \"model.embed_tokens.weight\": expected [38, 8], got [37, 8]");
  CHECK(error("\"intermediate_size\": 7", "\"intermediate_size\": 6") ==
        "model.safetensors: tensor \"model.layers.0.block_sparse_moe.experts.0.w1.weight\": expected [6, 8], got [7, "
        "8]");
  CHECK(CopiedFolder().replace("model.safetensors", "model.norm.weight", "model.norm.gaingx").error() ==
        "model.safetensors: tensor \"model.norm.weight\": missing");
  CHECK(CopiedFolder().weights("mixtral", {{"model.norm.bias", {8}, std::vector<float>(8)}}).error() ==
        "model.safetensors: tensor \"model.norm.bias\": a decoder with this config.json has no such tensor");
}

TEST_CASE("load_decoder: layers for multi-token prediction are not read") {
  const auto with_tensor = [](const std::string& name) {
    return CopiedFolder("deepseek_v3").weights("deepseek_v3", {{name, {2}, {1, 2}}}).error();
  };
  CHECK(with_tensor("model.layers.2.enorm.weight") == "no error");
  CHECK(with_tensor("model.layers.3.enorm.weight") ==
        "model.safetensors: tensor \"model.layers.3.enorm.weight\": a decoder with this config.json has no such "
        "tensor");
}

TEST_CASE("load_decoder: a tied output layer must equal the embedding") {
  const io::TensorFiles files(folders / "qwen3_moe/model.safetensors");
  GivenTensor<float> output{"lm_head.weight", {37, 8}, files.read<float>("model.embed_tokens.weight")};
  CHECK(CopiedFolder("qwen3_moe").weights("qwen3_moe", {output}).error() == "no error");
  output.elements[5] += 1;
  CHECK(CopiedFolder("qwen3_moe").weights("qwen3_moe", {output}).error() ==
        "model.safetensors: tensor \"lm_head.weight\": expected the values of model.embed_tokens.weight, because "
        "tie_word_embeddings is true");
  CHECK(CopiedFolder().config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true").error() ==
        "model.safetensors: tensor \"lm_head.weight\": expected the values of model.embed_tokens.weight, because "
        "tie_word_embeddings is true");
}

TEST_CASE("load_decoder: all parts must belong to one decoder") {
  CHECK(CopiedFolder().parts("mixtral", "mixtral").error() == "no error");
  CHECK(CopiedFolder().parts("mixtral", "mixtral").remove("second.safetensors").error() ==
        "second.safetensors: cannot open: No such file or directory");
  CHECK(CopiedFolder().parts("mixtral", "mixtral").cut("second.safetensors", 4).error() ==
        "second.safetensors: offset 10889: truncated: tensor \"model.norm.weight\": ends at 10893");
  // The second part belongs to another architecture, or to a decoder with four experts.
  CHECK(CopiedFolder().parts("mixtral", "olmoe").error() ==
        "model.safetensors.index.json: tensor \"model.layers.1.block_sparse_moe.experts.0.w1.weight\": index: expected "
        "in second.safetensors, which does not contain it");
  CHECK(CopiedFolder().parts("mixtral", "mixtral_llama3").error() ==
        "model.safetensors.index.json: tensor \"model.layers.1.block_sparse_moe.experts.4.w1.weight\": index: expected "
        "in second.safetensors, which does not contain it");
  const std::string own = "\"model.norm.weight\":\"second.safetensors\"";
  CHECK(CopiedFolder()
            .parts("mixtral", "mixtral")
            .replace("model.safetensors.index.json", own, own + ",\"model.bias\":\"second.safetensors\"")
            .error() ==
        "model.safetensors.index.json: tensor \"model.bias\": index: expected in second.safetensors, "
        "which does not contain it");
  CHECK(CopiedFolder().parts("mixtral", "mixtral").replace("model.safetensors.index.json", ',' + own, "").error() ==
        "model.safetensors: tensor \"model.norm.weight\": missing");
}

TEST_CASE("load_decoder: huge sizes are errors before parameters are allocated") {
  const auto error = [](const std::string& text, const std::string& by) {
    return CopiedFolder().config(text, by).error();
  };
  CHECK(error("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000000000000") ==
        "config.json: num_hidden_layers: expected an integer from 0 to 1000000000, got 1000000000000000");
  CHECK(error("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 10001") ==
        "config.json: num_hidden_layers: expected 1 to 10000, got 10001");
  CHECK(error("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0") ==
        "config.json: num_hidden_layers: expected 1 to 10000, got 0");
  CHECK(error("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 10000") ==
        "model.safetensors: tensor \"model.layers.2.input_layernorm.weight\": missing");
  CHECK(error("\"vocab_size\": 37", "\"vocab_size\": 18446744073709551615") ==
        "config.json: vocab_size: expected an integer from 0 to 1000000000, got 18446744073709551615");
  // These parameters would need 10^18 floats.
  CHECK(CopiedFolder()
            .config("\"vocab_size\": 37", "\"vocab_size\": 1000000000")
            .config("\"hidden_size\": 8", "\"hidden_size\": 1000000000")
            .error() ==
        "model.safetensors: tensor \"model.embed_tokens.weight\": expected [1000000000, 1000000000], got [37, 8]");
  CHECK(error("\"num_local_experts\": 5", "\"num_local_experts\": 1000000000") ==
        "model.safetensors: tensor \"model.layers.0.block_sparse_moe.gate.weight\": expected [1000000000, 8], got [5, "
        "8]");
  CHECK(CopiedFolder("qwen2_moe").config("\"mlp_only_layers\": []", "\"mlp_only_layers\": [0, 1, 1]").error() ==
        "config.json: mlp_only_layers: expected at most 2 layers, got 3");
  CHECK(CopiedFolder("qwen2_moe").config("\"mlp_only_layers\": []", "\"mlp_only_layers\": [2]").error() ==
        "config.json: mlp_only_layers: expected an integer from 0 to 1, got 2");
}

TEST_CASE("read_decoder_config: each option with a wrong type is an error") {
  std::set<std::string> read;  // the options that some architecture reads
  for (const std::string& name : all_decoders()) {
    if (name == "llama4") continue;  // it has the options of llama4_text in text_config
    const CopiedFolder folder(name);
    const auto whole = nlohmann::json::parse(read_bytes(folder.to.path / "config.json"));
    const auto check = [&](const std::string& option, const nlohmann::json& changed) {
      folder.to.write(changed.dump(), "config.json");
      const std::string error = folder.error();
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
        CHECK(folder.error() == "config.json: rope_parameters: expected an object, got 7");
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
