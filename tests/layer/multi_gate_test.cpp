#include "gatefold/layer/multi_gate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/hidden_dropout.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/per_token.hpp"
#include "gatefold/layer/summary.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/loss/multi_task.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/allocations.hpp"
#include "support/bounded.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Index dim = 6;
const Mlp<Gelu> mlp{.model_dim = dim, .hidden_dim = 5};

auto top_k(Index experts, Index k, Index tasks, bool renormalise = true) {
  return MultiGate{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = k, .renormalise = renormalise}}, mlp,
                   tasks};
}
/// The parameters of one task in the form that naive::mixture reads.
template <class GateParams>
struct OfTask {
  const GateParams& gate;
};
/// Equation (1) as loops: the outputs of all tasks.
template <class P>
std::vector<double> in_loops(const P& p, Index k, bool renormalise) {
  std::vector<double> all;
  for (Index n = 0; n < p.x.extent(0); ++n)
    for (const auto& gate : p.params.branch.gate) {
      const auto u = naive::mixture(
          OfTask<std::remove_cvref_t<decltype(gate)>>{gate}, naive::row(p.x, n), k, renormalise,
          [&](Index e, const naive::Row& x) { return naive::mlp(p.params.branch.expert, e, x, naive::gelu); });
      all.insert(all.end(), u.begin(), u.end());
    }
  return all;
}
/// Returns z = x W + b of one item with the error that a result in T may have.
template <class T, class W, class Bias>
std::vector<Bounded> bounded_affine(const std::vector<Bounded>& x, Index columns, const W& w, const Bias& b) {
  std::vector<Bounded> z;
  for (Index j = 0; j < columns; ++j) {
    BoundedSum<T> sum;
    sum.add(double(b(j)), 1);
    for (std::size_t d = 0; d < x.size(); ++d) sum.add(x[d], {double(w(static_cast<Index>(d), j)), 0});
    z.push_back(sum.result());
  }
  return z;
}
/// Appends u_t[n] of equation (1) for each task t to `all`, with the error that a result in T may have. The weights of
/// the k picked experts are renormalised.
template <class T, class P>
void bounded_row(const P& p, Index n, Index k, std::vector<Bounded>& all) {
  std::vector<Bounded> x;
  for (Index d = 0; d < dim; ++d) x.push_back({double(p.x(n, d)), 0});
  const auto& of = p.params.branch.expert;
  for (const auto& gate : p.params.branch.gate) {
    const auto logits = bounded_affine<T>(
        x, gate.scores.bias.extent(0), [&](Index d, Index e) { return gate.scores.weight(d, e); },
        [&](Index e) { return gate.scores.bias(e); });
    std::vector<double> exact;
    for (const Bounded& z : logits) exact.push_back(z.value);
    const std::vector<Index> order = naive::best(exact, static_cast<Index>(exact.size())),
                             picks(order.begin(), order.begin() + k);
    const auto at = [&](Index place) { return logits[std::size_t(order[std::size_t(place)])]; };
    REQUIRE(at(k - 1).value - at(k).value > at(k - 1).error + at(k).error);  // rounding does not change the picks

    std::vector<Bounded> powers;  // exp(z_e − the largest z), at most 1
    BoundedSum<T> total;
    for (Index place = 0; place < k; ++place) {
      const double below = at(place).value - at(0).value;
      powers.push_back(apply<T>(std::exp(below), {below, at(place).error + at(0).error}));
      total.add(powers.back(), {1, 0});
    }
    const Bounded sum = total.result();
    std::vector<BoundedSum<T>> u(static_cast<std::size_t>(dim));
    for (Index place = 0; place < k; ++place) {
      const Bounded power = powers[std::size_t(place)];
      const double weight = power.value / sum.value;
      const Bounded w{weight, (power.error + weight * sum.error) / (sum.value - sum.error) + unit_roundoff<T>};
      const Index e = picks[std::size_t(place)];
      auto hidden = bounded_affine<T>(
          x, of.up.extent(2), [&](Index d, Index j) { return of.up(e, d, j); },
          [&](Index j) { return of.up_bias(e, j); });
      for (Bounded& h : hidden) h = apply<T>(naive::gelu(h.value), h);
      const auto out = bounded_affine<T>(
          hidden, dim, [&](Index j, Index d) { return of.down(e, j, d); }, [&](Index d) { return of.down_bias(e, d); });
      for (std::size_t d = 0; d < u.size(); ++d) u[d].add(w, out[d]);
    }
    for (const BoundedSum<T>& one : u) all.push_back(one.result());
  }
}
/// The distinct pairs of item and expert of all tasks.
template <class S>
std::set<std::pair<Index, Index>> distinct_picks(const S& saved) {
  std::set<std::pair<Index, Index>> pairs;
  for (const auto& task : saved.tasks)
    for (Index p = 0; p < task.plan.expert.size(); ++p)
      if (task.plan.expert(p) >= 0) pairs.emplace(task.plan.item(p), task.plan.expert(p));
  return pairs;
}

}  // namespace

