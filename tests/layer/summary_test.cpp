#include "gatefold/layer/summary.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <locale>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/expert/experts.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/expert/multi_head_expert.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/hash_gate.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/update/learned_heavy_ball.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;

namespace {

std::string printed(const Summary& summary) {
  std::ostringstream text;
  text << summary;
  return text.str();
}
template <class G>
Index active_of(const G& gate) {
  return summary(Mixture{gate, Linear{.model_dim = 8, .bias = false}}).active;
}

}  // namespace

TEST_CASE("summary: prints names, shapes, values, active values and bytes") {
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 4, .bias = false}, .selection = {.k = 2}},
                        Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16, .bias = false}};
  CHECK(printed(summary(mixture)) ==
        "gate.scores.weight   [8, 4]         32 values    32 active    128 bytes\n"
        "expert.up            [4, 8, 16]    512 values   256 active   2048 bytes\n"
        "expert.down          [4, 16, 8]    512 values   256 active   2048 bytes\n"
        "total                             1056 values   544 active   4224 bytes\n");
  CHECK(summary<double>(mixture).bytes == 8448);
}

TEST_CASE("summary: rows are the tensors of init, for any model") {
  const Chain model{
      Embedding{.vocabulary = 11, .model_dim = 8},
      Stack{Block{Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = 8, .heads = 2}}},
                  Residual{update::LearnedHeavyBall{},
                           WithShared{Mixture{SigmoidTopK{.scores = {.experts = 6}, .selection = {.k = 2}},
                                              Mlp<Gelu>{.model_dim = 8, .hidden_dim = 5}},
                                      Mlp<Gelu>{.model_dim = 8, .hidden_dim = 3}}}},
            3}};
  const Summary all = summary(model);
  Cpu::Context ctx(1);
  const auto params = init_params<float, Cpu>(as_layer<float, Cpu>(model), ctx, Seed{1});
  std::size_t i = 0;
  for_each_tensor(
      [&](const Name& at, const auto& t) {
        REQUIRE(i < all.rows.size());
        const Summary::Row& row = all.rows[i++];
        CHECK(row.name == at.str());
        CHECK(row.values == t.size());
        CHECK(row.bytes == 4 * t.size());
        for (int d = 0; d < t.rank; ++d) CHECK(row.extents[std::size_t(d)] == t.extent(d));
        const bool of_experts = row.name.find(".branch.branch.expert.") != std::string::npos;
        CHECK(row.active == (of_experts ? row.values / 3 : row.values));
        CHECK(row.learned == (row.name.find("selection") == std::string::npos));
      },
      params);
  CHECK(i == all.rows.size());
  CHECK(all.values == count_values(params));
  CHECK(all.values == count_parameters(model));
  CHECK(all.bytes == 4 * all.values);
  CHECK(all.learned == all.values - 3 * (6 + 1));
  const Index expert = 2 * 8 * 5 + 5 + 8;
  CHECK(all.active == all.values - 3 * 4 * expert);
}

TEST_CASE("summary: counts active experts for every kind of selection") {
  const Index one = 8 * 8, scores = 8 * 10 + 10;
  CHECK(active_of(SoftmaxTopK{.scores = {.experts = 10}, .selection = {.k = 3}}) == scores + 3 * one);
  CHECK(active_of(SoftmaxNoisyTop1{.scores = {.experts = 10}}) == scores + one);
  CHECK(active_of(VMoe{.scores = {.experts = 10}, .selection = {.selection = {.k = 2}}}) == scores + 80 + 2 * one);
  CHECK(active_of(SoftmaxExpertChoice{.scores = {.experts = 10}, .selection = {.factor = 1.5}}) == scores + 2 * one);
  CHECK(active_of(ComposedGate<LinearScores, Independent, Dense>{.scores = {.experts = 10}}) == scores + 10 * one);
  CHECK(active_of(SoftMoe{.count = 10, .slots = 2}) == 10 * 2 * 8 + 1 + 10 * one);
  CHECK(active_of(HashGate{.count = 10, .k = 4}) == 4 * one);
}

TEST_CASE("summary: experts of different types count with their mean size") {
  const Summary all = summary(Mixture{SoftmaxTopK{.scores = {.bias = false}, .selection = {.k = 2}},
                                      Experts{std::tuple{Mlp<Gelu>{.model_dim = 4, .hidden_dim = 6, .bias = false},
                                                         Linear{.model_dim = 4, .bias = false}},
                                              {3, 1}}});
  CHECK(all.active == 4 * 4 + (3 * 2 * 4 * 6 + 4 * 4) * 2 / 4);
}

