#include "gatefold/gate/selection/global_balance.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/summary.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Index dim = 4, experts = 5, k = 2;
using Gate = ComposedGate<LinearScores, Independent, GlobalBalance<TopK>>;
const Linear linear{.model_dim = dim};

auto mixture(double weight) {
  return Mixture{Gate{.scores = {.experts = experts}, .selection = {.selection = {.k = k}, .weight = weight}}, linear};
}
auto with_balance(double weight) {
  return Mixture{WithAuxiliary<SoftmaxTopK, Balance>{
                     .scores = {.experts = experts}, .selection = {.k = k}, .auxiliary = {Balance{.weight = weight}}},
                 linear};
}
/// Computes the mean probability of each expert and the number of picks in loops.
struct Loads {
  naive::Row probability = naive::Row(experts, 0), picks = naive::Row(experts, 0);
};
template <class P, class X>
Loads loads(const P& gate, const X& x) {
  Loads of;
  for (Index n = 0; n < x.extent(0); ++n) {
    const auto z = naive::logits(gate.scores, naive::row(x, n)), q = naive::softmax(z);
    for (std::size_t e = 0; e < q.size(); ++e) of.probability[e] += q[e] / double(x.extent(0));
    for (const Index e : naive::best(z, k)) of.picks[static_cast<std::size_t>(e)] += 1;
  }
  return of;
}

}  // namespace

TEST_CASE("GlobalBalance (1): with one part, equals Balance") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, mixture(0.7), 20);
  auto q = pass<double>(ctx, with_balance(0.7), 20);
  copy(ctx, std::as_const(p.x).view(), q.x.view());
  copy_pack(ctx, p.params.branch.gate.scores, q.params.branch.gate.scores);
  copy_pack(ctx, p.params.branch.expert, q.params.branch.expert);
  p.forward(), p.backward();
  q.forward(), q.backward();
  CHECK(values(p.y) == values(q.y));
  CHECK(p.saved.branch.gate.auxiliary(0) == q.saved.branch.gate.auxiliary(0));
  CHECK(difference(values(p.grads.branch.gate.scores), values(q.grads.branch.gate.scores)) <= 1e-13);
  CHECK(difference(values(p.dx), values(q.dx)) <= 1e-13);
}

TEST_CASE("GlobalBalance: the second part uses the loads of both parts") {
  Cpu::Context ctx(1);
  const double weight = 0.7;
  auto p = pass<double>(ctx, mixture(weight), 12), without = pass<double>(ctx, mixture(0), 12);
  const auto& scores = p.params.branch.gate.scores;
  const auto first = uniform_tensor<double>(ctx, Seed{21}, 1, 12, dim);
  const auto second = uniform_tensor<double>(ctx, Seed{22}, 1, 12, dim);
  const auto run = [&](auto& of, const auto& x) {
    copy(ctx, x.view(), of.x.view());
    of.forward();
    of.backward();
  };
  run(p, first);
  set_zero(ctx, p.grads.branch.gate.scores);
  run(p, second);
  run(without, second);
  // The gradient of the loss with fixed shares f: dz[n,e] = q[n,e] (g_e − Σ_i q[n,i] g_i), g_e = weight · E · f_e / N.
  const Loads a = loads(p.params.branch.gate, first), b = loads(p.params.branch.gate, second);
  naive::Row g(experts, 0), expected(experts, 0);
  for (std::size_t e = 0; e < g.size(); ++e) g[e] = weight * experts * (a.picks[e] + b.picks[e]) / (2 * 12 * k) / 12;
  for (Index n = 0; n < 12; ++n) {
    const auto q = naive::softmax(naive::logits(scores, naive::row(second, n)));
    double mean = 0;
    for (std::size_t e = 0; e < g.size(); ++e) mean += q[e] * g[e];
    for (std::size_t e = 0; e < g.size(); ++e) expected[e] += q[e] * (g[e] - mean);
  }
  auto found = values(p.grads.branch.gate.scores.bias);
  const auto of_task = values(without.grads.branch.gate.scores.bias);
  for (std::size_t e = 0; e < found.size(); ++e) found[e] -= of_task[e];
  CHECK(difference(found, expected) <= 1e-12);
  double loss = 0;  // the value uses the loads of its own part
  for (std::size_t e = 0; e < g.size(); ++e) loss += weight * experts * b.picks[e] / (12 * k) * b.probability[e];
  CHECK(p.saved.branch.gate.auxiliary(0) == doctest::Approx(loss).epsilon(1e-13));
}

