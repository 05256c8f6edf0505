// Branches and layers on the device, alone and nested.

#include <doctest/doctest.h>

#include <cmath>
#include <utility>

#include "gatefold/gatefold.cuh"
#include "gatefold/layer/latent_attention.hpp"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index dim = 12;
const Mlp<Gelu> mlp{.model_dim = dim, .hidden_dim = 7};
const Mixture mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = 2}}, mlp};

template <class T, class L>
void check(const L& layer, const Case& c = {.items = 21}) {
  Backends on;
  expect_same_layer<T>(on, layer, c);
}

/// Makes all items alike, so that they all go to the same experts.
double alike(Index, Index d, double) { return 0.1 * static_cast<double>(d) - 0.3; }

}  // namespace

TEST_CASE("cuda: Mixture matches the naive backend") {
  SUBCASE("double") { check<double>(mixture); }
  SUBCASE("float") { check<float>(mixture); }
  SUBCASE("one item") { check<double>(mixture, {.items = 1}); }
  SUBCASE("no item") { check<double>(mixture, {.items = 0, .expected = {.zeros = {"grads", "saved"}}}); }
  SUBCASE("equal items") { check<double>(mixture, {.items = 21, .edit = alike}); }
  SUBCASE("soft slots") {
    check<double>(Mixture{SoftMoe{.count = 3, .slots = 2}, Linear{.model_dim = dim, .output_dim = 5}},
                  {.items = 12, .length = 4});
  }
}

TEST_CASE("cuda: MultiGate matches the naive backend") {
  const MultiGate tasks{mixture.gate, mlp, 3};
  SUBCASE("double") { check<double>(tasks); }
  SUBCASE("float") { check<float>(tasks); }
  SUBCASE("no item") { check<double>(tasks, {.items = 0, .expected = {.zeros = {"grads", "saved"}}}); }
  SUBCASE("Towers") { check<double>(Chain{tasks, Towers{Linear{.model_dim = dim, .output_dim = 2}, 3}}); }
  SUBCASE("every expert") { check<double>(MultiGate{SoftmaxDense{.scores = {.experts = 3}}, mlp, 2}); }
}

TEST_CASE("cuda: LatentMixture matches the naive backend") {
  const LatentMixture latent{mixture, 3 * dim};
  SUBCASE("double") { check<double>(latent); }
  SUBCASE("float") { check<float>(latent); }
  SUBCASE("no item") { check<double>(latent, {.items = 0, .expected = {.zeros = {"grads", "saved"}}}); }
  SUBCASE("in a stream, with a shared expert") {
    check<double>(Residual{update::Plain{}, WithShared{LatentMixture{mixture, 3 * dim, true}, Linear{3 * dim}}});
  }
}

TEST_CASE("cuda: Competition matches the naive backend") {
  const Competition competing{mixture, 1.0};
  SUBCASE("double") { check<double>(competing); }
  SUBCASE("float, norms") { check<float>(Competition{mixture, 1.0, 0.3, Affinity::norm, false}); }
  SUBCASE("a call that does not compete") { check<double>(competing, {.items = 21, .noise = false}); }
  SUBCASE("no item") { check<double>(competing, {.items = 0, .expected = {.zeros = {"grads", "saved"}}}); }
}

TEST_CASE("cuda: StableMoe matches the naive backend in both stages") {
  const Mixture stable{published::stable_moe({.experts = 5, .vocabulary = 7}), mlp};
  SUBCASE("stage 1") { check<double>(stable, {.items = 21, .padding = true}); }
  SUBCASE("stage 1, float") { check<float>(stable); }
  SUBCASE("stage 2") {
    check<double>(stable, {.items = 21, .auxiliary = false, .expected = {.zeros = {"grads..gate.selection"}}});
  }
}

TEST_CASE("cuda: Fields matches the naive backend") {
  const auto ids = [](Index, Index d, double v) { return d == 0 ? std::floor(4.5 + 4.5 * v) : d == 1 ? 2.0 : v; };
  const Fields fields{.vocabularies = {9, 3}, .dim = 5, .numeric = 2};
  SUBCASE("double") { check<double>(fields, {.edit = ids}); }
  SUBCASE("float, wider than a warp") {
    check<float>(Fields{.vocabularies = {9, 3}, .dim = 45, .numeric = 2}, {.edit = ids});
  }
  SUBCASE("dense gradients") {
    check<double>(Fields{.vocabularies = {9, 3}, .dim = 5, .numeric = 2, .sparse = false}, {.edit = ids});
  }
}

