#include "gatefold/train/upcycle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/tensor/find.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 6, hidden = 7, items = 9;

const Mlp<Gelu> mlp{.model_dim = dim, .hidden_dim = hidden};

auto around(const auto& branch, Index depth = 2) {
  return Stack{Residual{update::HeavyBall{.mu = 0.5}, PreNorm{LayerNorm{}, branch}}, depth};
}
auto dense(Index depth = 2) { return around(OneExpert{mlp}, depth); }
auto gate(Index experts) { return SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}}; }
auto sparse(Index experts) { return around(Mixture{gate(experts), mlp}); }

template <class T>
auto trained(Cpu::Context& ctx) {
  Trainer run{ctx, dense(), MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{1}, Element<T>{}};
  for (int t = 0; t < 3; ++t) {
    const auto x = uniform_tensor<T>(ctx, Seed{std::uint64_t(10 + t)}, 1, items, dim);
    run.step(x, x);
  }
  return run;
}
template <class T>
std::vector<double> outputs(auto& run) {
  const auto x = uniform_tensor<T>(run.context(), Seed{99}, 1, items, dim);
  Tensor<T, 2, Cpu> y(items, dim);
  run.infer(x, y);
  return values(y);
}
template <class F>
std::string what(const F& f) {
  try {
    f();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "nothing was thrown";
}
const std::string name = "layers.1.branch.branch.";

}  // namespace

TEST_CASE("upcycle: every expert is a copy; the gate is new") {
  Cpu::Context ctx(1);
  auto run = trained<float>(ctx);
  const auto params = upcycle(ctx, sparse(4), run.params, Seed{5});
  const auto fresh = init_params<float, Cpu>(sparse(4), ctx, Seed{5});
  expect_like("test", "params", fresh, params);
  for (const std::string tensor : {"up", "up_bias", "down", "down_bias"}) {
    const auto from = find(run.params, name + tensor);
    const auto to = find(params, name + "expert." + tensor);
    REQUIRE(to.size() == 4 * from.size());
    for (Index i = 0; i < to.size(); ++i) REQUIRE(to.data()[i] == from.data()[i % from.size()]);
  }
  CHECK(same_bits(values(params.layers[1].branch.branch.gate), values(fresh.layers[1].branch.branch.gate)));
  CHECK(same_bits(values(params.layers[1].branch.norm), values(run.params.layers[1].branch.norm)));
}

TEST_CASE("upcycle: a mixture of copies equals the dense branch") {
  Cpu::Context ctx(1);
  auto run = trained<double>(ctx);
  for (const Index experts : {1, 3, 8}) {
    Trainer mixtures{
        ctx,
        around(Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = experts == 1 ? 1 : 2}}, mlp}),
        MeanSquaredError{},
        optim::AdamW{.lr = 0.01},
        Seed{2},
        Element<double>{}};
    upcycle(run, mixtures);
    CHECK(difference(outputs<double>(mixtures), outputs<double>(run)) < 1e-13);
  }
}

TEST_CASE("upcycle: moments of experts are copies, moments of gates 0") {
  Cpu::Context ctx(1);
  auto run = trained<float>(ctx);
  Trainer mixtures{ctx, sparse(3), MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{2}};
  const auto gate_before = values(mixtures.params.layers[0].branch.branch.gate);
  upcycle(run, mixtures);
  CHECK(mixtures.state.step == 3);
  CHECK(same_bits(values(mixtures.params.layers[0].branch.branch.gate), gate_before));
  for (const std::string moment : {"m.", "v."}) {
    const auto from = find(run.state, moment + name + "up"), to = find(mixtures.state, moment + name + "expert.up");
    for (Index i = 0; i < to.size(); ++i) REQUIRE(to.data()[i] == from.data()[i % from.size()]);
    const auto of_gate = find(mixtures.state, moment + name + "gate.scores.weight");
    for (Index i = 0; i < of_gate.size(); ++i) REQUIRE(of_gate.data()[i] == 0);
  }
  const auto x = uniform_tensor<float>(ctx, Seed{20}, 1, items, dim);
  CHECK(mixtures.step(x, x) == doctest::Approx(run.step(x, x)).epsilon(1e-6));
}

