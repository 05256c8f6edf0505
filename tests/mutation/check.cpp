// Gradient checks that together use every adjoint of the library. tests/mutation/run.sh runs them on seeded faults.
#include <doctest/doctest.h>

#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/signal_mixture.hpp>
#include <gatefold/papers/three_stage.hpp>
#include <utility>

#include "support/seam_policies.hpp"

using namespace gatefold;

namespace {

int failed = 0;

template <class L>
void expect_gradients(const char* name, const L& layer, const check::GradientOptions& options = {},
                      const Extra<AsLayer<L, double, Cpu>, double, Cpu>& extra = {}) {
  Cpu::Context ctx(1);
  const auto report = check::gradients(ctx, layer, options, extra);
  if (!report) std::printf("%s: %s\n", name, report.str().c_str());
  failed += !report;
}

/// Checks the adjoint of the trace's log-sum-exp λ, which a normalised posterior does not use. The loss is
/// f = ⟨u, c⟩ + ⟨λ, d⟩ with the output u and random c and d.
void expect_trace_gradient() {
  Cpu::Context ctx(1);
  const Attention attention{.model_dim = 4, .heads = 2};
  auto params = attention.init<double, Cpu>(ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 5, 4);
  const auto c = uniform_tensor<double>(ctx, Seed{3}, 1, 5, 4);
  auto d = uniform_tensor<double>(ctx, Seed{4}, 1, 5, 2);
  Tensor<double, 2, Cpu> u(5, 4), dx(5, 4);
  set_zero(ctx, dx);
  Saved<Attention, double, Cpu> saved;
  const auto loss = [&] {
    attention.forward(ctx, params, x, u, saved, {});
    double f = 0;
    for (Index i = 0; i < u.size(); ++i) f += u.data()[i] * c.data()[i];
    for (Index i = 0; i < d.size(); ++i) f += saved.log_sum_exp.data()[i] * d.data()[i];
    return f;
  };
  loss();
  AttentionTrace<double, Cpu> dtrace{};
  dtrace.log_sum_exp = d;
  attention.backward(ctx, params, x, saved, c, dx, grads, {}, dtrace);
  const auto report =
      check::compare_gradients({{"x", x.data(), std::as_const(dx).data(), x.size()},
                                {"query", params.query.data(), grads.query.data(), params.query.size()}},
                               loss, [] { return std::uint64_t(0); }, {});
  if (!report) std::printf("trace: %s\n", report.str().c_str());
  failed += !report;
}

/// Checks the data and the training of the theory papers: the clusters, the gradient of the experts' own loss, and the
/// parameters that each stage trains.
void expect_stages() {
  Cpu::Context ctx(1);
  const SignalMixture data{.clusters = 3, .model_dim = 6, .length = 4};
  const auto items = data.draw<double, Cpu>(ctx, data.signals<double, Cpu>(ctx, Seed{1}), Seed{2}, 12);
  bool right = true;
  for (Index n = 0; n < 12; ++n) right = right && items.distractor(n) < 3 && items.distractor(n) != items.cluster(n);

  const Mixture mixture{SoftmaxNoisyTop1{.scores = {.experts = 2, .length = 4, .bias = false}},
                        AttentionExpert{.model_dim = 6, .length = 4}};
  ThreeStage run{ctx, mixture, Logistic{}, Stages<>{.first = 1, .second = 2}, Seed{3}, Element<double>{}};
  auto& [key_query, value] = run.trainer.params.expert;
  const auto& [dkey_query, dvalue] = run.trainer.grads.expert;
  run.trainer.gradients(items.x, items.target);
  const auto report = check::compare_gradients(
      {{"value", value.data(), dvalue.data(), value.size()},
       {"key_query", key_query.data(), dkey_query.data(), key_query.size()}},
      [&] { return run.trainer.evaluate(items.x, items.target).experts; }, [] { return std::uint64_t(0); }, {});
  if (!report) std::printf("experts' loss: %s\n", report.str().c_str());
  for (int epoch = 1; epoch <= 3; ++epoch) {
    const double value_before = value.data()[0], key_query_before = key_query.data()[0];
    run.begin_epoch();
    run.step(items.x, items.target);
    right = right && (value.data()[0] != value_before) == (epoch != 2);
    right = right && (key_query.data()[0] != key_query_before) == (epoch == 2);
  }
  if (!right) std::puts("stages: wrong");
  failed += !report || !right;
}

}  // namespace