TEST_CASE("summary: works for learned losses and models larger than memory") {
  CHECK(summary(StreamedCrossEntropy{.vocabulary = 9, .model_dim = 4}).values == 9 * 4 + 9);
  const Index dim = 16384, hidden = 4 * dim, experts = 2048, depth = 128;
  const Stack model{Residual{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = experts}},
                                                          Mlp<Gelu>{.model_dim = dim, .hidden_dim = hidden}}},
                    depth};
  const Index expert = 2 * dim * hidden + hidden + dim;
  CHECK(summary(model).active == depth * ((dim + 1) * experts + 2 * expert));
  CHECK_THROWS_AS(
      summary(Mixture{SoftmaxTopK{.scores = {.experts = 2}, .selection = {.k = 3}}, Linear{.model_dim = 4}}),
      ArgumentError);
}

namespace {

template <class L>
Index stored(const L& layer) {
  Cpu::Context ctx(1);
  const auto model = as_layer<float, Cpu>(layer);
  return count_values(init_params<float, Cpu>(model, ctx, Seed{1}));
}
auto transformer(Index dim, Index hidden, Index experts, Index depth) {
  return Stack{Block{Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = dim, .heads = 2}}},
                     Residual{update::HeavyBall{},
                              PreNorm{LayerNorm{}, Mixture{SoftmaxTopK{.scores = {.experts = experts}},
                                                           Mlp<Gelu>{.model_dim = dim, .hidden_dim = hidden}}}}},
               depth};
}

}  // namespace

TEST_CASE("count_parameters (1): equals the size of the stored model") {
  CHECK(count_parameters(Mlp<Gelu>{.model_dim = 4, .hidden_dim = 6}) == 2 * 4 * 6 + 6 + 4);
  const auto model = transformer(8, 12, 3, 2);
  CHECK(count_parameters(model) == stored(model));
  CHECK(count_parameters(model) == 2 * (4 * 8 * 8 + 4 * 8 + (8 + 1) * 3 + 3 * (2 * 8 * 12 + 12 + 8)));

  const Chain mixed{
      Linear{.model_dim = 5, .output_dim = 8},
      Residual{update::LearnedHeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 4}}, Mlp<Relu>{8, 3}}},
      MultiHeadExpert{.model_dim = 8, .heads = 2}};
  CHECK(count_parameters(mixed) == stored(mixed));
}

TEST_CASE("count_parameters: includes the parameters of a loss") {
  const Embedding embedding{.vocabulary = 9, .model_dim = 4};
  const StreamedCrossEntropy apart{.vocabulary = 9, .model_dim = 4},
      tied{.vocabulary = 9, .model_dim = 4, .tied = true};
  CHECK(count_parameters(embedding, apart) == 9 * 4 + 9 * 4 + 9);
  CHECK(count_parameters(embedding, tied) == 9 * 4 + 9);
  CHECK(count_parameters(apart) == 9 * 4 + 9);
  CHECK(count_parameters(embedding, CrossEntropy{}) == 9 * 4);
}

TEST_CASE("count_parameters: works for models larger than memory") {
  const Index dim = 16384, hidden = 4 * dim, experts = 2048, depth = 128;
  CHECK(count_parameters(transformer(dim, hidden, experts, depth)) ==
        depth * (4 * dim * dim + 4 * dim + (dim + 1) * experts + experts * (2 * dim * hidden + hidden + dim)));
}

TEST_CASE("count_parameters: 2^63 values or more throw") {
  const Linear layer{.model_dim = Index(1) << 30, .output_dim = Index(1) << 30, .bias = false};  // 2^60 values
  CHECK(count_parameters(Stack{NoResidual{OneExpert{layer}}, 7}) == 7 * (Index(1) << 60));
  const auto message = [&](const auto&... parts) { return support::message_of([&] { count_parameters(parts...); }); };
  const std::string expected = "count_values: values: expected less than 2^63, got more";
  CHECK(message(Stack{NoResidual{OneExpert{layer}}, 8}) == expected);
  CHECK(message(layer, layer, layer, layer, layer, layer, layer, layer) == expected);
}

TEST_CASE("count_parameters: wrong options throw") {
  CHECK_THROWS_AS(count_parameters(transformer(7, 4, 2, 1)), ArgumentError);
}