TEST_CASE("MultiGate (1): equals loops over tasks and experts") {
  Cpu::Context ctx(2);
  for (const Index tasks : {1, 2, 3})
    for (const Index experts : {1, 2, 7, 60})
      for (const Index k : {Index(1), Index(2), experts})
        for (const bool renormalise : {true, false}) {
          if (k > experts) continue;
          CAPTURE(tasks);
          CAPTURE(experts);
          CAPTURE(k);
          auto p = pass<double>(ctx, top_k(experts, k, tasks, renormalise), 11);
          p.forward();
          const auto expected = in_loops(p, k, renormalise);
          CHECK(p.y.extent(1) == tasks * dim);
          CHECK(difference(values(p.y), expected) <= 1e-13);
          fill(ctx, p.y, quiet_nan);
          p.infer();
          CHECK(difference(values(p.y), expected) <= 1e-13);
        }
}

TEST_CASE("MultiGate: float agrees with loops in double") {
  Cpu::Context ctx(2);
  auto p = pass<float>(ctx, top_k(8, 2, 3), 300);
  p.forward();
  std::vector<Bounded> expected;
  for (Index n = 0; n < 300; ++n) bounded_row<float>(p, n, 2, expected);
  const std::vector<double> got = values(p.y);
  REQUIRE(got.size() == expected.size());
  Index outside = 0;
  double widest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    outside += within(got[i], expected[i]) ? 0 : 1;
    widest = std::max(widest, expected[i].error);
  }
  CHECK(outside == 0);
  CHECK(widest <= 2e-5);  // the bound is narrow compared with the outputs, which are near 1
}

TEST_CASE("MultiGate: an expert computes an item once for all tasks") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, top_k(6, 2, 4), 50);
  p.forward();
  const auto slots = [&] { return p.saved.branch.plan.offsets(6); };
  const auto pairs = distinct_picks(p.saved.branch);
  CHECK(slots() == static_cast<Index>(pairs.size()));
  CHECK(slots() < 4 * 2 * 50);
  // The slots are the distinct pairs, each once.
  std::set<std::pair<Index, Index>> found;
  const auto& plan = p.saved.branch.plan;
  for (Index e = 0; e < 6; ++e)
    for (Index s = plan.offsets(e); s < plan.offsets(e + 1); ++s) found.emplace(plan.rows(s), e);
  CHECK(found == pairs);

  for (std::size_t t = 1; t < 4; ++t) copy_pack(ctx, p.params.branch.gate[0], p.params.branch.gate[t]);
  p.forward();
  CHECK(slots() == 2 * 50);
}

TEST_CASE("MultiGate: gradients equal sums over one Mixture per task") {
  Cpu::Context ctx(2);
  const Index tasks = 3, items = 40;
  auto p = pass<double>(ctx, top_k(5, 2, tasks), items);
  p.forward();
  p.backward();
  std::vector<double> dx(static_cast<std::size_t>(items * dim), 0), dexpert(values(p.grads.branch.expert).size(), 0);
  for (Index t = 0; t < tasks; ++t) {
    auto one = pass<double>(ctx, Mixture{p.layer.branch.gate, mlp}, items);
    copy_pack(ctx, p.params.branch.gate[static_cast<std::size_t>(t)], one.params.branch.gate);
    copy_pack(ctx, p.params.branch.expert, one.params.branch.expert);
    copy(ctx, std::as_const(p.x).view(), one.x.view());
    for (Index n = 0; n < items; ++n)
      for (Index j = 0; j < dim; ++j) one.dy(n, j) = p.dy(n, t * dim + j);
    one.forward();
    one.backward();
    CHECK(difference(values(p.grads.branch.gate[static_cast<std::size_t>(t)]), values(one.grads.branch.gate)) <= 1e-12);
    const auto of_x = values(one.dx), of_expert = values(one.grads.branch.expert);
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += of_x[i];
    for (std::size_t i = 0; i < dexpert.size(); ++i) dexpert[i] += of_expert[i];
  }
  CHECK(difference(values(p.dx), dx) <= 1e-12);
  CHECK(difference(values(p.grads.branch.expert), dexpert) <= 1e-12);
}

