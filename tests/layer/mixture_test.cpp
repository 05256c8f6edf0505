#include "gatefold/layer/mixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto mixture(Index experts, Index k, bool renormalise = true) {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = k, .renormalise = renormalise}},
                 Mlp<Gelu>{.model_dim = 6, .hidden_dim = 5}};
}
template <class P>
std::vector<double> in_loops(const P& p, Index k, bool renormalise) {
  std::vector<double> all;
  for (Index n = 0; n < p.x.extent(0); ++n) {
    const auto u = naive::mixture(
        p.params.branch, naive::row(p.x, n), k, renormalise,
        [&](Index e, const naive::Row& x) { return naive::mlp(p.params.branch.expert, e, x, naive::gelu); });
    all.insert(all.end(), u.begin(), u.end());
  }
  return all;
}

}  // namespace

TEST_CASE("Mixture (1): equals loops (llama.cpp #6527, vLLM #51521)") {
  Cpu::Context ctx(2);
  for (const Index experts : {1, 2, 3, 7, 60, 257})
    for (const Index k : {Index(1), Index(2), experts})
      for (const bool renormalise : {true, false}) {
        if (k > experts) continue;
        CAPTURE(experts);
        CAPTURE(k);
        auto p = pass<double>(ctx, mixture(experts, k, renormalise), 11);
        p.forward();
        CHECK(difference(values(p.y), in_loops(p, k, renormalise)) <= 1e-13);
      }
}

TEST_CASE("Mixture: float agrees with loops in double") {
  Cpu::Context ctx(2);
  auto p = pass<float>(ctx, mixture(8, 2), 300);
  p.forward();
  CHECK(difference(values(p.y), in_loops(p, 2, true)) <= 1e-6);  // sums of some ten floats
}

TEST_CASE("Mixture: one expert computes all items (CUTLASS #2547, DeepGEMM #20)") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, mixture(5, 1, false), 40);
  p.params.branch.gate.scores.bias(3) = 50;
  p.forward();
  const auto& offsets = p.saved.branch.plan.offsets;
  CHECK(values(offsets) == std::vector<double>{0, 0, 0, 0, 40, 40});
  CHECK(difference(values(p.y), in_loops(p, 1, false)) <= 1e-13);
  p.backward();
  // Experts without items have gradient exactly 0.
  for_each_tensor(
      [&](const Name&, const auto& t) {
        const Index part = t.size() / 5;
        for (Index i = 0; i < t.size(); ++i) CHECK((t.data()[i] == 0) == (i / part != 3));
      },
      p.grads.branch.expert);
}

TEST_CASE("Mixture: an empty batch gives no output and no gradient") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, mixture(5, 2), 0);
  p.forward();
  p.backward();
  for (const double g : values(p.grads)) CHECK(g == 0);
  CHECK(p.saved.branch.plan.items() == 0);
}

TEST_CASE("Mixture: old memory contents change nothing (pytorch #193633)") {
  Cpu::Context fresh(1), used(1);
  auto clean = pass<float>(fresh, mixture(4, 2), 6), second = pass<float>(used, mixture(4, 2), 6);
  auto large = pass<float>(used, mixture(4, 2), 90);
  large.forward();
  // The small batch reuses the memory of the larger one, filled with NaN.
  second.saved = std::move(large.saved);
  auto& s = second.saved.branch;
  for (auto* t : {&s.expert.pre, &s.gate.logits, &s.gate.probabilities}) fill(used, t->view(), float(quiet_nan));
  fill(used, s.plan.weight.view(), float(quiet_nan));
  fill(used, second.y.view(), float(quiet_nan));
  {
    auto mark = used.mark();
    fill(used, used.scratch<float>(1 << 16), float(quiet_nan));
  }
  for (auto* p : {&clean, &second}) {
    p->forward();
    p->backward();
  }
  CHECK(same_bits(clean.outcome(), second.outcome()));
}

TEST_CASE("Mixture: a step runs once for each element of u") {
  for (const int threads : {1, 3}) {
    Cpu::Context ctx(threads);
    const Stepped u = with_step_at_the_end<float>(ctx, mixture(8, 2), 300);
    CHECK(same_bits(u.after, u.forward));
    CHECK(same_bits(u.after, u.infer));
  }
}

TEST_CASE("Mixture: extra inputs are optional; T and B are deduced") {
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 4}};
  const auto params = mixture.init<double, Cpu>(ctx, Seed{1});
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 5, 4), du = uniform_tensor<double>(ctx, Seed{3}, 1, 5, 4);
  Tensor<double, 2, Cpu> u(5, 4), same(5, 4);
  Saved<decltype(mixture), double, Cpu> saved;
  mixture.forward(ctx, params, x, u, saved);
  mixture.infer(ctx, params, x, same);
  CHECK(same_bits(values(u), values(same)));
  infer(mixture, ctx, params, x, same);
  CHECK(same_bits(values(u), values(same)));
  auto grads = zeros_like(ctx, params), expected = zeros_like(ctx, params);
  auto dx = zeros_like(ctx, x), dx_expected = zeros_like(ctx, x);
  backward(mixture, ctx, params, x, saved, du, dx, grads);
  ExtraGrad<decltype(mixture), double, Cpu> nothing{};
  mixture.backward(ctx, params, x, saved, du, dx_expected, expected, {}, nothing);
  CHECK(same_bits(values(dx), values(dx_expected)));
  CHECK(same_bits(values(grads), values(expected)));
  // Runs the parts separately.
  const auto gate = mixture.filled_gate();
  SparsePlan<double, Cpu> plan, plan_of_forward;
  Saved<SoftmaxTopK, double, Cpu> saved_gate;
  gate.forward(ctx, params.gate, x, plan_of_forward, saved_gate);
  infer_gate(gate, ctx, params.gate, x, plan);
  CHECK(same_bits(values(plan.weight), values(plan_of_forward.weight)));
  const auto in = plan.dispatch(ctx, x.view());
  Tensor<double, 2, Cpu> z(in.groups.slots, 4);
  infer_expert(mixture.expert, ctx, params.expert, in.groups, in.x, z);
  plan.combine(ctx, z, same);
  CHECK(same_bits(values(u), values(same)));
}

