// Optimizers on the device, and models that learn there as on the host.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Two experts. In one tensor, an expert has more weights than NormalizedGd updates in one row of its loop. The biases
/// are empty.
constexpr Mlp<Gelu> expert{.model_dim = 37, .hidden_dim = 120, .bias = false};
constexpr Index experts = 2;

/// The parameters of experts under the name that a mixture gives them.
template <class T, class B>
struct OfMixture {
  Params<Mlp<Gelu>, T, B> expert;
  GATEFOLD_PACK(expert)
};
/// Compares parameters and state after each of three steps with random gradients. In the second step the first expert
/// has no gradient.
/// @param of_state  names the tensors of the state that are 0
template <class T, class OptimizerT>
void check(const OptimizerT& optimizer, const Expected& of_state = {}) {
  using P = OfMixture<T, Naive>;
  using CudaP = OfMixture<T, Cuda>;
  Backends on;
  P params{expert.init<T, Naive>(on.naive, experts, Seed{1})};
  CudaP cuda_params = on_cuda<CudaP>(on, params);
  auto state = optimizer.begin(on.naive, params);
  auto cuda_state = optimizer.begin(on.cuda, cuda_params);
  for (const Index step : {1, 2, 3}) {
    CAPTURE(step);
    P grads = zeros_like(on.naive, params);
    for_each_tensor([&](const Name&, auto& g) { fill_uniform(on.naive, Seed{2}.fork(step), -1, 1, g); }, grads);
    if (step == 2)
      for_each_tensor([&](const Name&, auto& g) { std::fill_n(g.data(), g.size() / experts, T(0)); }, grads);
    CudaP cuda_grads = on_cuda<CudaP>(on, grads);
    optimizer.step(on.naive, params, grads, state);
    optimizer.step(on.cuda, cuda_params, cuda_grads, cuda_state);
    expect_same(on, "params", params, cuda_params, {});
    expect_same(on, "state", state, cuda_state, of_state);
    CHECK(state.step == cuda_state.step);
  }
}

template <class T>
void check_optimizers() {
  const optim::AdamW adamw{.lr = 0.01, .decay = 0.1};
  const Expected no_moments{.zeros = {"state.m"}};  // of Sgd without momentum
  SUBCASE("Sgd") { check<T>(optim::Sgd{.lr = 0.1, .momentum = 0.9, .decay = 0.01}); }
  SUBCASE("AdamW") { check<T>(adamw); }
  SUBCASE("NormalizedGd, per expert") { check<T>(optim::NormalizedGd{.lr = 0.1}); }
  SUBCASE("NormalizedGd, all experts together") { check<T>(optim::NormalizedGd{.lr = 0.1, .per_expert = false}); }
  SUBCASE("Clipped, large gradients") { check<T>(optim::Clipped{adamw, 0.1}); }
  SUBCASE("Clipped, small gradients") { check<T>(optim::Clipped{optim::Sgd{}, 1e6}, no_moments); }
  SUBCASE("Averaged") {
    check<T>(optim::Clipped{optim::Averaged{adamw, 0.9}, 0.1});
    Backends on;
    Trainer naive{on.naive, OneExpert{expert}, MeanSquaredError{}, optim::Averaged{adamw, 0.5}, Seed{1}, Element<T>{}};
    Trainer cuda{on.cuda, OneExpert{expert}, MeanSquaredError{}, optim::Averaged{adamw, 0.5}, Seed{1}, Element<T>{}};
    const auto x = uniform_tensor<T>(on.naive, Seed{2}, 1, 6, 37);
    const auto cuda_x = on_cuda<Tensor<T, 2, Cuda>>(on, x);
    for (int step = 0; step < 2; ++step) {
      naive.step(x, x);
      cuda.step(cuda_x, cuda_x);
    }
    swap_averages(naive);
    swap_averages(cuda);
    expect_same(on, "averages", naive.params, cuda.params, {});
    expect_same(on, "params", naive.state.average, cuda.state.average, {});
  }
  SUBCASE("ExpertRates") {
    check<T>(optim::ExpertRates{adamw, [](const Name&, Index e) { return e == 0 ? 0.5 : 1.0; }});
    check<T>(optim::ExpertRates{optim::Sgd{.lr = 0.1}, [](const Name&, Index e) { return e == 0 ? 1.0 : 3.0; }},
             no_moments);
  }
  SUBCASE("InGroups") {
    const auto is_up = [](const Name& name) { return name.part == "up"; };
    check<T>(InGroups{is_up, adamw, optim::Sgd{.lr = 0.1, .momentum = 0.9}});
  }
  SUBCASE("Scheduled, warm-up only") { check<T>(optim::Scheduled{adamw, optim::Warmup{.warmup = 2}}); }
  SUBCASE("Scheduled") { check<T>(optim::Scheduled{adamw, optim::WarmupCosine{.warmup = 2, .total = 9}}); }
}

}  // namespace