TEST_CASE("MultiGate: passes conformance with dense and sparse gates") {
  const auto conforms = [](const auto& layer, const check::ConformanceOptions& options = {}) {
    const auto report = check::conformance<Cpu, double>(layer, options);
    CHECK_MESSAGE(report, report.str());
  };
  const Linear linear{.model_dim = 4, .output_dim = 3};
  conforms(MultiGate{SoftmaxDense{.scores = {.experts = 3}}, Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}, 2},
           {.items_are_independent = true,
            .hooks = {{"",
                       {"Params", "Saved", "Extra", "ExtraGrad", "validate", "infer", "experts", "Saved.mixtures",
                        "Extra.without_auxiliary", "Extra.WithoutTrace", "Extra.with_trace", "ExtraGrad.set_trace"}}}});
  conforms(MultiGate{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, linear, 3},
           {.items_are_independent = true});
  conforms(MultiGate{
      WithAuxiliary<SoftmaxTopK, Balance, ZLoss>{
          .scores = {.experts = 3}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 0.3}, ZLoss{.weight = 0.2}}},
      linear, 2});
}

TEST_CASE("MultiGate: gradients with dropped and missing picks are correct") {
  const Linear linear{.model_dim = 4, .output_dim = 3};
  const auto checked = [](const auto& layer) {
    Cpu::Context ctx(1);
    const auto report = check::gradients(ctx, layer, {.items = 7});
    CHECK_MESSAGE(report, report.str());
    auto p = pass<double>(ctx, layer, 20);
    p.forward();
    CHECK(p.saved.branch.plan.offsets(3) == static_cast<Index>(distinct_picks(p.saved.branch).size()));
  };
  checked(MultiGate{
      ComposedGate<LinearScores, Independent, ExpertChoice>{.scores = {.experts = 3}, .selection = {.factor = 1}},
      linear, 2});
  checked(MultiGate{ComposedGate<LinearScores, Independent, Capacity<TopK>>{
                        .scores = {.experts = 3}, .selection = {.selection = {.k = 2}, .slots = 3}},
                    linear, 2});
}

TEST_CASE("MultiGate: padding gets no expert and output 0") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, top_k(4, 2, 2), 6);
  const std::vector<double> valid{1, 0, 1, 1, 0, 1};
  p.extra.valid = valid;
  p.forward();
  for (Index n = 0; n < 6; ++n)
    for (Index j = 0; j < 2 * dim; ++j) CHECK((p.y(n, j) == 0) == (valid[static_cast<std::size_t>(n)] == 0));
}

TEST_CASE("MultiGate: each task has its own auxiliary loss and noise") {
  Cpu::Context ctx(1);
  const MultiGate layer{WithAuxiliary<ComposedGate<LinearScores, Independent, NoisyTopK<GaussianNoise>>, ZLoss>{
                            .scores = {.experts = 5}, .selection = {.k = 2}, .auxiliary = {ZLoss{.weight = 1}}},
                        mlp, 2};
  auto p = pass<double>(ctx, layer, 9);
  copy_pack(ctx, p.params.branch.gate[0], p.params.branch.gate[1]);
  const auto experts = [&](std::size_t t) { return values(p.saved.branch.tasks[t].plan.expert); };
  p.forward();
  CHECK(experts(0) == experts(1));
  p.extra.selection.random = Random{Seed{3}, 1};
  p.forward();
  CHECK(experts(0) != experts(1));
  double total = 0;
  Index tasks = 0;
  for_each_mixture(p.saved, [&](const auto& task) {
    ++tasks;
    total += task.gate.auxiliary(0);
    double of_task = 0;  // the mean of (log Σ exp z)²
    for (Index n = 0; n < 9; ++n) {
      double sum = 0;
      for (Index e = 0; e < 5; ++e) sum += std::exp(task.gate.logits(n, e));
      of_task += std::log(sum) * std::log(sum) / 9;
    }
    CHECK(task.gate.auxiliary(0) == doctest::Approx(of_task).epsilon(1e-12));
  });
  CHECK(tasks == 2);
  CHECK(check::auxiliary_of(p.saved) == doctest::Approx(total).epsilon(1e-12));
}

