#include "gatefold/gate/hierarchical_gate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/summary.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Index dim = 6;
const Mlp<Gelu> mlp{.model_dim = dim, .hidden_dim = 5};

SoftmaxTopK top_k(Index experts, Index k, bool renormalise = true) {
  return {.scores = {.experts = experts}, .selection = {.k = k, .renormalise = renormalise}};
}
/// Returns the weights of TopK for one item, 0 for experts not picked.
template <class GateParams>
naive::Row weights(const GateParams& p, const naive::Row& x, Index k, bool renormalise) {
  const naive::Row z = naive::logits(p.scores, x), q = naive::softmax(z);
  naive::Row w(z.size(), 0);
  double total = 0;
  const auto best = naive::best(z, k);
  for (const Index e : best) total += q[static_cast<std::size_t>(e)];
  for (const Index e : best)
    w[static_cast<std::size_t>(e)] = q[static_cast<std::size_t>(e)] / (renormalise ? total : 1);
  return w;
}
struct Levels {
  Index groups, experts;        // experts of one group
  Index of_groups, of_experts;  // groups of an item, and its experts in each of them
  bool renormalise;
};
/// Equation (1) as loops: the weights of all experts for each item.
template <class P>
std::vector<naive::Row> weights_in_loops(const P& p, const Levels& of) {
  std::vector<naive::Row> all;
  for (Index n = 0; n < p.x.extent(0); ++n) {
    const naive::Row x = naive::row(p.x, n), v = weights(p.params.branch.gate.primary, x, of.of_groups, of.renormalise);
    naive::Row w;
    for (Index g = 0; g < of.groups; ++g)
      for (const double of_expert :
           weights(p.params.branch.gate.secondary[static_cast<std::size_t>(g)], x, of.of_experts, of.renormalise))
        w.push_back(v[static_cast<std::size_t>(g)] * of_expert);
    all.push_back(w);
  }
  return all;
}
template <class P>
std::vector<double> in_loops(const P& p, const Levels& of) {
  std::vector<double> all;
  Index n = 0;
  for (const naive::Row& w : weights_in_loops(p, of)) {
    naive::Row u(static_cast<std::size_t>(dim), 0);
    for (std::size_t e = 0; e < w.size(); ++e) {
      if (w[e] == 0) continue;
      const auto z = naive::mlp(p.params.branch.expert, static_cast<Index>(e), naive::row(p.x, n), naive::gelu);
      for (std::size_t j = 0; j < u.size(); ++j) u[j] += w[e] * z[j];
    }
    all.insert(all.end(), u.begin(), u.end());
    ++n;
  }
  return all;
}
auto mixture(const Levels& of) {
  return Mixture{HierarchicalGate{top_k(of.groups, of.of_groups, of.renormalise),
                                  top_k(of.experts, of.of_experts, of.renormalise)},
                 mlp};
}

}  // namespace

TEST_CASE("HierarchicalGate (1): multiplies the weights of group and expert") {
  Cpu::Context ctx(2);
  for (const Levels& of :
       {Levels{1, 1, 1, 1, true}, Levels{1, 4, 1, 2, true}, Levels{4, 1, 2, 1, true}, Levels{3, 4, 2, 2, true},
        Levels{3, 4, 2, 2, false}, Levels{5, 7, 1, 3, false}, Levels{4, 3, 4, 3, true}}) {
    CAPTURE(of.groups);
    CAPTURE(of.experts);
    CAPTURE(of.of_groups);
    CAPTURE(of.of_experts);
    CAPTURE(of.renormalise);
    auto p = pass<double>(ctx, mixture(of), 13);
    p.forward();
    const auto expected = in_loops(p, of);
    CHECK(difference(values(p.y), expected) <= 1e-13);
    fill(ctx, p.y, quiet_nan);
    p.infer();
    CHECK(difference(values(p.y), expected) <= 1e-13);
  }
}