TEST_CASE("Mixture: an output has the same bits in any batch") {
  Cpu::Context ctx(2);
  auto large = pass<float>(ctx, mixture(8, 2), 300), seven = pass<float>(ctx, mixture(8, 2), 7),
       one = pass<float>(ctx, mixture(8, 2), 1);
  large.forward();
  for (Index first = 0; first + 7 <= 300; first += 7) {
    copy(ctx, large.x.view().rows(first, 7), seven.x.view());
    seven.forward();
    CHECK(std::memcmp(&large.y(first, 0), seven.y.data(), 7 * 6 * sizeof(float)) == 0);
  }
  for (Index n = 0; n < 300; ++n) {
    copy(ctx, large.x.view().rows(n, 1), one.x.view());
    one.forward();
    CHECK(std::memcmp(&large.y(n, 0), one.y.data(), 6 * sizeof(float)) == 0);
  }
}

TEST_CASE("Mixture: threads change no bit (transformers #43360, sglang #33511)") {
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 16}, .selection = {.k = 2}},
                      Mlp<Gelu>{.model_dim = 48, .hidden_dim = 96}};
  std::vector<double> first;
  for (const int threads : {1, 2, 3, 8}) {
    Cpu::Context ctx(threads);
    auto p = pass<float>(ctx, layer, 700);
    p.forward();
    p.backward();
    if (threads == 1) first = p.outcome();
    CHECK(same_bits(p.outcome(), first));
  }
}

TEST_CASE("Mixture: the gate takes its model dimension from the experts") {
  Cpu::Context ctx(1);
  const Mixture deduced{SoftmaxTopK{.scores = {.experts = 3}}, Mlp<Gelu>{.model_dim = 6, .hidden_dim = 5}};
  const auto p = deduced.init<float, Cpu>(ctx, Seed{1});
  CHECK(p.gate.scores.weight.extent(0) == 6);
  CHECK(p.expert.up.extent(0) == 3);
  const Mixture conflict{SoftmaxTopK{.scores = {.model_dim = 4, .experts = 3}},
                         Mlp<Gelu>{.model_dim = 6, .hidden_dim = 5}};
  CHECK(message_of([&] { (void)conflict.init<float, Cpu>(ctx, Seed{1}); }) ==
        "LinearScores: model_dim: expected 6 (the width of the items), got 4");
}

TEST_CASE("Mixture: wrong shapes or options throw before any write") {
  Cpu::Context ctx(1);
  const auto message = [&](auto&& change) {
    auto p = pass<float>(ctx, mixture(3, 2), 10);
    p.saved.branch.expert.pre = constant_tensor<float>(ctx, 5, 1, 1);
    change(p);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    CHECK(values(p.saved.branch.expert.pre) == std::vector<double>{5});
    CHECK(p.saved.branch.plan.expert.size() == 0);
    CHECK(p.saved.branch.gate.logits.size() == 0);
    return text;
  };
  CHECK(message([](auto& p) { p.x.resize(10, 7); }) == "Mixture.forward: x: expected [?, 6], got [10, 7]");
  CHECK(message([](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 9, 6); }) ==
        "Mixture.forward: u: expected [10, 6], got [9, 6]");
  CHECK(message([](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 10, 1); }) ==
        "Mixture.forward: u: expected [10, 6], got [10, 1]");
  CHECK(message([](auto& p) { p.params.branch.gate.scores.bias.resize(2); }) ==
        "LinearScores: params.bias: expected [3], got [2]");
  CHECK(message([](auto& p) { p.params.branch.expert.down.resize(4, 5, 6); }) ==
        "Mlp: params.down: expected [3, 5, 6], got [4, 5, 6]");
  CHECK(message([](auto& p) { p.layer.branch.gate.selection.k = 4; }) ==
        "TopK: k: expected 1 <= k <= experts = 3, got 4");
  CHECK(message([](auto& p) { p.layer.branch.gate.scores.model_dim = 5; }) ==
        "LinearScores: model_dim: expected 6 (the width of the items), got 5");
  const std::vector<float> mask(3, 1);
  CHECK(message([&](auto& p) { p.extra.valid = mask; }) == "Gate.forward: extra.valid: expected [10], got [3]");
}

TEST_CASE("Mixture: experts may be narrower than the items") {
  Cpu::Context ctx(1);
  const auto report = check::conformance<Cpu, double>(
      Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Linear{.model_dim = 4, .output_dim = 1}},
      {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE_TEMPLATE("Mixture: gradients and conformance of every gate with every expert", ExpertT, Linear, Mlp<GeluTanh>,
                   GatedMlp<Silu>) {
  ExpertT expert{.model_dim = 4};
  if constexpr (requires { expert.hidden_dim; }) expert.hidden_dim = 5;
  const auto with = [&](auto gate) {
    const auto report = check::conformance<Cpu, double>(Mixture{gate, expert});
    CHECK_MESSAGE(report, report.str());
  };
  with(SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}});
  with(SoftmaxDense{.scores = {.experts = 3}});
  with(WithAuxiliary<SoftmaxTopK, Balance, ZLoss>{.scores = {.experts = 4},
                                                  .selection = {.k = 1, .renormalise = false},
                                                  .auxiliary = {Balance{.weight = 1}, ZLoss{.weight = 1}}});
}
