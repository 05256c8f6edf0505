#include "gatefold/train/load_frozen_decoder.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/model/segment.hpp"
#include "support/decoder_folders.hpp"
#include "support/forked.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Returns the outputs and logits of a decoder for the id 1, and then the outputs and logits for the ids 1 to 7.
template <class T, class B, class M, class P>
std::vector<T> outputs(typename B::Context& ctx, const DecoderSizes& sizes, const M& model, const P& params) {
  std::vector<T> all;
  for (const Index rows : {1, 7}) {
    std::vector<Index> ids;
    for (Index i = 0; i < rows; ++i) ids.push_back(1 + i);
    Carry<M, T, B> carry;
    Tensor<T, 2, B> y(rows, sizes.model_dim);
    model.begin(ctx, params.model.params, rows, carry);
    infer(model, ctx, params.model, ids, carry, y, extra_of<Extra<M, T, B>>(Segment<T, B>{.length = rows}));
    all.insert(all.end(), y.data(), y.data() + y.size());
    Tensor<T, 2, B> z(rows, sizes.vocabulary);
    sizes.loss().logits(ctx, params.loss, params.model, y, z);
    all.insert(all.end(), z.data(), z.data() + z.size());
  }
  return all;
}

template <class T, class B>
void check(FreezeOptions options) {
  typename B::Context ctx(2);
  for (const std::string& name : all_decoders()) {
    CAPTURE(name);
    const std::filesystem::path folder = decoder_folders() / name;
    const auto config = io::read_decoder_config(folder);
    with_decoder(config.sizes, [&](const auto& model) {
      auto plain = io::load_decoder<T>(folder, ctx, config, model);
      const auto expected = freeze(ctx, std::move(plain), options);
      const auto frozen = io::load_frozen_decoder<T>(folder, ctx, config, model, options);
      CHECK(outputs<T, B>(ctx, config.sizes, model, frozen) == outputs<T, B>(ctx, config.sizes, model, expected));
      for_each_tensor(
          [](const Name& at, const auto& a, const auto& b) {
            CAPTURE(at.str());
            const bool packed = std::remove_cvref_t<decltype(a)>::rank == 3 && a.extent(a.rank - 1) > 1;
            if (!packed && a.size() > 0)
              CHECK(std::memcmp(a.data(), b.data(), sizeof(*a.data()) * std::size_t(a.size())) == 0);
          },
          frozen.model.params, expected.model.params);
    });
  }
}

/// Returns a number of kilobytes of this process from /proc/self/status.
double kilobytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == name + ":") {
      double value = 0;
      status >> value;
      return value;
    }
  return -1;
}

}  // namespace

TEST_CASE("load_frozen_decoder: results have the bits of load_decoder and freeze") {
  check<float, Cpu>({});
  check<float, Cpu>({.weights = Weights::bfloat16});
  for (const Weights form : {Weights::int8, Weights::int4, Weights::mxfp4}) check<float, Cpu>({.weights = form});
  check<float, Cpu>({.weights = Weights::int8, .except = {{"loss.weight", Weights::int4}}});
  check<float, CpuBf16>({});
  check<float, CpuBf16>({.weights = Weights::bfloat16});
}

TEST_CASE("load_frozen_decoder: reading the output layer in blocks changes no bit") {
  // With 70001 words of 40 numbers, the output layer is read in several blocks.
  const TempDirectory folder;
  folder.write(R"({"model_type": "mixtral", "vocab_size": 70001, "hidden_size": 40, "num_hidden_layers": 1,
                   "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2,
                   "num_experts_per_tok": 1, "intermediate_size": 8})",
               "config.json");
  const auto config = io::read_decoder_config(folder.path);
  REQUIRE(config.sizes.vocabulary * config.sizes.model_dim * sizeof(float) > 2 * io::tensor_map::kReadAtOnce);
  with_decoder(config.sizes, [&]<class M>(const M& model) {
    Cpu::Context ctx(2);
    ModelAndLoss<Params<M, float, Cpu>, Params<StreamedCrossEntropy, float, Cpu>> params{
        init_params<float, Cpu>(model, ctx, Seed{1}), init_params<float, Cpu>(config.sizes.loss(), ctx, Seed{2})};
    io::save(folder.path / "model.safetensors", ctx, {}, io::decoder_map(config), params);
    for (const Weights form : {Weights::bfloat16, Weights::int4}) {
      const auto frozen = io::load_frozen_decoder(folder.path, ctx, config, model, {.weights = form});
      const auto expected = freeze(ctx, io::load_decoder(folder.path, ctx, config, model), {.weights = form});
      CHECK(outputs<float, Cpu>(ctx, config.sizes, model, frozen) ==
            outputs<float, Cpu>(ctx, config.sizes, model, expected));
    }
  });
}

