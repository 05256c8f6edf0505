// Whole models on the device: deep models, models that chain different layers, attention with a gate that follows it,
// and models with frozen parameters.

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <utility>

#include "gatefold/gatefold.cuh"
#include "gatefold/papers/expert_outputs.hpp"
#include "gatefold/papers/jacobian.hpp"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index dim = 12;
const SoftmaxTopK gate{.scores = {.experts = 5}, .selection = {.k = 2}};
const Mixture mixture{gate, Linear{.model_dim = dim}};

template <class T, class L>
void check(const L& layer, const Case& c = {.items = 21}) {
  Backends on;
  expect_same_layer<T>(on, layer, c);
}

const Residual attention{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = dim, .heads = 2}}};
auto block_of(const AttentionPosterior& mixing) {
  const AttentionAware<SoftmaxTopK> follows{.scores = {.experts = 5}, .mixing = mixing, .selection = {.k = 2}};
  return Block{attention, Residual{update::HeavyBall{}, Mixture{follows, Linear{.model_dim = dim}}}};
}

}  // namespace

TEST_CASE("cuda: models without attention match the naive backend") {
  const Residual layer{update::HeavyBall{}, PreNorm{LayerNorm{}, mixture}};
  SUBCASE("Stack") { check<double>(Stack{layer, 3}); }
#ifdef GATEFOLD_SLOW_TESTS
  SUBCASE("Stack, float") { check<float>(Stack{layer, 3}); }
  SUBCASE("Chain, float") { check<float>(Chain{Stack{layer, 2}, Linear{.model_dim = dim, .output_dim = 5}}); }
#endif
  SUBCASE("Chain of different layers") {
    check<double>(
        Chain{Stack{layer, 2}, Residual{update::Plain{}, mixture}, Linear{.model_dim = dim, .output_dim = 5}});
  }
  SUBCASE("Stack of PerToken") {
    check<double>(Stack{PerToken{3, Residual{update::Nesterov{}, mixture}}, 2}, {.items = 7});
  }
}

TEST_CASE("cuda: blocks with AttentionAware gates match the naive backend") {
  const Case sequences{.items = 24, .length = 8};
  SUBCASE("lowest entropy") { check<double>(block_of({}), sequences); }
  SUBCASE("every head") { check<double>(block_of({.head = FollowedHead::every}), sequences); }
#ifdef GATEFOLD_SLOW_TESTS
  SUBCASE("Stack, float") { check<float>(Stack{block_of({}), 2}, sequences); }
#endif
}

namespace {

/// Rounds a float to bfloat16, to nearest with ties to even.
float rounded(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t below = bits & 0xffff0000u, above = below + 0x10000u, rest = bits & 0xffffu;
  const bool up = rest > 0x8000u || (rest == 0x8000u && (below & 0x10000u));
  return std::bit_cast<float>(up ? above : below);
}

template <class T, class B, class L, class P>
Tensor<T, 2, B> inferred(typename B::Context& ctx, const L& layer, const P& params, const Tensor<T, 2, B>& x) {
  Tensor<T, 2, B> y(x.extent(0), layer.out_dim());
  Carry<L, T, B> carry;
  layer.begin(ctx, model_params(params), x.extent(0), carry);
  infer<T, B>(layer, ctx, params, x, carry, y);
  return y;
}

/// @param rounds  whether the weights of an expert's products are kept in bfloat16
template <class T, class E>
void check_frozen(const E& expert, bool rounds) {
  Backends on;
  const Stack layer{Residual{update::HeavyBall{}, Mixture{gate, expert}}, 2};
  auto [params, cuda_params] = params_of<T>(on, layer, {});
  const auto x = random_tensor<T>(on, Seed{2}, 1, 19, dim);
  if constexpr (std::is_same_v<T, float>)
    for_each_tensor(
        [&]<int R>(const Name&, Tensor<float, R, Naive>& t) {
          if (R == 3 && rounds)
            for (Index i = 0; i < t.size(); ++i) t.data()[i] = rounded(t.data()[i]);
        },
        params);
  const auto frozen =
      freeze(on.cuda, std::move(cuda_params), {.weights = rounds ? Weights::bfloat16 : Weights::unchanged});
  expect_same(on, "y", inferred<T, Naive>(on.naive, layer, params, x),
              inferred<T, Cuda>(on.cuda, layer, frozen, on_cuda<Tensor<T, 2, Cuda>>(on, x)), {});
}

}  // namespace

TEST_CASE("cuda: frozen parameters match the naive backend") {
  for (const bool rounds : {false, true}) {
    CAPTURE(rounds);
    SUBCASE("Mlp, float") { check_frozen<float>(Mlp<Gelu>{.model_dim = dim, .hidden_dim = 7}, rounds); }
    SUBCASE("GatedMlp, float") { check_frozen<float>(GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 8}, rounds); }
    SUBCASE("double, not rounded") { check_frozen<double>(Linear{.model_dim = dim}, rounds); }
  }
}

TEST_CASE("cuda: expert_outputs and the Jacobian match the naive backend") {
  Backends on;
  auto [params, cuda_params] = params_of<double>(on, mixture, {});
  const auto x = random_tensor<double>(on, Seed{2}, 1, 9, dim);
  const auto cuda_x = on_cuda<Tensor<double, 2, Cuda>>(on, x);
  expect_same(on, "outputs", expert_outputs(on.naive, mixture, params, x.view()),
              expert_outputs(on.cuda, mixture, cuda_params, cuda_x.view()), {});
  expect_same(on, "jacobian", jacobian(on.naive, mixture, params, x.view().rows(0, 1)),
              jacobian(on.cuda, mixture, cuda_params, cuda_x.view().rows(0, 1)), {});
}
