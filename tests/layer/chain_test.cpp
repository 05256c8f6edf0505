#include "gatefold/layer/chain.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/per_token.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto heavy(double mu, double gamma) {
  return Residual{update::HeavyBall{.mu = mu, .gamma = gamma}, OneExpert{Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}}};
}
auto plain() { return Residual{update::Plain{}, OneExpert{Linear{.model_dim = 4}}}; }
auto mixed() {
  return Residual{update::HeavyBall{.mu = 0.5, .gamma = 1.5},
                  Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                          Mlp<Silu>{.model_dim = 4, .hidden_dim = 3}}};
}
template <class P>
std::vector<double> linear(const P& p, const std::vector<double>& x) {
  return naive::affine(
      x, p.weight.extent(2), [&](Index d, Index j) { return p.weight(0, d, j); },
      [&](Index j) { return p.bias(0, j); });
}

}  // namespace

TEST_CASE("Chain (1): heavy-ball layers share one momentum across another layer") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, Chain{heavy(0.6, 1.25), plain(), heavy(0.3, 2)}, 7);
  fill_uniform(ctx, Seed{9}, -1, 1, std::get<1>(p.carry.states).p);
  REQUIRE(std::tuple_size_v<decltype(p.carry.states)> == 2);  // an empty state and one momentum
  const auto start = values(p.carry);
  p.forward();
  const auto& [first, middle, last] = p.params.layers;
  std::vector<double> y, momentum;
  for (Index n = 0; n < 7; ++n) {
    auto x = naive::row(p.x, n);
    std::vector<double> m(start.begin() + n * 4, start.begin() + n * 4 + 4);
    auto step = [&](const auto& params, double mu, double gamma) {
      const auto u = naive::mlp(params.branch.expert, 0, x, naive::gelu);
      for (std::size_t d = 0; d < 4; ++d) {
        m[d] = mu * m[d] + u[d];
        x[d] += gamma * m[d];
      }
    };
    step(first, 0.6, 1.25);
    const auto u = linear(middle.branch.expert, x);
    for (std::size_t d = 0; d < 4; ++d) x[d] += u[d];
    step(last, 0.3, 2);
    y.insert(y.end(), x.begin(), x.end());
    momentum.insert(momentum.end(), m.begin(), m.end());
  }
  CHECK(difference(values(p.y), y) <= 1e-13);
  CHECK(difference(values(p.carry), momentum) <= 1e-13);
}