TEST_CASE("every adjoint: agrees with finite differences") {
  expect_trace_gradient();
  expect_stages();
  const WithAuxiliary<SoftmaxTopK, Balance, ZLoss> gate{
      .scores = {.experts = 4}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 0.5}, ZLoss{.weight = 0.3}}};
  const SoftmaxTopK plain{.scores = {.experts = 4}, .selection = {.k = 2}};
  expect_gradients("stack",
                   Stack{Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, Mixture{plain, Mlp<Gelu>{5, 6}}}}, 3});
  expect_gradients("auxiliary", Residual{seams::Twice{}, Mixture{gate, GatedMlp<Silu>{5, 4}}});
  expect_gradients("chain",
                   Chain{Linear{4, 6}, PerToken{2, Residual{update::Plain{}, Mixture{plain, Mlp<GeluTanh>{3, 4}}}},
                         Mlp<Cubic>{6, 3}, Linear{6, 2}});
  expect_gradients("kinds", Mixture{plain, Experts{std::tuple{Mlp<Gelu>{5, 6}, GatedMlp<Silu>{5, 4}}, {1, 3}}});
  expect_gradients("linear", Mixture{plain, Linear{5, 3}});
  expect_gradients("one expert", Residual{update::HeavyBall{}, OneExpert{Mlp<Gelu>{4, 3}}});
  expect_gradients("dense", Mixture{SoftmaxDense{.scores = {.experts = 3, .length = 2}}, Mlp<Relu>{4, 3}});
  expect_gradients("rank", Mixture{ComposedGate<LinearScores, Independent, seams::NoisyPick>{
                                       .scores = {.experts = 4}, .selection = {.model_dim = 5}},
                                   Linear{5}});
  expect_gradients(
      "blocks",
      Stack{Block{Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = 6, .heads = 2}}},
                  Residual{update::HeavyBall{}, Mixture{ComposedGate<LinearScores, seams::Posterior, TopK>{
                                                            .scores = {.experts = 4}, .selection = {.k = 2}},
                                                        Mlp<Gelu>{6, 5}}}},
            2},
      {.items = 8}, {.attention = {.length = 4}, .layer = {}});
  const Linear branch{3};
  using update::StepSize;
  expect_gradients(
      "rules", Chain{Residual{update::Adam{.kappa = 0.2, .epsilon = 0.3}, OneExpert{branch}},
                     Residual{update::RmsProp{.epsilon = 0.2}, OneExpert{branch}},
                     Residual{update::LearnedHeavyBall{.gamma = 0.6, .step = StepSize::per_item}, OneExpert{branch}},
                     Residual{update::ZeroOrderHold{.mu = 0.6}, OneExpert{branch}},
                     Residual{update::First{update::Nesterov{}, update::HeavyBall{}}, OneExpert{branch}},
                     Residual{update::First{update::HeavyBall{}, update::Nesterov{}}, OneExpert{branch}}});
  expect_gradients("sharpness aware", Residual{update::SharpnessAware{.rho = 0.3}, OneExpert{Mlp<Gelu>{3, 2}}});
  expect_gradients("patches",
                   PatchMlp<Cubic>{.model_dim = 2, .patches = 2, .filters = 2, .bias = true, .equal_patches = false});
  expect_gradients("attention expert", AttentionExpert{.model_dim = 2, .length = 3, .outputs = 2});
  expect_gradients("factors of attention", AttentionExpert{.model_dim = 2, .length = 3, .outputs = 2, .key_dim = 3});
  expect_gradients("multi-head expert", MultiHeadExpert{.model_dim = 4, .heads = 2, .length = 3});
  expect_gradients(
      "cosine",
      Mixture{ComposedGate<CosineScores, TokenSimilarity, TopK>{.scores = {.experts = 3, .dim = 4, .temperature = 0.5},
                                                                .mixing = {.tau = 1.3},
                                                                .selection = {.k = 2, .renormalise = false}},
              Linear{4}},
      {.items = 8}, {.mixing = {.length = 4}});
  expect_gradients(
      "noisy", Mixture{ComposedGate<LinearScores, TokenSimilarity, NoisyTopK<>>{.scores = {.experts = 3}}, Linear{4}},
      {}, {.mixing = {}, .selection = Noise{Random{Seed{5}, 2}}});
  expect_gradients("soft", Mixture{SoftMoe{.count = 3, .slots = 2}, Linear{4}}, {.items = 8}, {.length = 4});
  CHECK(failed == 0);
}
