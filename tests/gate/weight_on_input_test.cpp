#include "gatefold/gate/weight_on_input.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/summary.hpp"
#include "gatefold/metric/load.hpp"
#include "gatefold/train/select_experts.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

SoftmaxTopK softmax(Index experts) { return {.scores = {.experts = experts}, .selection = {.k = 2}}; }

/// Equation (1) of one item, with the softmax over the picked logits as weights.
template <class P>
std::vector<double> mixture(const P& p, const std::vector<double>& x, Index k) {
  const naive::Row z = naive::logits(p.gate.gate.scores, x);
  const std::vector<Index> picks = naive::best(z, k);
  naive::Row of_picks, u(x.size(), 0);
  for (const Index e : picks) of_picks.push_back(z[std::size_t(e)]);
  const naive::Row w = naive::softmax(of_picks);
  for (std::size_t j = 0; j < picks.size(); ++j) {
    naive::Row scaled = x;
    for (double& v : scaled) v *= w[j];
    const naive::Row z_of_pick = naive::mlp(p.expert, picks[j], scaled, naive::gelu);
    for (std::size_t d = 0; d < u.size(); ++d) u[d] += z_of_pick[d];
  }
  return u;
}

}  // namespace

TEST_CASE("WeightOnInput (1): equals loops over items and picks") {
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads);
    auto p = pass<double>(ctx, Mixture{WeightOnInput{softmax(5)}, Mlp<Gelu>{.model_dim = 6, .hidden_dim = 9}}, 40);
    auto bias = p.params.branch.expert.up_bias.view();
    fill_uniform(ctx, Seed{9}, -1, 1, bias);  // so that expert(0) is not 0
    p.forward();
    for (Index n = 0; n < 40; ++n)
      CHECK(difference(naive::row(p.y, n), mixture(p.params.branch, naive::row(p.x, n), 2)) <= 1e-13);
    const auto forward = values(p.y);
    p.infer();
    CHECK(same_bits(values(p.y), forward));
  }
}

TEST_CASE("WeightOnInput: gradients and conformance with several gates") {
  const auto check = [](const auto& gate) {
    const auto report = check::conformance<Cpu>(Mixture{WeightOnInput{gate}, GatedMlp<Silu>{3, 4}}, {});
    CHECK_MESSAGE(report, report.str());
  };
  check(softmax(4));
  check(SigmoidTopK{.scores = {.experts = 4}, .selection = {.k = 2, .renormalise = false}});
  check(published::llama4({.experts = 4}).gate);
  check(WithAuxiliary<SoftmaxTopK, Balance>{.scores = {.experts = 4}, .auxiliary = {Balance{.weight = 0.3}}});
  check(ComposedGate<LinearScores, Independent, Capacity<TopK>>{.scores = {.experts = 4}});
}

TEST_CASE("WeightOnInput: linear experts give the values of a plain Mixture") {
  Cpu::Context ctx(1);
  // For a linear expert without bias expert(w x) = w expert(x), so both orders give the same values.
  const Linear expert{.model_dim = 5, .bias = false};
  auto on_input = pass<double>(ctx, Mixture{WeightOnInput{softmax(3)}, expert}, 12);
  auto on_output = pass<double>(ctx, Mixture{softmax(3), expert}, 12);
  on_input.forward(), on_output.forward();
  on_input.backward(), on_output.backward();
  CHECK(difference(values(on_input.y), values(on_output.y)) <= 1e-14);
  CHECK(difference(values(on_input.dx), values(on_output.dx)) <= 1e-13);
  CHECK(difference(values(on_input.grads), values(on_output.grads)) <= 1e-13);
}

TEST_CASE("WeightOnInput: frozen weights give the same bits") {
  Cpu::Context ctx(2);
  const Mixture layer{published::llama4({.experts = 4, .k = 2}), GatedMlp<Silu>{16, 24}};
  auto p = pass<float>(ctx, layer, 20);
  p.forward();
  Tensor<float, 2, Cpu> u(20, 16);
  const auto frozen = freeze(ctx, std::move(p.params.branch));
  infer(layer, ctx, frozen, p.x, u);
  CHECK(same_bits(values(u), values(p.y)));
}

TEST_CASE("WeightOnInput: names, options and picks are those inside") {
  Cpu::Context ctx(1);
  const Mixture layer{WeightOnInput{softmax(0)}, Linear{.model_dim = 4}};
  Mixture filled = layer;
  filled.gate = filled.gate.with_experts(3);
  auto params = init_params<double, Cpu>(filled, ctx, Seed{1});
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, params);
  CHECK(names.front() == "gate.scores.weight");
  CHECK(filled.experts() == 3);
  CHECK(active_experts(filled.gate, 3) == 2);
  auto p = pass<double>(ctx, filled, 8);
  p.forward();
  auto plain = pass<double>(ctx, Mixture{softmax(3), Linear{.model_dim = 4}}, 8);
  plain.forward();
  CHECK(metric::load(ctx, p.saved.branch.plan).counts == metric::load(ctx, plain.saved.branch.plan).counts);
  CHECK(message_of([&] {
          (void)init_params<double, Cpu>(
              Mixture{WeightOnInput{SoftmaxTopK{.scores = {.experts = 2}, .selection = {.k = 3}}},
                      Linear{.model_dim = 4}},
              ctx, Seed{1});
        }) == "TopK: k: expected 1 <= k <= experts = 2, got 3");
}

TEST_CASE("WeightOnInput: select_experts keeps the output of kept experts") {
  Cpu::Context ctx(1);
  const auto of = [](Index experts) {
    return Mixture{published::llama4({.experts = experts}), Linear{.model_dim = 4}};
  };
  auto p = pass<double>(ctx, of(3), 10);
  p.forward();
  auto q = pass<double>(ctx, of(4), 10);
  q.params.branch = select_experts(ctx, p.params.branch, {2, 0, 1, 2});
  copy(ctx, p.x.view(), q.x.view());
  q.forward();
  CHECK(same_bits(values(q.y), values(p.y)));
}

TEST_CASE("WeightOnInput: NaN in an item does not reach others") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Mixture{published::llama4({.experts = 3, .k = 2}), GatedMlp<Silu>{4, 5}}, 6);
  p.forward();
  const auto clean = p.y.view();
  std::vector<std::vector<double>> before;
  for (Index n = 0; n < 6; ++n) before.push_back(naive::row(clean, n));
  p.x(2, 1) = quiet_nan;
  p.forward();
  for (Index n = 0; n < 6; ++n) {
    if (n == 2)
      CHECK(std::isnan(p.y(n, 0)));
    else
      CHECK(same_bits(naive::row(p.y, n), before[std::size_t(n)]));
  }
}