TEST_CASE("Chain (1): an activation keeps the width") {
  Cpu::Context ctx(2);
  const Chain network{Linear{4, 7}, Gelu{}, Linear{7, 3}, Relu{}};
  CHECK(network.out_dim() == 3);
  auto p = pass<double>(ctx, network, 5);
  p.forward();
  std::vector<double> y;
  for (Index n = 0; n < 5; ++n) {
    auto h = linear(std::get<0>(p.params.layers).branch.expert, naive::row(p.x, n));
    for (double& v : h) v = naive::gelu(v);
    auto z = linear(std::get<2>(p.params.layers).branch.expert, h);
    for (double& v : z) v = v > 0 ? v : 0;
    y.insert(y.end(), z.begin(), z.end());
  }
  CHECK(difference(values(p.y), y) <= 1e-14);
  const auto report = check::conformance<Cpu, double>(network, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Chain: layer numbers count activations; a first activation throws") {
  Cpu::Context ctx(1);
  const auto params = init_params<double, Cpu>(Chain{Linear{2, 3, false}, Silu{}, Linear{3, 1, false}}, ctx, Seed{1});
  std::string names;
  for_each_tensor([&](const Name& name, const auto& t) { names += t.size() ? name.str() + ' ' : ""; }, params);
  CHECK(names == "layers.0.weight layers.2.weight ");
  CHECK(message_of([&] {
          (void)Chain{Silu{}, Linear{3, 1}}.init<double, Cpu>(ctx, Seed{1});
        }) == "Chain: layers.1.in_dim: expected 0 (the out_dim of the layer before), got 3");
}

TEST_CASE("Chain (1): layers of different kinds and widths equal loops") {
  Cpu::Context ctx(2);
  auto p = pass<double>(
      ctx, Chain{Linear{.model_dim = 3, .output_dim = 4}, plain(), Linear{.model_dim = 4, .output_dim = 2}}, 7);
  CHECK(p.layer.in_dim() == 3);
  CHECK(p.layer.out_dim() == 2);
  p.forward();
  const auto& [in, middle, out] = p.params.layers;
  std::vector<double> y;
  for (Index n = 0; n < 7; ++n) {
    auto h = linear(in.branch.expert, naive::row(p.x, n));
    const auto u = linear(middle.branch.expert, h);
    for (std::size_t d = 0; d < 4; ++d) h[d] += u[d];
    h = linear(out.branch.expert, h);
    y.insert(y.end(), h.begin(), h.end());
  }
  CHECK(difference(values(p.y), y) <= 1e-13);
}

TEST_CASE("Chain: two equal layers equal a stack of two") {
  Cpu::Context ctx(1);
  auto chain = pass<float>(ctx, Chain{mixed(), mixed()}, 9);
  auto stack = pass<float>(ctx, Stack{mixed(), 2}, 9);
  copy_pack(ctx, stack.params.layers[0], std::get<0>(chain.params.layers));
  copy_pack(ctx, stack.params.layers[1], std::get<1>(chain.params.layers));
  chain.forward();
  stack.forward();
  chain.backward();
  stack.backward();
  CHECK(same_bits(chain.outcome(), stack.outcome()));
}

TEST_CASE("Chain: a stack and a layer share their momentum") {
  Cpu::Context ctx(1);
  auto shared = pass<float>(ctx, Chain{Stack{mixed(), 2}, heavy(0.5, 1)}, 3);
  CHECK(std::tuple_size_v<decltype(shared.carry.states)> == 2);
  const auto tokens = Residual{update::HeavyBall{}, OneExpert{Linear{.model_dim = 2}}};
  auto apart = pass<float>(ctx, Chain{PerToken{2, tokens}, heavy(0.5, 1)}, 3);
  CHECK(std::tuple_size_v<decltype(apart.carry.states)> == 3);
  apart.forward();
  std::vector<Index> rows;
  for_each_tensor([&](const Name&, const auto& t) { rows.push_back(t.extent(0)); }, apart.carry);
  CHECK(rows == std::vector<Index>{6, 3});
}

TEST_CASE("joined_chain: equals one chain of all layers") {
  Cpu::Context ctx(1);
  const Chain first{heavy(0.5, 1), Linear{.model_dim = 4}}, second{heavy(0.5, 1), Linear{.model_dim = 4}};
  auto one = pass<float>(ctx, joined_chain(first, second), 3);
  auto written =
      pass<float>(ctx, Chain{heavy(0.5, 1), Linear{.model_dim = 4}, heavy(0.5, 1), Linear{.model_dim = 4}}, 3);
  one.forward();
  written.forward();
  CHECK(same_bits(one.outcome(), written.outcome()));
  auto inside = pass<float>(ctx, Chain{heavy(0.5, 1), second}, 3);
  std::size_t states = 0;
  for_each_tensor([&](const Name&, const auto&) { ++states; }, inside.carry);
  CHECK(states == 2);
}

TEST_CASE("Chain: infer returns the bits of forward, including the carry") {
  Cpu::Context ctx(1);
  const Chain chain{Linear{.model_dim = 3, .output_dim = 4}, Stack{mixed(), 2}, heavy(0.3, 2),
                    Linear{.model_dim = 4, .output_dim = 1}};
  auto a = pass<float>(ctx, chain, 9), b = pass<float>(ctx, chain, 9);
  a.forward();
  b.infer();
  CHECK(same_bits(values(a.y, a.carry), values(b.y, b.carry)));
  CHECK(b.saved.between[0].size() == 0);
}

TEST_CASE("Chain: names contain the layer number; mixtures are in order") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Chain{Linear{.model_dim = 4}, Stack{mixed(), 2}, mixed()}, 5);
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, p.params);
  CHECK(names.front() == "layers.0.weight");
  CHECK(names.back() == "layers.2.branch.expert.down_bias");
  p.forward();
  std::vector<const float*> seen;
  for_each_mixture(p.saved, [&](const auto& m) { seen.push_back(m.plan.weight.data()); });
  const auto& stack = std::get<1>(p.saved.layers);
  CHECK(seen == std::vector<const float*>{stack.layers[0].calls[0].plan.weight.data(),
                                          stack.layers[1].calls[0].plan.weight.data(),
                                          std::get<2>(p.saved.layers).calls[0].plan.weight.data()});
}

