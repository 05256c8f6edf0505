// Blocks of published models, tiny and random, against what the transformers package makes of them:
// tests/golden/published_blocks.py, which wrote tests/io/blocks.

#include "gatefold/io/published_maps.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "gatefold/expert/sigmoid_gated.hpp"
#include "gatefold/gatefold.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "support/larger.hpp"

using namespace gatefold;

namespace {

const std::filesystem::path blocks = std::filesystem::path(GATEFOLD_TEST_DIR) / "io" / "blocks";

/// The largest difference to the stored output, in parts of the largest element.
template <class T, class Block>
double difference(const Block& block, const char* file, const io::TensorMap& map) {
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

/// In double and in float; the blocks' own probabilities are floats.
template <class Block>
void agrees(const Block& block, const char* file, const io::TensorMap& map) {
  CHECK(difference<double>(block, file, map) <= 1e-6);
  CHECK(difference<float>(block, file, map) <= 2e-6);
}

const GatedMlp<Silu> expert{.model_dim = 16, .hidden_dim = 20};

SoftmaxTopK softmax_top_k(Index experts, Index k, bool renormalise) {
  return {.scores = {.experts = experts, .bias = false}, .selection = {.k = k, .renormalise = renormalise}};
}

}  // namespace

TEST_CASE("Mixtral") {
  agrees(Mixture{softmax_top_k(4, 2, true), expert}, "mixtral.safetensors",
         io::published::mixtral("model.layers.0.block_sparse_moe."));
}
TEST_CASE("Qwen2-MoE: a shared expert behind a sigmoid") {
  agrees(WithShared{Mixture{softmax_top_k(6, 3, false), expert},
                    SigmoidGated{GatedMlp<Silu>{.model_dim = 16, .hidden_dim = 28}}},
         "qwen2_moe.safetensors", io::published::qwen2_moe("model.layers.1.mlp."));
}
TEST_CASE("Qwen3-MoE, in shards") {
  agrees(Mixture{softmax_top_k(8, 4, true), expert}, "qwen3_moe.safetensors.index.json",
         io::published::qwen3_moe("model.layers.2.mlp."));
}
TEST_CASE("OLMoE") {
  agrees(Mixture{softmax_top_k(8, 3, false), expert}, "olmoe.safetensors", io::published::olmoe("model.layers.0.mlp."));
}
TEST_CASE("DeepSeek-V3: of the experts of the best groups, and shared ones") {
  agrees(WithShared{Mixture{published::deepseek_v3({.experts = 16, .k = 4, .groups = 4, .top_groups = 2}), expert},
                    GatedMlp<Silu>{.model_dim = 16, .hidden_dim = 40}},
         "deepseek_v3.safetensors", io::published::deepseek_v3("model.layers.3.mlp."));
}
TEST_CASE("Switch Transformer") {
  agrees(Mixture{published::switch_transformer({.experts = 4, .factor = 4}),
                 Mlp<Relu>{.model_dim = 16, .hidden_dim = 20, .bias = false}},
         "switch_transformer.safetensors", io::published::switch_transformer("encoder.block.1.layer.1.mlp."));
}
