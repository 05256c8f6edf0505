// Tiny random blocks of published models, compared with the outputs of the transformers package.
// tests/golden/published_blocks.py wrote tests/io/blocks.

#include "gatefold/io/published_maps.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "gatefold/expert/sigmoid_gated.hpp"
#include "gatefold/gatefold.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "support/larger.hpp"
#include "support/safetensors_text.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;

namespace {

const std::filesystem::path blocks = std::filesystem::path(GATEFOLD_TEST_DIR) / "io" / "blocks";

/// Returns the largest difference from the stored output, relative to the largest element of this output.
template <class T, class Block>
double difference(const Block& block, const std::filesystem::path& file, const io::TensorMap& map) {
  Cpu::Context ctx(2);
  const io::TensorFiles files(blocks / file);
  auto params = block.template init<T, Cpu>(ctx, Seed{1});
  io::load(files, ctx, map, params);
  const auto input = files.read<T>("input");
  const auto output = files.read<double>("output");
  const Index items = static_cast<Index>(files.info("input").shape[0]);
  Tensor<T, 2, Cpu> u(items, block.out_dim());
  infer(block, ctx, params, View<const T, 2, Cpu>(input.data(), items, block.in_dim()), u);
  double largest = 0, apart = 0;
  for (Index i = 0; i < u.size(); ++i) {
    largest = support::larger(largest, std::abs(output[std::size_t(i)]));
    apart = support::larger(apart, std::abs(double(u.data()[i]) - output[std::size_t(i)]));
  }
  return apart / largest;
}

/// Returns whether the tensors that a map names are written back as they were read: names, shapes and numbers.
template <class Block>
bool is_written_back(const Block& block, const std::filesystem::path& file, const io::TensorMap& map) {
  Cpu::Context ctx(1);
  const io::TensorFiles files(blocks / file);
  auto params = block.template init<float, Cpu>(ctx, Seed{1});
  io::load(files, ctx, map, params);
  const support::TempDirectory temp;
  io::save(temp.file(), ctx, {}, map, params);
  const io::TensorFiles back(temp.file());
  bool same = !back.tensors().empty();
  for (const auto& [name, dtype, shape] : back.tensors())
    same = same && shape == files.info(name).shape && back.read<double>(name) == files.read<double>(name);
  return same;
}

/// Compares in double and in float. The published blocks computed probabilities in float, so even the results in double
/// agree only within 1e-6.
template <class Block>
void agrees(const Block& block, const std::filesystem::path& file, const io::TensorMap& map) {
  CHECK(difference<double>(block, file, map) <= 1e-6);
  CHECK(difference<float>(block, file, map) <= 2e-6);
  CHECK(is_written_back(block, file, map));
}

/// Checks the same for a file with fused experts as in transformers 5: gate above up, expert after expert.
template <class Block>
void agrees_fused(const Block& block, const char* file, const std::string& at, const io::TensorMap& map,
                  const std::string& gate = "gate_proj", const std::string& up = "up_proj",
                  const std::string& down = "down_proj") {
  const io::TensorFiles files(blocks / file);
  std::vector<support::GivenTensor<double>> tensors;
  support::GivenTensor<double> gate_up{at + "experts.gate_up_proj", {0, 40, 16}, {}};
  support::GivenTensor<double> downs{at + "experts.down_proj", {0, 16, 20}, {}};
  for (const auto& [name, dtype, shape] : files.tensors())
    if (!name.starts_with(at + "experts.")) tensors.push_back({name, shape, files.read<double>(name)});
  for (int e = 0; files.contains(at + "experts." + std::to_string(e) + "." + gate + ".weight"); ++e) {
    const auto append = [&](const std::string& name, support::GivenTensor<double>& to) {
      for (const double w : files.read<double>(at + "experts." + std::to_string(e) + "." + name + ".weight"))
        to.elements.push_back(w);
    };
    append(gate, gate_up);
    append(up, gate_up);
    append(down, downs);
    gate_up.shape[0] = downs.shape[0] = std::uint64_t(e + 1);
  }
  REQUIRE(gate_up.shape[0] > 0);
  tensors.push_back(gate_up);
  tensors.push_back(downs);
  const support::TempDirectory temp;
  agrees(block, temp.write(support::safetensors_text(tensors), "fused.safetensors"), map);
}

const GatedMlp<Silu> expert{.model_dim = 16, .hidden_dim = 20};

SoftmaxTopK softmax_top_k(Index experts, Index k, bool renormalise) {
  return {.scores = {.experts = experts, .bias = false}, .selection = {.k = k, .renormalise = renormalise}};
}

}  // namespace

constexpr auto fused = io::published::ExpertStorage::fused;

TEST_CASE("published maps: Mixtral gives the stored results") {
  const Mixture block{softmax_top_k(4, 2, true), expert};
  const std::string at = "model.layers.0.block_sparse_moe.";
  agrees(block, "mixtral.safetensors", io::published::mixtral(at));
  agrees_fused(block, "mixtral.safetensors", at, io::published::mixtral(at, fused), "w1", "w3", "w2");
}
TEST_CASE("published maps: Qwen2-MoE gives the stored results") {
  const WithShared block{Mixture{softmax_top_k(6, 3, false), expert},
                         SigmoidGated{GatedMlp<Silu>{.model_dim = 16, .hidden_dim = 28}}};
  const std::string at = "model.layers.1.mlp.";
  agrees(block, "qwen2_moe.safetensors", io::published::qwen2_moe(at));
  agrees_fused(block, "qwen2_moe.safetensors", at, io::published::qwen2_moe(at, fused));
}
TEST_CASE("published maps: Qwen3-MoE in several files gives the stored results") {
  const Mixture block{softmax_top_k(8, 4, true), expert};
  const std::string at = "model.layers.2.mlp.";
  agrees(block, "qwen3_moe.safetensors.index.json", io::published::qwen3_moe(at));
  agrees_fused(block, "qwen3_moe.safetensors.index.json", at, io::published::qwen3_moe(at, fused));
}
TEST_CASE("published maps: OLMoE gives the stored results") {
  const Mixture block{softmax_top_k(8, 3, false), expert};
  const std::string at = "model.layers.0.mlp.";
  agrees(block, "olmoe.safetensors", io::published::olmoe(at));
  agrees_fused(block, "olmoe.safetensors", at, io::published::olmoe(at, fused));
}
TEST_CASE("published maps: DeepSeek-V3 gives the stored results") {
  const WithShared block{Mixture{published::deepseek_v3({.experts = 16, .k = 4, .groups = 4, .top_groups = 2}), expert},
                         GatedMlp<Silu>{.model_dim = 16, .hidden_dim = 40}};
  const std::string at = "model.layers.3.mlp.";
  agrees(block, "deepseek_v3.safetensors", io::published::deepseek_v3(at));
  agrees_fused(block, "deepseek_v3.safetensors", at, io::published::deepseek_v3(at, fused));
}
TEST_CASE("published maps: Llama 4 gives the stored results") {
  const WithShared block{Mixture{published::llama4({.experts = 6, .k = 2}), expert}, expert};
  agrees(block, "llama4.safetensors", io::published::llama4("model.layers.0.feed_forward."));
}
TEST_CASE("published maps: Switch Transformer gives the stored results") {
  agrees(Mixture{published::switch_transformer({.experts = 4, .factor = 4}),
                 Mlp<Relu>{.model_dim = 16, .hidden_dim = 20, .bias = false}},
         "switch_transformer.safetensors", io::published::switch_transformer("encoder.block.1.layer.1.mlp."));
}