TEST_CASE("cuda: optimizers match the naive backend, double") { check_optimizers<double>(); }
#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda: optimizers match the naive backend, float") { check_optimizers<float>(); }
#endif

namespace {

constexpr Index dim = 12, items = 24, classes = 5;

/// The losses before each of five steps on one batch and after the last, and the auxiliary losses.
struct Curve {
  std::vector<double> losses, auxiliary;
};
template <class TrainerT, class X, class Target, class E>
Curve learn(TrainerT& trainer, const X& x, const Target& target, const E& extra) {
  Curve curve;
  for (int step = 0; step < 5; ++step) {
    curve.losses.push_back(trainer.step(x, target, extra));
    curve.auxiliary.push_back(trainer.auxiliary());
  }
  curve.losses.push_back(trainer.evaluate(x, target, extra));
  return curve;
}

/// Rounding errors grow with every step, so curves may differ more than the results of one step.
constexpr double curve_tolerance = 1e-10;

void expect_same_curve(const std::vector<double>& expected, const std::vector<double>& actual) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t step = 0; step < expected.size(); ++step) {
    CAPTURE(step);
    CHECK(std::abs(actual[step] - expected[step]) <= curve_tolerance * std::abs(expected[step]));
  }
}

/// Trains a model and a classifier on top of it from the same parameters on both backends.
template <class L>
void check_training(const L& model, Index length = 0, Cuda::Options options = {}) {
  Backends on{{}, Cuda::Context(options)};
  const Chain classifier{model, Linear{.model_dim = dim, .output_dim = classes}};
  const optim::AdamW optimizer{.lr = 0.02, .decay = 0.01};
  Trainer naive{on.naive, classifier, CrossEntropy{}, optimizer, Seed{1}, Element<double>{}};
  Trainer cuda{on.cuda, classifier, CrossEntropy{}, optimizer, Seed{1}, Element<double>{}};
  transfer(on.cuda, naive.params, cuda.params);

  const auto x = random_tensor<double>(on, Seed{2}, 1, items, dim);
  Tensor<Index, 1, Naive> labels(items);
  for (Index n = 0; n < items; ++n) labels(n) = n * n % classes;
  const auto cuda_x = on_cuda<Tensor<double, 2, Cuda>>(on, x);
  const auto cuda_labels = on_cuda<Tensor<Index, 1, Cuda>>(on, labels);
  const Case c{.items = items, .length = length};
  const auto in = inputs_of<double>(on, c, dim);
  const auto cuda_in = on_cuda<Inputs<double, Cuda>>(on, in);

  using NaiveExtra = typename decltype(naive)::Extra;
  using CudaExtra = typename decltype(cuda)::Extra;
  const Curve expected = learn(naive, x, labels, extra_of<NaiveExtra>(c, in));
  const Curve actual = learn(cuda, cuda_x, cuda_labels, extra_of<CudaExtra>(c, cuda_in));
  CHECK(expected.losses.back() < 0.95 * expected.losses.front());  // the model learns
  expect_same_curve(expected.losses, actual.losses);
  expect_same_curve(expected.auxiliary, actual.auxiliary);
  expect_same(on, "params", naive.params, cuda.params, {.scale = curve_tolerance / relative_tolerance<double>});

  // A batch with NaN makes no step, so every parameter keeps its value.
  auto bad_x = zeros_like(on.naive, x);
  copy_pack(on.naive, x, bad_x);
  bad_x(items - 1, dim - 1) = std::nan("");
  const auto cuda_bad_x = on_cuda<Tensor<double, 2, Cuda>>(on, bad_x);
  auto before = zeros_like(on.cuda, cuda.params);
  copy_pack(on.cuda, cuda.params, before);
  const auto extra = extra_of<CudaExtra>(c, cuda_in);
  CHECK_THROWS_AS(cuda.step(cuda_bad_x, cuda_labels, extra), NotFiniteError);
  cuda.not_finite = NotFinite::skips;
  cuda.step(cuda_bad_x, cuda_labels, extra);
  CHECK(cuda.skipped == 1);
  CHECK(cuda.state.step == 5);
  transfer(on.cuda, before, naive.params);
  expect_same(on, "params", naive.params, cuda.params, {.scale = 0});
}

}  // namespace

