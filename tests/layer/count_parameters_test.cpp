#include "gatefold/layer/count_parameters.hpp"

#include <doctest/doctest.h>

#include <string>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/expert/multi_head_expert.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/update/heavy_ball.hpp"
#include "gatefold/update/learned_heavy_ball.hpp"
#include "gatefold/update/plain.hpp"

#include "support/pass.hpp"

using namespace gatefold;

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
