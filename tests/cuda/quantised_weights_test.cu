// Frozen weights of 8 and 4 bits on the device: inference, training around frozen experts, and memory.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/graph.cuh"
#include "support/grouped_product.cuh"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index dim = 38;

template <class E>
auto mixture(const E& expert) {
  return Mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = 2}}, expert};
}
auto gated() { return GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 45}; }

/// Rounds all tensors of rank 3 by plain loops on the host.
template <class C, class P>
void round_weights(C& ctx, P& params, Weights form) {
  using B = typename C::Backend;
  for_each_tensor(
      [&]<int Rank>(const Name&, Tensor<float, Rank, B>& t) {
        if constexpr (Rank == 3) {
          std::vector<float> values(static_cast<std::size_t>(t.size()));
          B::to_host(ctx, t.size(), std::as_const(t).data(), values.data());
          if (t.size() > 0) round_all(values, t.extent(1), t.extent(2), ToForm{form});
          B::from_host(ctx, t.size(), values.data(), t.data());
        }
      },
      params);
}
template <class C>
std::vector<float> on_host(C& ctx, const auto& t) {
  std::vector<float> values(static_cast<std::size_t>(t.size()));
  C::Backend::to_host(ctx, t.size(), t.data(), values.data());
  return values;
}
template <class C, class L, class P>
std::vector<float> outputs(C& ctx, const L& layer, const P& params, View<const float, 2, typename C::Backend> x) {
  Tensor<float, 2, typename C::Backend> y(x.extent(0), layer.out_dim());
  infer(layer, ctx, params, x, y);
  return on_host(ctx, y);
}

template <class B, class L>
void check_inference(const L& layer) {
  typename B::Context ctx;
  for (const Weights form : naive::quantised_forms)
    for (const Index items : {1, 3, 40}) {
      CAPTURE(static_cast<int>(form));
      CAPTURE(items);
      const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
      auto rounded = init_params<float, B>(layer, ctx, Seed{1});
      round_weights(ctx, rounded, form);
      const auto expected = outputs(ctx, layer, rounded, x);
      for (const bool keep_plain : {true, false}) {
        const auto frozen =
            freeze(ctx, init_params<float, B>(layer, ctx, Seed{1}), {.weights = form, .keep_plain = keep_plain});
        CHECK(difference(expected, outputs(ctx, layer, frozen, x)) == "");
      }
    }
}

}  // namespace

TEST_CASE("cuda: freeze: quantised weights equal plain rounded weights") {
  SUBCASE("GatedMlp") { check_inference<Cuda>(mixture(gated())); }
  SUBCASE("GatedMlp, CudaBf16") { check_inference<CudaBf16>(mixture(gated())); }
  SUBCASE("GatedMlp with biases") {
    check_inference<Cuda>(mixture(GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 24, .bias = true}));
  }
  SUBCASE("Mlp") { check_inference<Cuda>(mixture(Mlp<Gelu>{.model_dim = dim, .hidden_dim = 70})); }
  SUBCASE("Linear") { check_inference<Cuda>(mixture(Linear{.model_dim = dim})); }
}

TEST_CASE("cuda: freeze: quantised weights match the naive backend") {
  Backends on;
  const auto layer = mixture(gated());
  for (const Weights form : naive::quantised_forms) {
    CAPTURE(static_cast<int>(form));
    auto [params, cuda_params] = params_of<float>(on, layer, {});
    const auto x = random_tensor<float>(on, Seed{2}, 1, 19, dim);
    for (Tensor<float, 3, Naive>* t : {&params.expert.gate, &params.expert.up, &params.expert.down}) {
      std::vector<float> values(t->data(), t->data() + t->size());
      round_all(values, t->extent(1), t->extent(2), ToForm{form});
      std::copy(values.begin(), values.end(), t->data());
    }
    const auto frozen = freeze(on.cuda, std::move(cuda_params), {.weights = form});
    Tensor<float, 2, Naive> expected(19, dim);
    infer(layer, on.naive, params, x, expected);
    Tensor<float, 2, Cuda> y(19, dim);
    infer(layer, on.cuda, frozen, on_cuda<Tensor<float, 2, Cuda>>(on, x), y);
    expect_same(on, "y", expected, y, {});
  }
}

TEST_CASE("cuda: freeze: quantised weights give equal bits in any batch") {
  Cuda::Context ctx;
  const auto layer = mixture(gated());
  const Index items = 30;
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
  for (const Weights form : naive::quantised_forms) {
    const auto frozen = freeze(ctx, init_params<float, Cuda>(layer, ctx, Seed{1}), {.weights = form});
    const auto all = outputs(ctx, layer, frozen, x);
    std::vector<float> alone;
    for (Index n = 0; n < items; n += n % 3 + 1) {
      const auto part = outputs(ctx, layer, frozen, x.view().rows(n, 1));
      CHECK(std::vector<float>(all.begin() + n * dim, all.begin() + (n + 1) * dim) == part);
    }
  }
}

TEST_CASE("cuda: freeze: graphs can capture products of quantised weights") {
  Cuda::Context ctx;
  const auto layer = mixture(gated());
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 20, dim);
  auto params = init_params<float, Cuda>(layer, ctx, Seed{1});
  // [snippet packed]
  const auto frozen = freeze(ctx, std::move(params), {.weights = Weights::int4, .keep_plain = false});
  // [/snippet]
  Tensor<float, 2, Cuda> y(20, dim);
  infer(layer, ctx, frozen, x, y);
  const auto expected = on_host(ctx, y);
  const Graph graph(ctx.stream(), [&] { infer(layer, ctx, frozen, x, y); });
  set_zero(ctx, y);
  graph.launch();
  CHECK(on_host(ctx, y) == expected);
}

