#include "gatefold/layer/latent_mixture.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/experts.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/hidden_dropout.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/summary.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/select_experts.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/plain.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Index dim = 9, narrow = 4;
const Mlp<Gelu> mlp{.model_dim = narrow, .hidden_dim = 5};

auto top_k(Index experts, Index k, bool bias = false) {
  return LatentMixture{Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = k}}, mlp}, dim, bias};
}
/// Computes x W + b with the parameters of a OneExpert<Linear>.
template <class P>
naive::Row linear(const P& p, const naive::Row& x) {
  return naive::affine(
      x, p.expert.weight.extent(2), [&](Index d, Index j) { return double(p.expert.weight(0, d, j)); },
      [&](Index j) { return p.expert.bias.extent(1) > 0 ? double(p.expert.bias(0, j)) : 0.0; });
}
/// Equation (1) as loops, for the TopK gate with renormalised weights.
template <class P, class X>
std::vector<double> in_loops(const P& p, const X& x, Index k) {
  std::vector<double> all;
  for (Index n = 0; n < x.extent(0); ++n) {
    const naive::Row item = naive::row(x, n), latent = linear(p.down, item);
    const auto v = naive::mixture(p.mixture, item, k, true, [&](Index e, const naive::Row&) {
      return naive::mlp(p.mixture.expert, e, latent, naive::gelu);
    });
    const naive::Row u = linear(p.up, v);
    all.insert(all.end(), u.begin(), u.end());
  }
  return all;
}

}  // namespace

TEST_CASE("LatentMixture (1): equals loops over items and experts") {
  Cpu::Context ctx(2);
  for (const Index experts : {1, 2, 7, 40})
    for (const Index k : {Index(1), Index(2), experts})
      for (const bool bias : {false, true}) {
        if (k > experts) continue;
        CAPTURE(experts);
        CAPTURE(k);
        CAPTURE(bias);
        auto p = pass<double>(ctx, top_k(experts, k, bias), 11);
        p.forward();
        const auto expected = in_loops(p.params.branch, p.x, k);
        CHECK(difference(values(p.y), expected) <= 1e-13);
        fill(ctx, p.y, quiet_nan);
        p.infer();
        CHECK(difference(values(p.y), expected) <= 1e-13);
      }
}

TEST_CASE("LatentMixture: float agrees with loops in double") {
  Cpu::Context ctx(2);
  auto p = pass<float>(ctx, top_k(8, 2), 300);
  p.forward();
  CHECK(difference(values(p.y), in_loops(p.params.branch, p.x, 2)) <= 1e-5);  // sums of some ten floats
}

TEST_CASE("LatentMixture: passes conformance with losses, dropout, mixed experts") {
  const auto conforms = [](const auto& layer, const check::ConformanceOptions& options = {}) {
    const auto report = check::conformance<Cpu, double>(layer, options);
    CHECK_MESSAGE(report, report.str());
  };
  const SoftmaxTopK gate{.scores = {.experts = 4}, .selection = {.k = 2}};
  conforms(LatentMixture{Mixture{gate, GatedMlp<Silu>{.model_dim = 3, .hidden_dim = 5}}, 5, true},
           {.items_are_independent = true,
            .hooks = {{"",
                       {"Params", "Saved", "Extra", "ExtraGrad", "validate", "infer", "experts", "Saved.mixtures",
                        "Extra.without_auxiliary", "Extra.WithoutTrace", "Extra.with_trace", "ExtraGrad.set_trace"}}}});
  conforms(LatentMixture{
      Mixture{WithAuxiliary<SoftmaxTopK, Balance, ZLoss>{.scores = {.experts = 3},
                                                         .selection = {.k = 2},
                                                         .auxiliary = {Balance{.weight = 0.3}, ZLoss{.weight = 0.2}}},
              Linear{.model_dim = 2, .output_dim = 3}},
      4});
  conforms(LatentMixture{Mixture{SoftmaxDense{}, Experts{std::tuple{Linear{.model_dim = 2}, Mlp<Gelu>{2, 3}}}}, 4},
           {.items_are_independent = true});
  conforms(LatentMixture{Mixture{gate, HiddenDropout{0.4, Mlp<Gelu>{2, 6}}}, 4});
}

TEST_CASE("LatentMixture: gradients with a shared expert are correct") {
  Cpu::Context ctx(1);
  const LatentMixture latent{
      Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Linear{.model_dim = 2}}, 4};
  const Residual layer{update::Plain{}, WithShared{latent, Mlp<Gelu>{.model_dim = 4, .hidden_dim = 3}}};
  const auto report = check::gradients(ctx, layer);
  CHECK_MESSAGE(report, report.str());
  auto p = pass<double>(ctx, layer, 6);
  p.forward();
  Index experts = 0;
  for_each_mixture(p.saved, [&](const auto& m) { experts += m.plan.experts(); });
  CHECK(experts == 3);
}