TEST_CASE("HierarchicalGate: each expert computes an item at most once") {
  Cpu::Context ctx(1);
  const Levels of{3, 4, 2, 2, true};
  auto p = pass<double>(ctx, mixture(of), 20);
  p.forward();
  const auto expected = weights_in_loops(p, of);
  const auto& plan = p.saved.branch.plan;
  CHECK(plan.experts() == 12);
  CHECK(plan.expert.size() == 20 * 2 * 2);
  std::vector<naive::Row> found(20, naive::Row(12, 0));
  for (Index i = 0; i < plan.expert.size(); ++i) {
    REQUIRE(plan.expert(i) >= 0);
    double& w = found[static_cast<std::size_t>(plan.item(i))][static_cast<std::size_t>(plan.expert(i))];
    CHECK(w == 0);
    w = plan.weight(i);
  }
  for (std::size_t n = 0; n < 20; ++n) CHECK(difference(found[n], expected[n]) <= 1e-13);
}

TEST_CASE("HierarchicalGate: float agrees with double") {
  Cpu::Context ctx(2);
  const Levels of{4, 4, 2, 2, true};
  auto p = pass<float>(ctx, mixture(of), 300);
  p.forward();
  CHECK(difference(values(p.y), in_loops(p, of)) <= 1e-5);  // sums of about ten floats
}

TEST_CASE("HierarchicalGate: weights all groups and experts as Jordan and Jacobs") {
  Cpu::Context ctx(1);
  const Mixture dense{HierarchicalGate{SoftmaxDense{.scores = {.experts = 2}}, SoftmaxDense{.scores = {.experts = 3}}},
                      mlp};
  auto p = pass<double>(ctx, dense, 9);
  p.forward();
  CHECK(difference(values(p.y), in_loops(p, {2, 3, 2, 3, false})) <= 1e-13);
}

TEST_CASE("HierarchicalGate: gradients and conformance with losses and noise") {
  const auto conforms = [](const auto& gate, const check::ConformanceOptions& options = {}) {
    const auto report = check::conformance<Cpu, double>(Mixture{gate, Linear{.model_dim = 4}}, options);
    CHECK_MESSAGE(report, report.str());
  };
  conforms(HierarchicalGate{top_k(3, 2), top_k(3, 2, false)},
           {.gradients = {.items = 10}, .items_are_independent = true});
  conforms(HierarchicalGate{SoftmaxDense{.scores = {.experts = 2}}, top_k(3, 2)}, {.items_are_independent = true});
  using Losses = WithAuxiliary<SoftmaxTopK, Balance, ZLoss>;
  const Losses losses{.scores = {.experts = 2},
                      .selection = {.k = 2, .renormalise = false},
                      .auxiliary = {Balance{.weight = 0.3}, ZLoss{.weight = 0.2}}};
  conforms(HierarchicalGate{losses, losses}, {.gradients = {.items = 8}});
  using Limited = ComposedGate<LinearScores, Independent, Capacity<TopK>>;
  const Limited limited{.scores = {.experts = 3}, .selection = {.selection = {.k = 2}, .slots = 3}};
  conforms(HierarchicalGate{limited, top_k(2, 1, false)}, {.gradients = {.items = 9}});
  conforms(HierarchicalGate{top_k(2, 1, false), limited}, {.gradients = {.items = 9}});
  conforms(
      HierarchicalGate{SoftmaxExpertChoice{.scores = {.experts = 2}, .selection = {.factor = 1}}, top_k(2, 2, false)},
      {.gradients = {.items = 9}});
  using Noisy = ComposedGate<LinearScores, Independent, NoisyTopK<>>;
  const Noisy noisy{.scores = {.experts = 3}, .selection = {.k = 2, .initial = Initial::normal(0.3)}};
  const Mixture layer{HierarchicalGate{noisy, noisy}, Linear{.model_dim = 4}};
  Extra<decltype(layer), double, Cpu> extra;
  extra.primary.selection.random = Random{Seed{3}, 1};
  extra.secondary.selection.random = Random{Seed{4}, 1};
  Cpu::Context ctx(1);
  const auto report = check::gradients(ctx, layer, {.items = 9}, extra);
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("HierarchicalGate: a secondary loss counts only items of its group") {
  Cpu::Context ctx(1);
  const HierarchicalGate gate{
      top_k(3, 1, false), WithAuxiliary<SoftmaxTopK, Balance>{
                              .scores = {.experts = 4}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 0.7}}}};
  auto p = pass<double>(ctx, Mixture{gate, mlp}, 25);
  p.forward();
  const auto& saved = p.saved.branch.gate;
  CHECK(saved.auxiliary.size() == 3);  // the primary gate has no loss
  double sum = 0;
  for (std::size_t g = 0; g < 3; ++g) {
    double probability[4] = {}, picks[4] = {}, items = 0;
    for (Index n = 0; n < 25; ++n) {
      const auto x = naive::row(p.x, n);
      const auto& of = p.params.branch.gate;
      if (naive::best(naive::logits(of.primary.scores, x), 1)[0] != static_cast<Index>(g)) continue;
      ++items;
      const auto z = naive::logits(of.secondary[g].scores, x), q = naive::softmax(z);
      for (std::size_t e = 0; e < 4; ++e) probability[e] += q[e];
      for (const Index e : naive::best(z, 2)) ++picks[e];
    }
    REQUIRE(items > 0);
    double loss = 0;
    for (int e = 0; e < 4; ++e) loss += 0.7 * 4 * picks[e] / (2 * items) * probability[e] / items;
    CHECK(saved.auxiliary(static_cast<Index>(g)) == doctest::Approx(loss).epsilon(1e-12));
    sum += loss;
  }
  CHECK(check::auxiliary_of(p.saved) == doctest::Approx(sum).epsilon(1e-12));
}

