#include "gatefold/train/load_decoder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/decoder_folders.hpp"
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

std::string error_of(const CopiedFolder& folder) {
  return folder.error_of([](const std::filesystem::path& path) {
    Cpu::Context ctx(1);
    const auto config = io::read_decoder_config(path);
    with_decoder(config.sizes, [&](const auto& model) { io::load_decoder(path, ctx, config, model); });
  });
}

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
        // Some gradients are 0 up to rounding, for example that of a router that renormalises the weight of one pick.
        const auto is_zero = [](const std::vector<double>& gradient) {
          return std::all_of(gradient.begin(), gradient.end(), [](double v) { return std::abs(v) <= 1e-15; });
        };
        if (is_zero(wanted[i].second))
          CHECK(is_zero(got[i].second));
        else
          CHECK(difference(got[i].second, wanted[i].second) <= 1e-8);
      }
    });
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

TEST_CASE("load_decoder: damaged files are errors") {
  CHECK(error_of(CopiedFolder().remove("model.safetensors")) ==
        "model.safetensors: cannot open: No such file or directory");
  CHECK(error_of(CopiedFolder().cut("model.safetensors", 4)) ==
        "model.safetensors: offset 19204: truncated: tensor \"model.norm.weight\": ends at 19208");
  CHECK(error_of(CopiedFolder().cut("model.safetensors", 19208 - 100)) ==
        "model.safetensors: offset 0: truncated: the header is 5024 bytes, the file has 92 after its length");
  CHECK(error_of(CopiedFolder().cut("model.safetensors", 19208)) ==
        "model.safetensors: offset 0: truncated: expected 8 bytes of header length");
  const CopiedFolder parts;
  parts.to.write("{\"weight_map\": {\"model.norm.weight\": \"part.safetensors\"}}", "model.safetensors.index.json");
  CHECK(error_of(parts) == "part.safetensors: cannot open: No such file or directory");
}