TEST_CASE("LatentMixture: frozen parameters give the same bits") {
  Cpu::Context ctx(2);
  auto p = pass<float>(ctx, top_k(8, 2), 40);
  p.infer();
  const auto expected = values(p.y);
  fill(ctx, p.y, quiet_nan);
  const auto frozen = freeze(ctx, std::move(p.params));
  infer(p.layer, ctx, frozen, p.x, p.carry, p.y);
  CHECK(same_bits(values(p.y), expected));
}

TEST_CASE("LatentMixture: a step functor equals adding x after forward") {
  Cpu::Context ctx(2);
  const auto stepped = with_step_at_the_end<float>(ctx, top_k(5, 2), 30);
  CHECK(same_bits(stepped.forward, stepped.after));
  CHECK(same_bits(stepped.infer, stepped.after));
}

TEST_CASE("LatentMixture: padding gets no expert") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, top_k(4, 2), 6);
  const std::vector<double> valid{1, 0, 1, 1, 0, 1};
  p.extra.valid = valid;
  p.forward();
  for (Index n = 0; n < 6; ++n)
    for (Index j = 0; j < dim; ++j) CHECK((p.y(n, j) == 0) == (valid[static_cast<std::size_t>(n)] == 0));
}

TEST_CASE("LatentMixture: an empty batch gives no output and no gradient") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, top_k(5, 2), 0);
  p.forward();
  p.backward();
  for (const double g : values(p.grads)) CHECK(g == 0);
}

TEST_CASE("LatentMixture: a Trainer learns a product of two inputs") {
  Cpu::Context ctx(1);
  Trainer trainer{ctx,
                  LatentMixture{Mixture{SoftmaxTopK{.scores = {.experts = 6}, .selection = {.k = 2}},
                                        Mlp<Gelu>{.model_dim = 2, .hidden_dim = 16}},
                                4, true},
                  MeanSquaredError{}, optim::AdamW{.lr = 1e-2}, Seed{1}};
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 64, 4);
  Tensor<float, 2, Cpu> target(64, 4);
  for (Index n = 0; n < 64; ++n)
    for (Index d = 0; d < 4; ++d) target(n, d) = x(n, 0) * x(n, 1);
  const double before = trainer.step(x, target);
  double after = 0;
  for (int step = 0; step < 400; ++step) after = trainer.step(x, target);
  CHECK(before > 0.1);
  CHECK(after < 0.01);
}

TEST_CASE("LatentMixture: summary has tensor names and experts per item") {
  const auto of = summary(top_k(8, 2));
  std::string names;
  for (const auto& row : of.rows) names += row.name + ' ';
  CHECK(names ==
        "down.weight down.bias gate.scores.weight gate.scores.bias expert.up expert.up_bias expert.down "
        "expert.down_bias up.weight up.bias ");
  for (const auto& row : of.rows)
    if (row.name == "expert.up") CHECK(row.active * 8 == row.values * 2);
}

TEST_CASE("LatentMixture: select_experts keeps the chosen experts") {
  Cpu::Context ctx(1);
  auto all = pass<double>(ctx, top_k(3, 3), 5);
  auto two = pass<double>(ctx, top_k(2, 2), 5);
  two.params = select_experts(ctx, all.params, {2, 0});
  const auto& from = all.params.branch;
  const auto& to = two.params.branch;
  CHECK(values(to.down, to.up) == values(from.down, from.up));
  for (Index d = 0; d < dim; ++d) {
    CHECK(to.mixture.gate.scores.weight(d, 0) == from.mixture.gate.scores.weight(d, 2));
    CHECK(to.mixture.gate.scores.weight(d, 1) == from.mixture.gate.scores.weight(d, 0));
  }
  CHECK(to.mixture.expert.up(0, 1, 1) == from.mixture.expert.up(2, 1, 1));
}

TEST_CASE("LatentMixture: wrong options, parameters and saved values throw") {
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {.model_dim = narrow, .experts = 3}}, mlp};
  CHECK(message_of([&] {
          init_params<float, Cpu>(LatentMixture{mixture, 0}, ctx, Seed{1});
        }) == "LatentMixture: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] {
          init_params<float, Cpu>(LatentMixture{mixture, dim}, ctx, Seed{1});
        }) == "LinearScores: model_dim: expected 9 (the width of the items), got 4");
  auto two = pass<float>(ctx, top_k(2, 1), 4), three = pass<float>(ctx, top_k(3, 1), 4);
  CHECK(message_of([&] { three.layer.branch.infer(ctx, two.params.branch, three.x, three.y, {}); }) ==
        "LinearScores: params.weight: expected [9, 3], got [9, 2]");
  two.forward();
  three.forward();
  copy(ctx, std::as_const(two.x).view(), three.x.view());
  three.saved.branch = std::move(two.saved.branch);
  CHECK(message_of([&] { three.backward(); }) ==
        "LatentMixture.backward: saved.plan.experts(): expected 3 (the experts of this Mixture), got 2");
}
