#include "gatefold/layer/skip.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/relative_attention.hpp"
#include "gatefold/layer/relative_keys.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const OneExpert linear{Linear{.model_dim = 4}};

}  // namespace

TEST_CASE("Skip (1): equals Residual with Plain around a branch") {
  Cpu::Context ctx(1);
  auto skip = pass<double>(ctx, Skip{linear}, 6);
  auto plain = pass<double>(ctx, Residual{update::Plain{}, linear}, 6);
  copy_pack(ctx, skip.params.layer.branch, plain.params.branch);
  copy(ctx, skip.x, plain.x.view());
  copy(ctx, skip.dy, plain.dy.view());
  skip.forward();
  plain.forward();
  CHECK(difference(values(skip.y), values(plain.y)) <= 1e-15);
  skip.backward();
  plain.backward();
  CHECK(difference(values(skip.dx, skip.grads), values(plain.dx, plain.grads)) <= 1e-15);
}

TEST_CASE("Skip: gradients and conformance around a layer with carry") {
  const Skip layer{Residual{update::HeavyBall{}, linear}};
  const auto report = check::conformance<Cpu, double>(Stack{layer, 2}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Skip: wrong widths or shapes throw before any write") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Skip{OneExpert{Linear{.model_dim = 4, .output_dim = 3}}}, 5);
  CHECK(message_of([&] { p.forward(); }) == "Skip: layer.out_dim: expected 4 (its in_dim), got 3");
  CHECK(p.untouched());
  auto q = pass<float>(ctx, Skip{linear}, 5);
  q.x.resize(5, 3);
  CHECK(message_of([&] { q.forward(); }) == "Skip.forward: x: expected [?, 4], got [5, 3]");
}

namespace {

constexpr Index dim = 6, items = 5, window = 3;
const Noise noise{Random{Seed{9}, 4}};
const Dropout mixture{0.3,
                      Mixture{SoftmaxTopK{.scores = {.experts = 3}}, Mlp<Relu>{.model_dim = dim, .hidden_dim = 4}}};
template <class RuleT>
auto model(const RuleT& rule) {
  return RelativeKeys{
      window, dim / 2,
      Stack{reference_layer(RelativeAttention::reference({.model_dim = dim, .heads = 2, .window = window}), rule,
                            mixture),
            2}};
}

using Row = std::vector<double>;
template <class P>
Row layer_norm(const P& p, const Row& x) {
  double mean = 0, variance = 0;
  for (const double v : x) mean += v / double(dim);
  for (const double v : x) variance += (v - mean) * (v - mean) / double(dim);
  Row y;
  for (Index d = 0; d < dim; ++d)
    y.push_back((x[std::size_t(d)] - mean) / std::sqrt(variance + 1e-5) * p.expert.gain(0, d) + p.expert.bias(0, d));
  return y;
}
/// Returns the outputs of a branch. The branch's own tests compare these outputs with loops.
template <class L, class P, class E>
std::vector<Row> by_itself(Cpu::Context& ctx, const L& branch, const P& params, const std::vector<Row>& x,
                           const E& extra) {
  Tensor<double, 2, Cpu> in(items, dim), out(items, dim);
  for (Index n = 0; n < items; ++n)
    for (Index d = 0; d < dim; ++d) in(n, d) = x[std::size_t(n)][std::size_t(d)];
  infer_branch<double, Cpu>(branch, ctx, params, in, out, extra);
  std::vector<Row> rows;
  for (Index n = 0; n < items; ++n) rows.push_back(naive::row(out, n));
  return rows;
}

/// Compares reference_layer with loops over the reference code of MomentumSMoE, with h₁ the input and c the output of
/// the mixture: m ← μ m + c, s = LN(h₁ − m), or without momentum s = LN(h₁ + c); then LN(h₁ + s).
void check_skeleton(double mu, bool momentum) {
  Cpu::Context ctx(1);
  const auto expect_same = [&](const auto& of_rule) {
    auto p = pass<double>(ctx, of_rule, items);
    std::uint64_t seed = 70;
    for_each_tensor([&](const Name&, auto& t) { fill_uniform(ctx, Seed{++seed}, -1, 1, t); }, p.params);
    auto& [of_attention, of_mixture] = p.extra.layers;
    of_mixture.noise = noise;
    p.forward();
    std::vector<Row> h, m(items, Row(dim, 0));
    for (Index n = 0; n < items; ++n) h.push_back(naive::row(p.x, n));
    for (Index l = 0; l < 2; ++l) {
      const auto& [first, second] = p.params.layer.layers[std::size_t(l)].layers;
      RelativeAttention::Extra<double, Cpu> relative{.relative = p.params.relative};
      const auto a = by_itself(ctx, RelativeAttention::reference({.model_dim = dim, .heads = 2, .window = window}),
                               first.layer.branch, h, relative);
      std::vector<Row> h1;
      for (Index n = 0; n < items; ++n) {
        Row sum = h[std::size_t(n)];
        for (Index d = 0; d < dim; ++d) sum[std::size_t(d)] += a[std::size_t(n)][std::size_t(d)];
        h1.push_back(layer_norm(first.norm, sum));
      }
      const auto c = by_itself(ctx, mixture, second.layer.layer.layer.branch, h1,
                               Extra<decltype(mixture), double, Cpu>{noise.at(l), {}});
      for (Index n = 0; n < items; ++n) {
        Row inner = h1[std::size_t(n)];
        for (Index d = 0; d < dim; ++d) {
          double& state = m[std::size_t(n)][std::size_t(d)];
          state = mu * state + c[std::size_t(n)][std::size_t(d)];
          inner[std::size_t(d)] += momentum ? -state : c[std::size_t(n)][std::size_t(d)];
        }
        Row outer = layer_norm(second.layer.layer.norm, inner);
        for (Index d = 0; d < dim; ++d) outer[std::size_t(d)] += h1[std::size_t(n)][std::size_t(d)];
        h[std::size_t(n)] = layer_norm(second.norm, outer);
      }
    }
    Row expected;
    for (const Row& row : h) expected.insert(expected.end(), row.begin(), row.end());
    CHECK(difference(values(p.y), expected) <= 1e-12);
  };
  if (momentum)
    expect_same(model(update::HeavyBall{.mu = mu, .gamma = -1}));
  else
    expect_same(model(update::Plain{}));
}

}  // namespace

TEST_CASE("reference_layer (1): equals the layers of paper 001, written out") {
  check_skeleton(0, false);
  check_skeleton(0.7, true);
}

TEST_CASE("reference_layer: gradients with momentum and dropout are correct") {
  Cpu::Context ctx(1);
  const auto deep = model(update::HeavyBall{.mu = 0.7, .gamma = -1});
  Extra<decltype(deep), double, Cpu> extra{};
  std::get<1>(extra.layers).noise = noise;
  const auto report = check::gradients(ctx, deep, {.items = 5, .of_largest = 1e-8, .moved = 0.3}, extra);
  CHECK_MESSAGE(report, report.str());
}