TEST_CASE("upcycle: noise is relative, seeded, and different for each expert") {
  Cpu::Context ctx(1);
  auto run = trained<double>(ctx);
  const auto noisy = upcycle(ctx, sparse(50), run.params, Seed{5}, {.noise = 0.1});
  const auto again = upcycle(ctx, sparse(50), run.params, Seed{5}, {.noise = 0.1});
  const auto other = upcycle(ctx, sparse(50), run.params, Seed{6}, {.noise = 0.1});
  CHECK(same_bits(values(noisy), values(again)));
  const auto up = find<3>(noisy, name + "expert.up");
  const auto from = find<3>(run.params, name + "up");
  CHECK(up(0, 1, 2) != up(1, 1, 2));
  CHECK(up(0, 1, 2) != find<3>(other, name + "expert.up")(0, 1, 2));
  double sum = 0, squares = 0;
  for (Index e = 0; e < 50; ++e)
    for (Index i = 0; i < dim; ++i)
      for (Index h = 0; h < hidden; ++h) {
        const double r = (up(e, i, h) / from(0, i, h) - 1) / 0.1;
        sum += r, squares += r * r;
      }
  const double count = 50 * dim * hidden;  // 2100: the mean is within 4 / √2100, the variance within 4 √(2 / 2100)
  CHECK(std::abs(sum / count) < 0.09);
  CHECK(std::abs(squares / count - 1) < 0.13);
  CHECK(same_bits(values(noisy.layers[0].branch.norm), values(run.params.layers[0].branch.norm)));
}

TEST_CASE("upcycle: works for gated experts, tables and learned losses") {
  Cpu::Context ctx(1);
  const GatedMlp<Silu> gated{.model_dim = dim, .hidden_dim = hidden};
  const auto with = [](const auto& branch) {
    return Chain{Embedding{.vocabulary = 5, .model_dim = dim}, Residual{update::HeavyBall{}, branch}};
  };
  const StreamedCrossEntropy loss{.vocabulary = 5, .model_dim = dim};
  Trainer run{ctx, with(OneExpert{gated}), loss, optim::Sgd{.lr = 0.1}, Seed{1}};
  Trainer mixtures{ctx, with(Mixture{gate(3), gated}), loss, optim::Sgd{.lr = 0.1}, Seed{2}};
  const std::vector<Index> ids{1, 2, 3, 0, 4}, next{2, 3, 0, 4, 1};
  run.step(ids, next);
  upcycle(run, mixtures);
  CHECK(mixtures.evaluate(ids, next) == doctest::Approx(run.evaluate(ids, next)).epsilon(1e-6));
}

TEST_CASE("upcycle: wrong models throw and change nothing") {
  Cpu::Context ctx(1);
  auto run = trained<float>(ctx);
  const auto said = [&](const auto& model, UpcycleOptions options = {}) {
    return what([&] { upcycle(ctx, model, run.params, Seed{5}, options); });
  };
  CHECK(said(around(Mixture{gate(3), Mlp<Gelu>{.model_dim = dim, .hidden_dim = 8}})) ==
        "upcycle: dense: layers.0.branch.branch.up: expected [1, 6, 8], got [1, 6, 7]");
  CHECK(said(around(Mixture{gate(3), GatedMlp<Silu>{.model_dim = dim, .hidden_dim = hidden}})) ==
        "upcycle: dense: expected a tensor layers.0.branch.branch.gate, got none");
  CHECK(said(around(Mixture{gate(3), mlp}, 3)) ==
        "upcycle: dense: expected a tensor layers.2.branch.norm.gain, got none");
  CHECK(
      said(around(Mixture{gate(3), mlp}, 1))
          .starts_with(
              "upcycle: dense: expected only tensors of the model that do not belong to a gate, got layers.1.branch."));
  CHECK(said(dense()) == "upcycle: model: expected a model with a Mixture, got no Mixture");
  CHECK(said(sparse(3), {.noise = -1}) == "upcycle: noise: expected at least 0, got -1");
  CHECK(said(sparse(3), {.noise = NAN}).starts_with("upcycle: noise: expected "));

  Trainer other{ctx, around(Mixture{gate(3), Mlp<Gelu>{.model_dim = dim, .hidden_dim = 8}}), MeanSquaredError{},
                optim::AdamW{.lr = 0.01}, Seed{2}};
  Trainer without_moments{ctx, sparse(3), MeanSquaredError{}, optim::Sgd{.lr = 0.01}, Seed{2}};
  const auto before = values(other.params, other.state), sgd = values(without_moments.params, without_moments.state);
  CHECK_THROWS_AS(upcycle(run, other), ArgumentError);
  CHECK_THROWS_AS(upcycle(run, without_moments), ArgumentError);
  CHECK(same_bits(values(other.params, other.state), before));
  CHECK(same_bits(values(without_moments.params, without_moments.state), sgd));
  CHECK(other.state.step == 0);
}