TEST_CASE("load_frozen_decoder: infer and save throw without the packed copies") {
  Cpu::Context ctx(1);
  const std::filesystem::path folder = decoder_folders() / "mixtral";
  const auto config = io::read_decoder_config(folder);
  with_decoder(config.sizes, [&]<class M>(const M& model) {
    const auto frozen = io::load_frozen_decoder(folder, ctx, config, model);
    const std::vector<Index> ids{1, 2};
    Carry<M, float, Cpu> carry;
    Tensor<float, 2, Cpu> y(2, config.sizes.model_dim);
    model.begin(ctx, frozen.model.params, 2, carry);
    const auto extra = extra_of<Extra<M, float, Cpu>>(Segment<float, Cpu>{.length = 2});
    CHECK_THROWS_WITH_AS(
        infer(model, ctx, frozen.model.params, ids, carry, y, extra),
        "Cpu.grouped_gemm: weights: expected weights with elements, or the frozen parameters that have "
        "their packed copy, got parameters without elements; pass the FrozenParams to infer",
        ArgumentError);
    const auto packed = io::load_frozen_decoder(folder, ctx, config, model, {.weights = Weights::int8});
    Tensor<float, 2, Cpu> z(2, config.sizes.vocabulary);
    CHECK_THROWS_WITH_AS(
        config.sizes.loss().logits(ctx, packed.loss, packed.model.params, y, z),
        "Cpu.gemm: weights: expected weights with elements, or the frozen parameters that have their packed copy, got "
        "parameters without elements; pass the FrozenParams to infer",
        ArgumentError);
    const TempDirectory to;
    CHECK_THROWS_AS(io::save(to.file(), ctx, {}, io::Part{"", frozen.model.params}), ArgumentError);
    CHECK(to.entries() == 0);
  });
}

// The peak of the resident set is measured in a child process. It includes the reader's blocks of some megabytes and
// unused parts of pages, so the limit of 1.1 is checked with weights of 100 MB.
TEST_CASE("load_decoder: peak memory is at most 1.1 times the weights") {
#if defined(__linux__)
  if (!may_fork || !may_limit_memory || kilobytes("VmHWM") < 0) return;
  for (const bool bfloat16 : {false, true}) {
    const TempDirectory folder;
    folder.write(R"({"model_type": "mixtral", "vocab_size": 1000, "hidden_size": 512, "num_hidden_layers": )" +
                     std::string(bfloat16 ? "4" : "2") +
                     R"(, "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 8,
                       "num_experts_per_tok": 2, "intermediate_size": 1024})",
                 "config.json");
    const auto config = io::read_decoder_config(folder.path);
    with_decoder(config.sizes, [&](const auto& model) {
      const std::string made = in_child([&] {
        Cpu::Context ctx(1);
        using M = std::remove_cvref_t<decltype(model)>;
        ModelAndLoss<Params<M, float, Cpu>, Params<StreamedCrossEntropy, float, Cpu>> params{
            init_params<float, Cpu>(model, ctx, Seed{1}), init_params<float, Cpu>(config.sizes.loss(), ctx, Seed{2})};
        io::save(folder.path / "model.safetensors", ctx, {}, io::decoder_map(config), params,
                 bfloat16 ? io::Stored::bf16 : io::Stored::f32);
        return std::string("made");
      });
      REQUIRE(made == "made");
      const double bytes = double(std::filesystem::file_size(folder.path / "model.safetensors"));
      REQUIRE(bytes > 95e6);
      const auto factor = [&](const auto& load) {
        const std::string text = in_child([&] {
          Cpu::Context ctx(1);
          const double before = kilobytes("VmRSS");
          const auto params = load(ctx);
          return std::to_string((kilobytes("VmHWM") - before) * 1024 / bytes);
        });
        MESSAGE("peak of memory / bytes of the file: ", text);
        return std::stod(text);
      };
      CHECK(factor([&](auto& ctx) {
              return io::load_frozen_decoder(folder.path, ctx, config, model,
                                             {.weights = bfloat16 ? Weights::bfloat16 : Weights::unchanged});
            }) <= 1.1);
      if (!bfloat16) CHECK(factor([&](auto& ctx) { return io::load_decoder(folder.path, ctx, config, model); }) <= 1.1);
    });
  }
#endif
}