TEST_CASE("cuda: Fields: an id outside its range gives NaN") {
  Backends on;
  auto& ctx = on.cuda;
  const Fields fields{.vocabularies = {3}, .dim = 2};
  const auto params = init_params<float, Cuda>(fields, ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  Tensor<float, 2, Naive> ids(4, 1);
  ids(0, 0) = 2, ids(1, 0) = 3, ids(2, 0) = -1, ids(3, 0) = std::nanf("");
  const auto x = on_cuda<Tensor<float, 2, Cuda>>(on, ids);
  Tensor<float, 2, Cuda> u(4, 2), dx = constant_tensor<float>(ctx, 0, 4, 1);
  Nothing<float, Cuda> none;
  fields.forward(ctx, params, x, u, none);
  float values[8], weight[6];
  Cuda::to_host(ctx, 8, std::as_const(u).data(), values);
  for (int i = 0; i < 8; ++i) CHECK(std::isnan(values[i]) == (i >= 2));
  fill(ctx, u, 1);
  fields.backward(ctx, params, x, none, u, dx, grads, none, none);
  Cuda::to_host(ctx, 6, std::as_const(grads.weight[0]).data(), weight);
  for (int i = 0; i < 6; ++i) CHECK(weight[i] == (i >= 4 ? 1 : 0));

  Trainer trainer{ctx, Chain{fields, OneExpert{Mlp<Relu>{.model_dim = 2, .hidden_dim = 4}}}, MeanSquaredError{},
                  optim::Sgd{}, Seed{1}};
  CHECK_THROWS_AS(trainer.step(x, u), NotFiniteError);
}

TEST_CASE("cuda: layers with one branch match the naive backend") {
  const Residual residual{update::HeavyBall{}, mixture};
  SUBCASE("LayerNorm, wider than a warp") { check<double>(OneExpert{LayerNorm{.model_dim = 45}}); }
  SUBCASE("LayerNorm, float") { check<float>(OneExpert{LayerNorm{.model_dim = 45}}); }
  SUBCASE("RmsNorm, wider than a warp") { check<double>(PreNorm{RmsNorm{}, OneExpert{Linear{.model_dim = 45}}}); }
  SUBCASE("PreNorm") { check<double>(PreNorm{LayerNorm{}, mixture}); }
  SUBCASE("OneExpert") { check<double>(OneExpert{mlp}); }
  SUBCASE("Activate") { check<double>(Activate<Gelu>{.model_dim = 45}); }
  SUBCASE("activations in a Chain") { check<float>(Chain{Linear{dim, 45}, Silu{}, Linear{45, 3}, Relu2{}}); }
  SUBCASE("NoResidual") { check<double>(NoResidual{OneExpert{Linear{.model_dim = dim, .output_dim = 3}}}); }
  SUBCASE("Dropout") { check<double>(Residual{update::HeavyBall{}, Dropout{0.4, mixture}}); }
  SUBCASE("HiddenDropout") { check<double>(Mixture{mixture.gate, HiddenDropout{0.4, mlp}}); }
  SUBCASE("HiddenDropout, GatedMlp, soft slots") {
    check<double>(
        Mixture{SoftMoe{.count = 3, .slots = 2}, HiddenDropout{0.4, GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 7}}},
        {.items = 12, .length = 4});
  }
  SUBCASE("PostNorm, Skip") { check<double>(PostNorm{Skip{PostNorm{residual, LayerNorm{}}}, RmsNorm{}}); }
  SUBCASE("Recompute") {  // the first carry is 0, and so is its gradient, because μ begins at 0
    check<double>(Stack{Recompute{Residual{update::TimeVarying{}, mixture}}, 2},
                  {.expected = {.zeros = {"saved.0.0.0", "dcarry"}}});
  }
  SUBCASE("WithShared") { check<double>(WithShared{mixture, mlp, 0.5}); }
  SUBCASE("PerToken") { check<double>(PerToken{3, residual}, {.items = 7}); }
  SUBCASE("Residual") { check<double>(residual); }
  SUBCASE("Residual, two evaluations") { check<double>(Residual{update::SharpnessAware{.rho = 0.2}, mixture}); }
#ifdef GATEFOLD_SLOW_TESTS
  SUBCASE("OneExpert, float") { check<float>(OneExpert{mlp}); }
  SUBCASE("WithShared, float") { check<float>(WithShared{mixture, mlp, 0.5}); }
  SUBCASE("PerToken, float") { check<float>(PerToken{3, residual}, {.items = 7}); }
#endif
  SUBCASE("no item") {
    check<double>(PreNorm{LayerNorm{}, OneExpert{mlp}}, {.items = 0, .expected = {.zeros = {"grads"}}});
  }
}