TEST_CASE("GlobalBalance: a Trainer forgets the loads after each step") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 24, dim), y = uniform_tensor<double>(ctx, Seed{3}, 1, 24, dim);
  const auto make = [&] {
    return Trainer{ctx, mixture(0.5), MeanSquaredError{}, optim::Sgd{.lr = 0}, Seed{1}, Element<double>{}};
  };
  const auto part = [](const auto& of, Index first, Index count) { return of.view().rows(first, count); };
  auto fresh = make(), again = make();
  again.step(x, y);
  const auto both = [&](auto& trainer) {
    trainer.accumulate(part(x, 0, 8), part(y, 0, 8));
    trainer.step(part(x, 8, 16), part(y, 8, 16));
    return values(trainer.grads.branch.gate.selection.balance);
  };
  const auto count = both(fresh);
  CHECK(both(again) == count);
  const Loads all = loads(fresh.params.branch.gate, x);
  CHECK(count == all.picks);
}

TEST_CASE("GlobalBalance: conformance with noise, capacity and other losses") {
  const auto conforms = [](const auto& layer, const check::ConformanceOptions& options = {}) {
    const auto report = check::conformance<Cpu, double>(layer, options);
    CHECK_MESSAGE(report, report.str());
  };
  conforms(mixture(0.3));
  conforms(Mixture{ComposedGate<LinearScores, Independent, GlobalBalance<Capacity<TopK>>, ZLoss>{
                       .scores = {.experts = 3},
                       .selection = {.selection = {.selection = {.k = 2}, .slots = 3}, .weight = 0.3},
                       .auxiliary = {ZLoss{.weight = 0.2}}},
                   linear},
           {.gradients = {.items = 8}});
  const Mixture noisy{ComposedGate<LinearScores, Independent, GlobalBalance<NoisyTopK<>>>{
                          .scores = {.experts = 3},
                          .selection = {.selection = {.k = 2, .initial = Initial::normal(0.3)}, .weight = 0.3}},
                      linear};
  Extra<decltype(noisy), double, Cpu> extra;
  extra.selection.random = Random{Seed{3}, 1};
  Cpu::Context ctx(1);
  const auto report = check::gradients(ctx, noisy, {.items = 8}, extra);
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("GlobalBalance: padding does not count") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, mixture(0.7), 6);
  const std::vector<double> valid{1, 0, 1, 1, 0, 1};
  p.extra.valid = valid;
  for (Index j = 0; j < dim; ++j) p.x(1, j) = quiet_nan;
  p.forward();
  p.backward();
  naive::Row picks(experts, 0);
  for (const Index n : {0, 2, 3, 5})
    for (const Index e : naive::best(naive::logits(p.params.branch.gate.scores, naive::row(p.x, n)), k))
      picks[static_cast<std::size_t>(e)] += 1;
  CHECK(values(p.grads.branch.gate.selection.balance) == picks);
}

TEST_CASE("GlobalBalance: its tensors have names; wrong options and shapes throw") {
  Cpu::Context ctx(1);
  std::string names;
  for (const auto& row : summary(mixture(1)).rows) names += row.name + ' ';
  CHECK(names == "gate.scores.weight gate.scores.bias gate.selection.balance.count expert.weight expert.bias ");
  CHECK(message_of([&] { pass<double>(ctx, mixture(quiet_nan), 2); }) ==
        "GlobalBalance: weight: expected a finite number, got nan");
  auto p = pass<double>(ctx, mixture(1), 2);
  p.params.branch.gate.selection.balance.count.resize(2);
  CHECK(message_of([&] { p.forward(); }) == "GlobalBalance: params.balance.count: expected [5], got [2]");
}