TEST_CASE("HierarchicalGate: each group has its own noise") {
  Cpu::Context ctx(1);
  using Noisy = ComposedGate<LinearScores, Independent, NoisyTopK<>>;
  auto p = pass<double>(ctx,
                        Mixture{HierarchicalGate{SoftmaxDense{.scores = {.experts = 2}},
                                                 Noisy{.scores = {.experts = 6}, .selection = {.k = 2}}},
                                mlp},
                        9);
  auto& of = p.params.branch.gate;
  copy_pack(ctx, of.secondary[0], of.secondary[1]);
  const auto experts = [&](std::size_t g) { return values(p.saved.branch.gate.groups[g].plan.expert); };
  p.forward();
  CHECK(experts(0) == experts(1));
  p.extra.secondary.selection.random = Random{Seed{3}, 1};
  p.forward();
  CHECK(experts(0) != experts(1));
}

TEST_CASE("HierarchicalGate: padding gets no expert and output 0") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, mixture({3, 2, 2, 1, true}), 6);
  const std::vector<double> valid{1, 0, 1, 1, 0, 1};
  p.extra.valid = valid;
  for (Index j = 0; j < dim; ++j) p.x(1, j) = quiet_nan;
  p.forward();
  for (Index n = 0; n < 6; ++n)
    for (Index j = 0; j < dim; ++j) CHECK((p.y(n, j) == 0) == (valid[static_cast<std::size_t>(n)] == 0));
  p.backward();
  for (const double g : values(p.grads)) CHECK(std::isfinite(g));
}

TEST_CASE("HierarchicalGate: empty groups and empty batches give no gradient") {
  Cpu::Context ctx(2);
  auto empty = pass<double>(ctx, mixture({3, 2, 2, 1, true}), 0);
  empty.forward();
  empty.backward();
  for (const double g : values(empty.grads)) CHECK(g == 0);
  auto one = pass<double>(ctx, mixture({3, 2, 1, 2, false}), 1);
  one.forward();
  one.backward();
  Index groups_with_gradient = 0;
  for (const auto& group : one.grads.branch.gate.secondary) {
    const auto all = values(group);
    groups_with_gradient += std::any_of(all.begin(), all.end(), [](double g) { return g != 0; });
  }
  CHECK(groups_with_gradient == 1);
}