TEST_CASE("load_decoder: throws for tensors that do not match config.json") {
  const auto error = [](const std::string& text, const std::string& by) {
    return error_of(CopiedFolder().config(text, by));
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
  CHECK(error_of(CopiedFolder().replace("model.safetensors", "model.norm.weight", "model.norm.gaingx")) ==
        "model.safetensors: tensor \"model.norm.weight\": missing");
  CHECK(error_of(CopiedFolder().weights("mixtral", {{"model.norm.bias", {8}, std::vector<float>(8)}})) ==
        "model.safetensors: tensor \"model.norm.bias\": a decoder with this config.json has no such tensor");
  CHECK(error_of(CopiedFolder("llama4_text").config("\"num_local_experts\": 4", "\"num_local_experts\": 3")) ==
        "model.safetensors: tensor \"model.layers.0.feed_forward.router.weight\": expected [3, 8], got [4, 8]");
}

TEST_CASE("load_decoder: layers for multi-token prediction are not read") {
  const auto with_tensor = [](const std::string& name) {
    return error_of(CopiedFolder("deepseek_v3").weights("deepseek_v3", {{name, {2}, {1, 2}}}));
  };
  CHECK(with_tensor("model.layers.2.enorm.weight") == "no error");
  CHECK(with_tensor("model.layers.3.enorm.weight") ==
        "model.safetensors: tensor \"model.layers.3.enorm.weight\": a decoder with this config.json has no such "
        "tensor");
}

TEST_CASE("load_decoder: a tied output layer must equal the embedding") {
  const io::TensorFiles files(folders / "qwen3_moe/model.safetensors");
  GivenTensor<float> output{"lm_head.weight", {37, 8}, files.read<float>("model.embed_tokens.weight")};
  CHECK(error_of(CopiedFolder("qwen3_moe").weights("qwen3_moe", {output})) == "no error");
  output.elements[5] += 1;
  CHECK(error_of(CopiedFolder("qwen3_moe").weights("qwen3_moe", {output})) ==
        "model.safetensors: tensor \"lm_head.weight\": expected the values of model.embed_tokens.weight, because "
        "tie_word_embeddings is true");
  CHECK(error_of(CopiedFolder().config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true")) ==
        "model.safetensors: tensor \"lm_head.weight\": expected the values of model.embed_tokens.weight, because "
        "tie_word_embeddings is true");
}

TEST_CASE("same_values: compares all blocks of two tensors") {
  const TempDirectory to;
  std::vector<float> values(300'000);  // several blocks
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::vector<GivenTensor<float>> tensors{
      {"a", {3, 100'000}, values}, {"same", {3, 100'000}, values}, {"shape", {100'000, 3}, values}};
  values.back() += 1;
  tensors.push_back({"last", {3, 100'000}, values});
  const io::TensorFiles files(to.write(safetensors_text(tensors)));
  CHECK(io::decoder_folder::same_values(files, "a", "same"));
  CHECK_FALSE(io::decoder_folder::same_values(files, "a", "last"));
  CHECK_FALSE(io::decoder_folder::same_values(files, "a", "shape"));
}

TEST_CASE("load_decoder: all parts must belong to one decoder") {
  CHECK(error_of(CopiedFolder().parts("mixtral", "mixtral")) == "no error");
  CHECK(error_of(CopiedFolder().parts("mixtral", "mixtral").remove("second.safetensors")) ==
        "second.safetensors: cannot open: No such file or directory");
  CHECK(error_of(CopiedFolder().parts("mixtral", "mixtral").cut("second.safetensors", 4)) ==
        "second.safetensors: offset 10889: truncated: tensor \"model.norm.weight\": ends at 10893");
  // The second part belongs to another architecture, or to a decoder with four experts.
  CHECK(error_of(CopiedFolder().parts("mixtral", "olmoe")) ==
        "model.safetensors.index.json: tensor \"model.layers.1.block_sparse_moe.experts.0.w1.weight\": index: expected "
        "in second.safetensors, which does not contain it");
  CHECK(error_of(CopiedFolder().parts("mixtral", "mixtral_llama3")) ==
        "model.safetensors.index.json: tensor \"model.layers.1.block_sparse_moe.experts.4.w1.weight\": index: expected "
        "in second.safetensors, which does not contain it");
  const std::string own = "\"model.norm.weight\":\"second.safetensors\"";
  CHECK(error_of(CopiedFolder()
                     .parts("mixtral", "mixtral")
                     .replace("model.safetensors.index.json", own, own + ",\"model.bias\":\"second.safetensors\"")) ==
        "model.safetensors.index.json: tensor \"model.bias\": index: expected in second.safetensors, "
        "which does not contain it");
  CHECK(error_of(CopiedFolder().parts("mixtral", "mixtral").replace("model.safetensors.index.json", ',' + own, "")) ==
        "model.safetensors: tensor \"model.norm.weight\": missing");
}

TEST_CASE("load_decoder: huge sizes are errors before parameters are allocated") {
  const auto error = [](const std::string& text, const std::string& by) {
    return error_of(CopiedFolder().config(text, by));
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
  CHECK(error_of(CopiedFolder()
                     .config("\"vocab_size\": 37", "\"vocab_size\": 1000000000")
                     .config("\"hidden_size\": 8", "\"hidden_size\": 1000000000")) ==
        "model.safetensors: tensor \"model.embed_tokens.weight\": expected [1000000000, 1000000000], got [37, 8]");
  CHECK(error("\"num_local_experts\": 5", "\"num_local_experts\": 100001") ==
        "config.json: num_local_experts: expected at most 100000, got 100001");
  CHECK(error_of(CopiedFolder("qwen2_moe").config("\"mlp_only_layers\": []", "\"mlp_only_layers\": [0, 1, 1]")) ==
        "config.json: mlp_only_layers: expected at most 2 layers, got 3");
  CHECK(error_of(CopiedFolder("qwen2_moe").config("\"mlp_only_layers\": []", "\"mlp_only_layers\": [2]")) ==
        "config.json: mlp_only_layers: expected an integer from 0 to 1, got 2");
}

namespace {

std::string theirs_of(const io::TensorMap& map, const std::string& ours) {
  for (const io::MapEntry& entry : map)
    if (entry.ours == ours) return entry.theirs;
  return "none";
}

}  // namespace

TEST_CASE("decoder_map: maps parameters to the tensor names of Hugging Face") {
  const io::DecoderConfig mixtral = io::read_decoder_config(folders / "mixtral");
  const io::TensorMap map = io::decoder_map(mixtral),
                      fused = io::decoder_map(mixtral, io::published::ExpertStorage::fused, "a.");
  const std::string layer = "model.layers.1.layers.1.layers.";
  CHECK(theirs_of(map, "loss.weight") == "lm_head.weight");
  CHECK(theirs_of(map, layer + "0.branch.branch.query.weight") == "model.layers.1.self_attn.q_proj.weight");
  CHECK(theirs_of(map, layer + "1.branch.branch.first.expert.down") ==
        "model.layers.1.block_sparse_moe.experts.{}.w2.weight");
  CHECK(theirs_of(fused, layer + "1.branch.branch.first.expert.down") == "a.model.layers.1.mlp.experts.down_proj");
}

TEST_CASE("decoder_map: a tied output layer has no tensor") {
  io::DecoderConfig config = io::read_decoder_config(folders / "olmoe");
  config.sizes.tied = true;
  CHECK(theirs_of(io::decoder_map(config), "loss.weight") == "none");
  config.sizes.tied = false;
  CHECK(theirs_of(io::decoder_map(config), "loss.weight") == "lm_head.weight");
}

TEST_CASE("decoder_map: tensors saved with the map keep the folder's bytes") {
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