TEST_CASE("cuda: attention matches the naive backend") {
  const Attention attention{.model_dim = dim, .heads = 2};
  SUBCASE("causal") { check<double>(attention, {.items = 24, .length = 8}); }
  SUBCASE("padding") { check<double>(attention, {.items = 24, .length = 8, .padding = true}); }
  SUBCASE("not causal, all items one sequence") {
    check<double>(Attention{.model_dim = dim, .heads = 3, .causal = false}, {.items = 19});
  }
  SUBCASE("more than a block of keys") { check<double>(Attention{.model_dim = 4}, {.items = 140}); }
  SUBCASE("float") { check<float>(attention, {.items = 24, .length = 8}); }
}

TEST_CASE("cuda: window attention matches the naive backend") {
  RelativeAttention attention{.model_dim = dim, .heads = 2, .window = 5};
  const auto with_keys = [&] { return RelativeKeys{attention.window, dim / 2, NoResidual{attention}}; };
  SUBCASE("sequences") { check<double>(with_keys(), {.items = 24, .length = 8}); }
  SUBCASE("past items, no attention to itself") {
    attention.itself = false;
    check<double>(with_keys(), {.items = 24, .length = 8, .past = 3});
  }
  SUBCASE("padding, past items") { check<double>(with_keys(), {.items = 24, .length = 8, .padding = true, .past = 3}); }
  SUBCASE("dropout") {
    attention.dropout = 0.4;
    check<double>(with_keys(), {.items = 24, .length = 8});
  }
  SUBCASE("more than a block of keys") {
    check<double>(RelativeKeys{90, 4, NoResidual{RelativeAttention{.model_dim = 4, .window = 90}}}, {.items = 300});
  }
  SUBCASE("float") { check<float>(with_keys(), {.items = 24, .length = 8}); }
  const auto followed = [&](FollowedHead head) {
    const AttentionAware<SoftmaxTopK> gate{.scores = {.experts = 5}, .mixing = {.head = head}, .selection = {.k = 2}};
    return RelativeKeys{attention.window, dim / 2,
                        Block{Residual{update::Plain{}, attention}, Residual{update::Plain{}, Mixture{gate, mlp}}}};
  };
  SUBCASE("gate that follows the attention") { check<double>(followed({}), {.items = 24, .length = 8, .past = 3}); }
  SUBCASE("gate that follows every head") {
    attention.itself = false;
    check<double>(followed(FollowedHead::every), {.items = 24, .length = 8});
  }
  SUBCASE("gate that follows the attention across blocks") {
    attention.window = 90;
    check<double>(followed({}), {.items = 150});
  }
}

TEST_CASE("cuda: grouped queries match the naive backend") {
  GroupedQueryAttention attention{.model_dim = dim, .heads = 4, .kv_heads = 2, .head_dim = 6};
  attention.rotary = {.rope_type = RopeType::yarn, .factor = 4, .original_max_position_embeddings = 8};
  SUBCASE("sequences") { check<double>(attention, {.items = 24, .length = 8}); }
  SUBCASE("padding") { check<double>(attention, {.items = 24, .length = 8, .padding = true}); }
  SUBCASE("biases, norm of heads, sinks, window") {
    attention.bias = attention.output_bias = attention.sinks = true;
    attention.norm = QueryKeyNorm::head;
    attention.window = 5;
    check<double>(attention, {.items = 24, .length = 8});
  }
  SUBCASE("norm after rotation, chunks, temperature") {
    attention.norm = QueryKeyNorm::rotated_head;
    attention.rotary = {.interleaved = true};
    attention.chunk = 3;
    attention.temperature = {.floor_scale = 2, .attn_scale = 0.5};
    check<double>(attention, {.items = 24, .length = 8});
  }
  SUBCASE("norm of all heads, float") {
    attention.norm = QueryKeyNorm::all;
    check<float>(attention, {.items = 24, .length = 8});
  }
  SUBCASE("latent vectors") {
    check<double>(LatentAttention{.model_dim = dim,
                                  .heads = 3,
                                  .query_rank = 5,
                                  .latent_dim = 7,
                                  .plain_dim = 3,
                                  .rotary_dim = 4,
                                  .value_dim = 5},
                  {.items = 24, .length = 8, .padding = true});
  }
  SUBCASE("either branch") {
    check<double>(Either{mixture, OneExpert{mlp}});
    check<double>(Either{mixture, OneExpert{mlp}, true});
  }
}