TEST_CASE("cuda: freeze: keep_plain = false leaves only the packed copies") {
  Cuda::Context ctx;
  const auto layer = mixture(GatedMlp<Silu>{.model_dim = 64, .hidden_dim = 96});
  const std::size_t weights = 3 * 5 * 64 * 96;
  const auto free_memory = [] {
    std::size_t free = 0, total = 0;
    REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
    return free;
  };
  for (const Weights form : naive::quantised_forms) {
    const std::size_t bytes = weights / 32 * (form == Weights::int8 ? 34 : 18);
    auto params = init_params<float, Cuda>(layer, ctx, Seed{1});
    const auto* const gate = params.gate.scores.weight.data();
    freeze(ctx, init_params<float, Cuda>(layer, ctx, Seed{1}), {.weights = form, .keep_plain = false});
    [[maybe_unused]] const std::size_t before = free_memory();  // with the scratch memory of the first call
    const auto frozen = freeze(ctx, std::move(params), {.weights = form, .keep_plain = false});
    CHECK(frozen.packed.quantised_bytes() == bytes);
    CHECK(!has_elements(frozen.params.expert.gate.data()));
    CHECK(!has_elements(frozen.params.expert.up.data()));
    CHECK(!has_elements(frozen.params.expert.down.data()));
    CHECK(frozen.params.expert.down.extent(1) == 96);
    CHECK(frozen.params.gate.scores.weight.data() == gate);
#ifdef CUDA_EMULATOR  // a real device gives memory in pages
    CHECK(free_memory() - before == weights * sizeof(float) - bytes);
#endif
  }
}

TEST_CASE("cuda: freeze: patterns choose another form for some tensors") {
  Cuda::Context ctx;
  const auto layer = mixture(gated());
  const auto frozen = freeze(ctx, init_params<float, Cuda>(layer, ctx, Seed{1}),
                             {.weights = Weights::int4,
                              .except = {{"expert", Weights::int8}, {"**.down", Weights::bfloat16}},
                              .keep_plain = false});
  const auto& expert = frozen.params.expert;
  const auto* const gate = frozen.packed.find_quantised(expert.gate.data());
  REQUIRE(gate != nullptr);
  CHECK(gate->rounding.form == Weights::int8);
  CHECK(frozen.packed.find_quantised(expert.down.data()) == nullptr);
  CHECK(has_elements(expert.down.data()));
  CHECK(frozen.packed.find(expert.down.data(), dim) != nullptr);
}

TEST_CASE("cuda: freeze: matrices of one column keep their elements") {
  Cuda::Context ctx;
  const auto layer = mixture(SigmoidGated{Linear{.model_dim = dim}});
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 4, dim);
  auto rounded = init_params<float, Cuda>(layer, ctx, Seed{1});
  const auto frozen =
      freeze(ctx, init_params<float, Cuda>(layer, ctx, Seed{1}), {.weights = Weights::int8, .keep_plain = false});
  CHECK(has_elements(frozen.params.expert.gate.data()));
  const auto gate = on_host(ctx, rounded.expert.gate);
  round_weights(ctx, rounded, Weights::int8);
  Cuda::from_host(ctx, rounded.expert.gate.size(), gate.data(), rounded.expert.gate.data());
  CHECK(difference(outputs(ctx, layer, rounded, x), outputs(ctx, layer, frozen, x)) == "");
}

TEST_CASE("cuda: freeze: quantising doubles throws") {
  const auto layer = mixture(Linear{.model_dim = 4});
  Cuda::Context ctx;
  for (const bool keep_plain : {true, false})
    CHECK_THROWS_WITH_AS(freeze(ctx, init_params<double, Cuda>(layer, ctx, Seed{1}),
                                {.weights = Weights::int4, .keep_plain = keep_plain}),
                         "freeze: weights: expected Weights::unchanged for parameters of double, got a form of 8 or 4 "
                         "bits",
                         ArgumentError);
}

TEST_CASE_TEMPLATE("cuda: freeze: a Trainer trains layers around quantised experts", B, Cuda, CudaBf16) {
  // The losses have the same bits as in a training around experts whose plain weights hold the rounded values. The
  // gradient of the first layer passes through the experts.
  const Chain model{Linear{dim, dim}, mixture(gated()), Linear{dim, 3}};
  const Index items = 24;
  typename B::Context ctx;
  const auto x = uniform_tensor<float>(ctx, Seed{3}, 1, items, dim),
             target = uniform_tensor<float>(ctx, Seed{4}, 1, items, 3);
  const auto losses = [&](auto params) {
    Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 0.02}, Seed{2}, NotTrained{"**.expert"}};
    trainer.params = std::move(params);
    std::vector<double> values;
    for (int i = 0; i < 6; ++i) values.push_back(trainer.step(x, target));
    return values;
  };
  for (const Weights form : {Weights::int8, Weights::mxfp4}) {
    auto rounded = init_params<float, B>(model, ctx, Seed{1});
    auto plain_layers = std::tie(std::get<0>(rounded.layers), std::get<2>(rounded.layers));
    const auto first = clone(ctx, std::get<0>(plain_layers)), last = clone(ctx, std::get<1>(plain_layers));
    round_weights(ctx, rounded, form);
    copy_pack(ctx, first, std::get<0>(plain_layers));
    copy_pack(ctx, last, std::get<1>(plain_layers));
    const auto expected = losses(std::move(rounded));
    CHECK(expected.back() < expected.front());
    for (const bool keep_plain : {true, false}) {
      auto frozen = freeze(ctx, init_params<float, B>(model, ctx, Seed{1}),
                           {.except = {{"**.expert", form}}, .keep_plain = keep_plain});
      const auto scope = ctx.use(frozen.packed);
      CHECK(losses(std::move(frozen.params)) == expected);
    }
  }
}