TEST_CASE("cuda: a stack of mixtures trains like the naive backend") {
  const WithAuxiliary<SoftmaxTopK, Balance> gate{
      .scores = {.experts = 5}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 0.1}}};
  const Stack model{Residual{update::HeavyBall{}, Mixture{gate, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 8}}}, 2};
  SUBCASE("experts with own kernels") { check_training(model); }
  SUBCASE("experts with cuBLAS") { check_training(model, 0, {.blas_experts = true}); }
}

TEST_CASE("cuda: SigmoidTopK: the bias adapts like the naive backend") {
  check_training(
      Mixture{SigmoidTopK{.scores = {.experts = 5}, .selection = {.k = 2, .speed = 0.1}}, Linear{.model_dim = dim}});
}

TEST_CASE("cuda: ReMoe: the coefficient adapts like the naive backend") {
  check_training(Mixture{ReMoe{.scores = {.experts = 5}, .selection = {.coefficient = 0.1}}, Linear{.model_dim = dim}});
}

TEST_CASE("cuda: attention with a mixture trains like the naive backend") {
  const AttentionAware<SoftmaxTopK> gate{.scores = {.experts = 5}, .selection = {.k = 2}};
  check_training(Block{Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = dim, .heads = 2}}},
                       Residual{update::HeavyBall{}, Mixture{gate, Linear{.model_dim = dim}}}},
                 8);
}

TEST_CASE("cuda: partial batches with ignored targets train like naive backend") {
  Backends on;
  const Stack model{Recompute{Residual{update::HeavyBall{}, OneExpert{Linear{.model_dim = dim}}}}, 2};
  const CrossEntropy loss{.ignore = -1};
  const optim::Clipped optimizer{optim::AdamW{.lr = 0.02}, 0.5};
  Trainer naive{on.naive, model, loss, optimizer, Seed{1}, Element<double>{}};
  Trainer cuda{on.cuda, model, loss, optimizer, Seed{1}, Element<double>{}};
  transfer(on.cuda, naive.params, cuda.params);
  for (std::uint64_t step = 0; step < 3; ++step)
    for (const Index size : {7, 4, 9}) {
      const auto x = random_tensor<double>(on, Seed{step}.fork(static_cast<std::uint64_t>(size)), 1, size, dim);
      Tensor<Index, 1, Naive> labels(size);
      for (Index n = 0; n < size; ++n) labels(n) = n % 3 == 1 ? -1 : n * n % dim;
      const auto cuda_x = on_cuda<Tensor<double, 2, Cuda>>(on, x);
      const auto cuda_labels = on_cuda<Tensor<Index, 1, Cuda>>(on, labels);
      const double expected = size < 9 ? naive.accumulate(x, labels) : naive.step(x, labels);
      const double actual = size < 9 ? cuda.accumulate(cuda_x, cuda_labels) : cuda.step(cuda_x, cuda_labels);
      CHECK(std::abs(actual - expected) <= curve_tolerance * std::abs(expected));
    }
  expect_same(on, "params", naive.params, cuda.params, {.scale = curve_tolerance / relative_tolerance<double>});
}