TEST_CASE("MultiGate: experts draw random numbers once for all tasks") {
  Cpu::Context ctx(1);
  const MultiGate layer{SoftmaxDense{.scores = {.experts = 2}}, HiddenDropout{0.5, mlp}, 2};
  auto p = pass<double>(ctx, layer, 9);
  copy_pack(ctx, p.params.branch.gate[0], p.params.branch.gate[1]);
  p.forward();
  const auto without = values(p.y);
  p.extra.noise.random = Random{Seed{3}, 1};
  p.forward();
  CHECK(values(p.y) != without);
  for (Index n = 0; n < 9; ++n)
    for (Index j = 0; j < dim; ++j) CHECK(p.y(n, j) == p.y(n, dim + j));
  const auto report = check::conformance<Cpu, double>(layer, {}, []<class T>(Element<T>, Index, Index) {
    Extra<decltype(layer), T, Cpu> extra;
    extra.noise.random = Random{Seed{3}, 1};
    return extra;
  });
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("MultiGate: infinite outputs reach only tasks that picked the expert") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, top_k(3, 1, 2), 5);
  fill(ctx, p.params.branch.gate[0].scores.bias, 0);
  p.params.branch.gate[0].scores.bias(1) = 50;
  p.params.branch.gate[1].scores.bias(2) = 50;
  for (Index j = 0; j < dim; ++j) p.params.branch.expert.down_bias(2, j) = infinity;
  p.forward();
  for (Index n = 0; n < 5; ++n)
    for (Index j = 0; j < 2 * dim; ++j) CHECK(std::isfinite(p.y(n, j)) == (j < dim));
}

TEST_CASE("MultiGate: an empty batch gives no output and no gradient") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, top_k(5, 2, 2), 0);
  p.forward();
  p.backward();
  for (const double g : values(p.grads)) CHECK(g == 0);
}

TEST_CASE("MultiGate: trains two tasks; later steps do not allocate") {
  Cpu::Context ctx(1);
  const Chain model{MultiGate{SoftmaxDense{.scores = {.experts = 4}}, Mlp<Gelu>{.model_dim = 3, .hidden_dim = 16}, 2},
                    PerToken{2, Linear{.model_dim = 3, .output_dim = 1}}};
  Trainer trainer{ctx, model, MultiTask{TaskLoss{1, MeanSquaredError{}}, TaskLoss{1, MeanSquaredError{}, 0.5}},
                  optim::AdamW{.lr = 1e-2}, Seed{1}};
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 64, 3);
  std::vector<float> product, difference_of;
  for (Index n = 0; n < 64; ++n) product.push_back(x(n, 0) * x(n, 1)), difference_of.push_back(x(n, 1) - x(n, 2));
  const View<const float, 2, Cpu> first(product.data(), 64, 1), second(difference_of.data(), 64, 1);
  const double before = trainer.step(x, {first, second});
  const int allocated = support::allocations;
  double after = 0;
  for (int step = 0; step < 400; ++step) after = trainer.step(x, {first, second});
  CHECK(support::allocations == allocated);
  CHECK(before > 0.2);
  CHECK(after < 0.01);
}

TEST_CASE("MultiGate: summary has tensor names and experts per item") {
  const auto of = summary(top_k(8, 2, 3));
  std::string names;
  for (const auto& row : of.rows) names += row.name + ' ';
  CHECK(names ==
        "gate.0.scores.weight gate.0.scores.bias gate.1.scores.weight gate.1.scores.bias gate.2.scores.weight "
        "gate.2.scores.bias expert.up expert.up_bias expert.down expert.down_bias ");
  for (const auto& row : of.rows)
    if (row.name == "expert.up") CHECK(row.active * 8 == row.values * 6);
}

TEST_CASE("MultiGate: wrong options and values of another run throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { init_params<float, Cpu>(top_k(3, 1, 0), ctx, Seed{1}); }) ==
        "MultiGate: tasks: expected at least 1, got 0");
  auto two = pass<float>(ctx, top_k(3, 1, 2), 4), three = pass<float>(ctx, top_k(3, 1, 3), 4);
  two.forward();
  three.forward();
  CHECK(message_of([&] { three.layer.branch.infer(ctx, two.params.branch, three.x, three.y, {}); }) ==
        "MultiGate: params.gate.size(): expected 3 (tasks), got 2");
  CHECK(message_of([&] { three.layer.branch.infer(ctx, three.params.branch, three.x, two.y, {}); }) ==
        "MultiGate.forward: u: expected [4, 18], got [4, 12]");
  copy(ctx, std::as_const(two.x).view(), three.x.view());
  three.saved.branch = std::move(two.saved.branch);
  CHECK(message_of([&] { three.backward(); }) == "MultiGate.backward: saved.tasks.size(): expected 3, got 2");
}