TEST_CASE("Chain: every layer receives its own extra inputs") {
  Cpu::Context ctx(1);
  const Attention attention{.model_dim = 4, .causal = false};
  auto p = pass<float>(ctx, Chain{attention, attention}, 6);
  std::get<0>(p.extra.layers).length = 3;
  std::get<1>(p.extra.layers).length = 2;
  p.forward();
  CHECK(std::get<0>(p.saved.layers).branch.length == 3);
  CHECK(std::get<1>(p.saved.layers).branch.length == 2);
}

TEST_CASE("Chain: a model dimension of 0 becomes the previous width") {
  Cpu::Context ctx(1);
  const Linear narrow{.model_dim = 4, .output_dim = 6};
  const auto chain = [&](Index dim) {
    return Chain{narrow, LayerNorm{dim}, Attention{.model_dim = dim, .heads = 2}, LayerNorm{dim}};
  };
  auto left = pass<float>(ctx, chain(0), 5), given = pass<float>(ctx, chain(6), 5);
  CHECK(left.layer.out_dim() == 6);
  for (auto* p : {&left, &given}) {
    p->forward();
    p->backward();
  }
  CHECK(same_bits(left.outcome(), given.outcome()));
  CHECK(message_of([&] { (void)pass<float>(ctx, chain(8), 5); }) ==
        "Chain: layers.1.in_dim: expected 6 (the out_dim of the layer before), got 8");
}

TEST_CASE("Chain: widths that do not match throw") {
  Cpu::Context ctx(1);
  const Chain conflict{Linear{.model_dim = 3, .output_dim = 4}, Linear{.model_dim = 5}};
  CHECK(message_of([&] { (void)conflict.init<float, Cpu>(ctx, {}); }) ==
        "Chain: layers.1.in_dim: expected 4 (the out_dim of the layer before), got 5");
  // One momentum cannot have two widths.
  const Chain two{heavy(0.5, 1), Linear{.model_dim = 4, .output_dim = 3},
                  Residual{update::HeavyBall{}, OneExpert{Linear{.model_dim = 3}}}};
  CHECK(message_of([&] { (void)two.init<float, Cpu>(ctx, {}); }) ==
        "Chain: layers.2.out_dim: expected 4 (the out_dim of layers.0, because layers with the same type of carry "
        "share one carry), got 3");
}

TEST_CASE("Chain: wrong parameters of the last layer throw before writing") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Chain{mixed(), heavy(0.5, 1), Linear{.model_dim = 4}}, 5);
  fill(ctx, std::get<1>(p.carry.states).p.view(), 3);
  std::get<2>(p.params.layers).branch.expert.weight.resize(1, 4, 5);
  for (const auto run : {&decltype(p)::forward, &decltype(p)::infer}) {
    CHECK(message_of([&] { (p.*run)(); }) == "Linear: params.weight: expected [1, 4, 4], got [1, 4, 5]");
    CHECK(p.untouched());
    CHECK(values(p.carry) == std::vector<double>(20, 3));
    CHECK(p.saved.between[0].size() == 0);
  }
  auto q = pass<float>(ctx, Chain{mixed(), heavy(0.5, 1)}, 5);
  q.x.resize(5, 3);
  CHECK(message_of([&] { q.forward(); }) == "Chain.forward: x: expected [?, 4], got [5, 3]");
  q.x.resize(5, 4);
  q.y = constant_tensor<float>(ctx, q.sentinel, 4, 4);
  CHECK(message_of([&] { q.forward(); }) == "Chain.forward: y: expected [5, 4], got [4, 4]");
}

TEST_CASE("Chain: gradients and conformance of different layers together") {
  const auto report =
      check::conformance<Cpu, double>(Chain{Linear{.model_dim = 3, .output_dim = 4}, Stack{mixed(), 2}, plain(),
                                            heavy(0.3, 2), Linear{.model_dim = 4, .output_dim = 1}},
                                      {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
  Cpu::Context ctx(1);
  const auto attentive =
      check::gradients(ctx, Chain{PreNorm{LayerNorm{}, Attention{.model_dim = 4, .heads = 2}}, mixed()});
  CHECK_MESSAGE(attentive, attentive.str());
  const auto one = check::gradients(ctx, Chain{Linear{.model_dim = 3}});
  CHECK_MESSAGE(one, one.str());
}
