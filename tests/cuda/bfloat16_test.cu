// Experts that multiply in bfloat16 on the device. Compositions with them are tested in cuda/policies_*.

#include <doctest/doctest.h>

#include "support/bf16_by_hand.hpp"
#include "support/bf16_deep.hpp"
#include "support/bf16_layers.cuh"
#include "support/bf16_on_cpu.hpp"
#include "support/graph.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index dim = 20;

}  // namespace

TEST_CASE("cuda: experts round as docs/explanation/bfloat16.md defines") { by_hand::check_experts<float, CudaBf16>(); }

#ifdef GATEFOLD_CPU_BESIDE
TEST_CASE("cuda: CudaBf16 and CpuBf16 agree within their rounding errors") {
  const auto on_device = [](const auto& layer) {
    CudaBf16::Context ctx;
    return outcome(layer.template run<float, CudaBf16>(ctx));
  };
  rows::with_rounded<RoundedDouble>(
      transformer_on_both, [&](const auto& layer) { layer.expect_alike(outcome_on_cpu(layer), on_device(layer)); });
  // For these layers, only the device rounds the values of slots. So each backend is compared with a reference that
  // rounds the same values as that backend.
  rows::with_rounded<RoundedDouble>(gated_on_both, [](const auto& layer) { layer.expect(outcome_on_cpu(layer)); });
  rows::with_rounded<RoundedSlots>(gated_on_both, [&](const auto& layer) { layer.expect(on_device(layer)); });
}
#endif

#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda: deep layers match double layers that round equally") {
  for_each_deep_layer<RoundedSlots>([](const auto& rounded) {
    CudaBf16::Context ctx;
    rounded.expect(outcome(rounded.template run<float, CudaBf16>(ctx)));
  });
}
TEST_CASE("cuda: bfloat16 experts match loops that round the same factors") {
  const auto check = [](const auto& expert, Index items = 40) {
    const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, expert};
    check_bf16_layer(Residual{update::HeavyBall{}, mixture}, items, dim);
  };
  SUBCASE("Mlp") { check(Mlp<Gelu>{.model_dim = dim, .hidden_dim = 40}); }
  SUBCASE("Mlp, odd, without bias") { check(Mlp<Relu>{.model_dim = dim, .hidden_dim = 13, .bias = false}); }
  SUBCASE("GatedMlp with biases") { check(GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 13, .bias = true}, 20); }
  SUBCASE("GatedMlp, odd, many items") { check(GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 13}, 200); }
}
TEST_CASE("cuda: CudaBf16 computes doubles like Cuda") {
  const Residual layer{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                    Mlp<Gelu>{.model_dim = dim, .hidden_dim = 13}}};
  const auto run = [&]<class B>(std::type_identity<B>) {
    typename B::Context ctx;
    const auto params = init_params<double, B>(layer, ctx, Seed{1});
    const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 30, dim);
    Tensor<double, 2, B> y(30, dim);
    Carry<std::decay_t<decltype(layer)>, double, B> carry;
    layer.begin(ctx, params, 30, carry);
    gatefold::infer<double, B>(layer, ctx, params, x, carry, y);
    std::vector<double> values(static_cast<std::size_t>(y.size()));
    B::to_host(ctx, y.size(), y.data(), values.data());
    return values;
  };
  CHECK(run(std::type_identity<Cuda>{}) == run(std::type_identity<CudaBf16>{}));
}
#endif

TEST_CASE("cuda: frozen weights change no bit, passes can be captured") {
  const Residual layer{update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                Mlp<Gelu>{.model_dim = dim, .hidden_dim = 24}}};
  constexpr Index items = 50;
  CudaBf16::Context ctx;
  auto params = init_params<float, CudaBf16>(layer, ctx, Seed{1});
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
  Tensor<float, 2, CudaBf16> y(items, dim);
  Carry<std::decay_t<decltype(layer)>, float, CudaBf16> carry;
  const auto values = [&] {
    std::vector<float> v(static_cast<std::size_t>(y.size()));
    CudaBf16::to_host(ctx, y.size(), y.data(), v.data());
    return v;
  };
  layer.begin(ctx, params, items, carry);
  gatefold::infer<float, CudaBf16>(layer, ctx, params, x, carry, y);
  const auto expected = values();
  const auto frozen = freeze(ctx, std::move(params), {.weights = Weights::bfloat16});
  const auto pass = [&] {
    layer.begin(ctx, model_params(frozen), items, carry);
    infer(layer, ctx, frozen, x, carry, y);
  };
  pass();
  CHECK(values() == expected);
  set_zero(ctx, y);
  const Graph graph(ctx.stream(), pass);
  for (int launch = 0; launch < 2; ++launch) {
    set_zero(ctx, y);
    graph.launch();
    CHECK(values() == expected);
  }
}
