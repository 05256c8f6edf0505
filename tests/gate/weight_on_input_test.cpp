#include "gatefold/gate/weight_on_input.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
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

TEST_CASE("WeightOnInput (1): weights the items, and sums the outputs") {
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads);
    auto p = pass<double>(ctx, Mixture{WeightOnInput{softmax(5)}, Mlp<Gelu>{.model_dim = 6, .hidden_dim = 9}}, 40);
    auto bias = p.params.branch.expert.up_bias.view();
    fill_uniform(ctx, Seed{9}, -1, 1, bias);  // so that the output for the input 0 is not 0
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
    const auto report = check::conformance<Cpu, double>(Mixture{WeightOnInput{gate}, GatedMlp<Silu>{3, 4}}, {});
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

TEST_CASE("WeightOnInput: keeps the names, options and picks of its gate") {
  Cpu::Context ctx(1);
  const Mixture layer{WeightOnInput{softmax(0)}, Linear{.model_dim = 4}};
  Mixture filled = layer;
  filled.gate = with_experts(filled.gate, 3);
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

TEST_CASE("WeightOnInput: NaN stays in its item") {
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

namespace {

struct Pick {
  Index item, expert;
  double weight;
};
/// Items 0 and 2 have two picks, item 1 has none, and one pick of item 3 is dropped.
const std::vector<Pick> some_picks{{0, 2, 0.5}, {0, 1, -2}, {2, 0, 3}, {2, 2, 0.25}, {3, ~Index(1), 7}, {3, 0, 1.5}};
constexpr Index items = 4, experts = 3, width = 5;

template <class T>
WeightedInputPlan<T, Cpu> plan_of(Cpu::Context& ctx) {
  WeightedInputPlan<T, Cpu> plan;
  plan.resize(items, experts, static_cast<Index>(some_picks.size()));
  for (Index p = 0; p < plan.item.size(); ++p) {
    const Pick& pick = some_picks[static_cast<std::size_t>(p)];
    plan.item(p) = pick.item, plan.expert(p) = pick.expert, plan.weight(p) = static_cast<T>(pick.weight);
  }
  plan.build(ctx);
  return plan;
}
/// Returns the kept picks in slot order: by expert, then in the order of picks.
std::vector<Pick> by_slot() {
  std::vector<Pick> slots;
  for (Index e = 0; e < experts; ++e)
    for (const Pick& pick : some_picks)
      if (pick.expert == e) slots.push_back(pick);
  return slots;
}

}  // namespace

TEST_CASE_TEMPLATE("WeightedInputPlan (1): weights multiply inputs, not outputs", T, float, double) {
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads);
    auto plan = plan_of<T>(ctx);
    const auto x = uniform_tensor<T>(ctx, Seed{1}, 1, items, width);
    const auto in = plan.dispatch(ctx, x);
    CHECK(in.groups.slots == 6);  // one slot is unused
    CHECK(in.groups.rows.empty());
    const auto slots = by_slot();
    Index s = 0;
    for (const Pick& pick : slots) {
      CHECK(in.groups.expert(s) == pick.expert);
      for (Index j = 0; j < width; ++j) CHECK(in.x(s, j) == static_cast<T>(pick.weight) * x(pick.item, j));
      ++s;
    }
    CHECK(in.groups.expert(s) == -1);

    const auto z = uniform_tensor<T>(ctx, Seed{2}, 1, 6, width);
    Tensor<T, 2, Cpu> out(items, width);
    plan.combine(ctx, z, out);
    for (Index n = 0; n < items; ++n)
      for (Index j = 0; j < width; ++j) {
        T sum = 0;
        for (std::size_t i = 0; i < slots.size(); ++i)
          if (slots[i].item == n) sum += z(Index(i), j);
        CHECK(out(n, j) == sum);
      }
  }
}

TEST_CASE("WeightedInputPlan (2): gradients of weights and items equal loops") {
  Cpu::Context ctx(2);
  auto plan = plan_of<double>(ctx);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, width),
             dslots = uniform_tensor<double>(ctx, Seed{2}, 1, 6, width),
             dout = uniform_tensor<double>(ctx, Seed{3}, 1, items, width);
  (void)plan.dispatch(ctx, x);
  auto mark = ctx.mark();
  auto d = plan.grad(ctx);
  auto dx = constant_tensor<double>(ctx, 10, items, width), dz = constant_tensor<double>(ctx, -9, 6, width);
  plan.combine_backward(ctx, x, dout, dz, d);
  plan.dispatch_backward(ctx, x, dslots, dx, d);
  auto expected = constant_tensor<double>(ctx, 10, items, width);
  const auto slots = by_slot();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto s = static_cast<Index>(i);
    double dot = 0;
    for (Index j = 0; j < width; ++j) {
      dot += dslots(s, j) * x(slots[i].item, j);
      expected(slots[i].item, j) += slots[i].weight * dslots(s, j);
      CHECK(dz(s, j) == dout(slots[i].item, j));
    }
    CHECK(d.weight(plan.pick(s)) == doctest::Approx(dot).epsilon(1e-14));
  }
  CHECK(difference(values(dx), values(expected)) <= 1e-14);
  CHECK(dz(5, 0) == -9);    // the unused slot
  CHECK(d.weight(4) == 0);  // the dropped pick
}

TEST_CASE("WeightedInputPlan: dispatch throws until the plan is built") {
  Cpu::Context ctx(1);
  WeightedInputPlan<double, Cpu> plan;
  plan.resize(2, 3, 2);
  const Tensor<double, 2, Cpu> x(2, width);
  CHECK(message_of([&] { (void)plan.dispatch(ctx, x); }) ==
        "SparsePlan.dispatch: plan: expected a built plan (the gate must call plan.build(ctx)), got a plan that is not "
        "built");
}