TEST_CASE("HierarchicalGate: trains, and frozen parameters give the same bits") {
  Cpu::Context ctx(1);
  const Mixture model{HierarchicalGate{top_k(3, 2), top_k(4, 1, false)}, Mlp<Gelu>{.model_dim = 4, .hidden_dim = 8}};
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 1e-2}, Seed{1}};
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 64, 4);
  Tensor<float, 2, Cpu> target(64, 4), y(64, 4), of_frozen(64, 4);
  for (Index n = 0; n < 64; ++n)
    for (Index d = 0; d < 4; ++d) target(n, d) = x(n, 0) * x(n, 1);
  const double before = trainer.step(x, target);
  double after = 0;
  for (int step = 0; step < 300; ++step) after = trainer.step(x, target);
  CHECK(before > 0.05);
  CHECK(after < 0.01);
  infer(model, ctx, trainer.params.branch, x, y.view());
  const auto frozen = freeze(ctx, std::move(trainer.params.branch));
  infer(model, ctx, frozen, x, of_frozen.view());
  CHECK(values(y) == values(of_frozen));
}

TEST_CASE("HierarchicalGate: the summary lists tensors and active experts") {
  const auto of = summary(mixture({2, 4, 1, 2, true}));
  std::string names;
  for (const auto& row : of.rows) names += row.name + ' ';
  CHECK(names ==
        "gate.primary.scores.weight gate.primary.scores.bias gate.secondary.0.scores.weight "
        "gate.secondary.0.scores.bias gate.secondary.1.scores.weight gate.secondary.1.scores.bias expert.up "
        "expert.up_bias expert.down expert.down_bias ");
  for (const auto& row : of.rows)
    if (row.name == "expert.up") CHECK(row.active * 8 == row.values * 2);
}

TEST_CASE("HierarchicalGate: wrong options and values of another run throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] {
          init_params<float, Cpu>(mixture({0, 3, 1, 1, true}), ctx, Seed{1});
        }) == "HierarchicalGate: primary: experts (the groups): expected at least 1, got 0");
  CHECK(message_of([&] {
          init_params<float, Cpu>(mixture({2, 0, 1, 1, true}), ctx, Seed{1});
        }) == "HierarchicalGate: secondary: experts: expected at least 1, got 0");
  CHECK(message_of([&] {
          with_experts(HierarchicalGate{top_k(2, 1), top_k(0, 1)}, 5);
        }) ==
        "HierarchicalGate: groups: expected a divisor of 5 (the number of experts in the other parts of the model), "
        "got 2");
  CHECK(with_experts(HierarchicalGate{top_k(2, 1), top_k(0, 1)}, 6).secondary.scores.experts == 3);
  auto two = pass<float>(ctx, mixture({2, 3, 1, 1, true}), 4), three = pass<float>(ctx, mixture({3, 2, 1, 1, true}), 4);
  two.forward();
  three.forward();
  CHECK(message_of([&] { three.layer.branch.infer(ctx, two.params.branch, three.x, three.y, {}); }) ==
        "HierarchicalGate: params.secondary.size(): expected 3 (groups), got 2");
  copy(ctx, std::as_const(two.x).view(), three.x.view());
  three.saved.branch.gate = std::move(two.saved.branch.gate);
  CHECK(message_of([&] { three.backward(); }) == "HierarchicalGate.backward: saved.groups.size(): expected 3, got 2");
  const std::vector<float> mask{1, 0};
  three.extra.valid = mask;
  CHECK(message_of([&] { three.forward(); }) == "HierarchicalGate: extra.valid: expected [4], got [2]");
}
