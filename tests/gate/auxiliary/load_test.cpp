#include "gatefold/gate/auxiliary/load.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gatefold/gate/auxiliary/importance.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "support/rounded.hpp"
#include "support/selections.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Gate = ComposedGate<LinearScores, Independent, NoisyTopK<>, Importance, Load>;
const std::vector<double> mask{1, 0, 1, 1, 0, 1, 1};
const Noise noise{Random{Seed{5}, 2}};

struct Case {
  Index k = 2;
  bool learned = true, excluding = false;
  Index experts = 4;
};
NoisyTopK<> selection(const Case& c) {
  NoisyTopK<> p = c.learned ? NoisyTopK<>::reference({.k = c.k}) : NoisyTopK<>::vmoe({.k = c.k});
  p.deviation = 2;
  p.initial = Initial::normal(0.5);
  return p;
}
Load load(const Case& c) { return c.excluding ? Load::shazeer({.weight = 2}) : Load{.weight = 2}; }
GateAlone<Gate> alone(const Case& c, Index items = 7, View<const double, 1, Cpu> valid = {},
                      const Noise& drawn = noise) {
  return {
      {.scores = {.experts = c.experts}, .selection = selection(c), .auxiliary = {Importance{.weight = 2}, load(c)}},
      items,
      {.selection = drawn, .valid = valid}};
}
/// Equations (1) and (2) in loops, from sorted noisy values.
double smooth_load(const GateAlone<Gate>& a, const Case& c, const Load& loss) {
  const auto& s = a.saved.selection;
  std::vector<double> v(static_cast<std::size_t>(c.experts), 0);
  for (Index n = 0; n < s.value.extent(0); ++n) {
    if (a.extra.valid.data() && a.extra.valid(n) == 0) continue;
    for (Index e = 0; e < c.experts; ++e) {
      std::vector<double> values;
      for (Index f = 0; f < c.experts; ++f)
        if (!c.excluding || f != e) values.push_back(s.value(n, f));
      std::sort(values.rbegin(), values.rend());
      if (static_cast<Index>(values.size()) < c.k) {
        v[static_cast<std::size_t>(e)] += 1;  // fewer than k other experts: e is always picked
        continue;
      }
      const double u = (a.saved.logits(n, e) - values[static_cast<std::size_t>(c.k - 1)]) / s.deviation(n, e);
      v[static_cast<std::size_t>(e)] += 0.5 * (1 + std::erf(u / std::sqrt(2.0)));
    }
  }
  double mean = 0, spread = 0;
  for (const double x : v) mean += x / double(c.experts);
  for (const double x : v) spread += (x - mean) * (x - mean);
  return loss.weight * spread / (double(c.experts - loss.cv.ddof) * (mean * mean + loss.cv.epsilon));
}

}  // namespace

TEST_CASE("Load (1), (2): equals CV² of loads for any noise") {
  CHECK(Load{}.weight == 0.005);
  for (const Index k : {1, 2, 3, 4})
    for (const bool learned : {false, true})
      for (const bool excluding : {false, true})
        for (const auto& valid : {View<const double, 1, Cpu>{}, View<const double, 1, Cpu>(mask)}) {
          CAPTURE(k);
          CAPTURE(learned);
          CAPTURE(excluding);
          const Case c{k, learned, excluding};
          const auto a = alone(c, 7, valid);
          CHECK(a.saved.auxiliary(1) == doctest::Approx(smooth_load(a, c, load(c))).epsilon(1e-12));
          CHECK((a.saved.auxiliary(1) > 1e-3) == !(k == 4 && excluding));
        }
}

TEST_CASE("Load: gradients with Importance equal finite differences") {
  for (const Index k : {1, 2, 4})
    for (const bool learned : {false, true})
      for (const bool excluding : {false, true}) {
        CAPTURE(k);
        CAPTURE(learned);
        CAPTURE(excluding);
        const View<const double, 1, Cpu> all{}, masked(mask);
        auto a = alone({k, learned, excluding}, 7, k == 2 ? masked : all);
        const auto report = a.gradients();
        CHECK_MESSAGE(report, report.str());
        if (k == 2) CHECK(a.keeps_promises());
      }
}

TEST_CASE("Load: with K = E loss (2) has no gradient") {
  const Case c{4, true, true};
  auto a = alone(c);
  a.gate.auxiliary = {Importance{.weight = 0}, load(c)};
  set_zero(a.ctx, a.cotangent);
  a.forward();
  a.backward();
  CHECK(a.saved.auxiliary(1) == 0);
  for (const double g : values(a.grads)) CHECK(g == 0);
}

TEST_CASE("Load: without noise or items the loss is 0") {
  const auto quiet = alone({}, 7, {}, {});
  CHECK(quiet.saved.auxiliary(1) == 0);
  CHECK(quiet.saved.auxiliary(0) > 0);
  auto a = alone({}, 7, {}, {});
  const auto report = a.gradients({.zero = {"selection.noise"}});
  CHECK_MESSAGE(report, report.str());
  CHECK(alone({}, 0).saved.auxiliary(1) == 0);
}

TEST_CASE("Load: deviation 0 gives a finite loss and zero gradients") {
  using FloatGate = ComposedGate<LinearScores, Independent, NoisyTopK<>, Load>;
  for (const double step : {-60.0, -95.0, -103.0, -120.0})  // deviations: 1e-26, subnormal (twice), 0
    for (const auto& loss : {Load{.weight = 1}, Load::shazeer({.weight = 1})}) {
      CAPTURE(step);
      Cpu::Context ctx(1);
      const FloatGate gate =
          with_model_dim(FloatGate{.scores = {.experts = 3}, .selection = {.k = 1}, .auxiliary = {loss}}, 2);
      auto p = gate.init<float, Cpu>(ctx, Seed{1});
      for (Index e = 0; e < 3; ++e) p.selection.noise(0, e) = float(step), p.selection.noise(1, e) = 0;
      auto grads = zeros_like(ctx, p);
      auto x = constant_tensor<float>(ctx, 1, 4, 2), dx = constant_tensor<float>(ctx, 0, 4, 2);
      SparsePlan<float, Cpu> plan;
      Saved<FloatGate, float, Cpu> saved;
      const FloatGate::Extra<float, Cpu> extra{.selection = noise};
      gate.forward(ctx, p, x, plan, saved, extra);
      // All items certainly take the same expert, so v = (0, 0, N). Without `excluding`, the noisy value of this expert
      // is its own threshold, so v = (0, 0, N/2). The loss is 2 in both cases.
      CHECK(saved.auxiliary(0) == rounded<float>(2));
      auto dplan = plan.grad(ctx);
      ExtraGrad<FloatGate, float, Cpu> dextra;
      gate.backward(ctx, p, x, plan, saved, dplan, dx, grads, extra, dextra);
      for (const double g : values(grads, dx)) CHECK(g == 0);
    }
}

TEST_CASE("Load: ties at deviation 0 give probability 1/2, gradient 0") {
  Cpu::Context ctx(1);
  const auto rank = matrix<float>({{1, 1, 0}, {1, 1, 0}}),
             deviation = matrix<float>({{0, 0, 0}, {1e-40, 1e-40, 1e-40}});
  SparsePlan<float, Cpu> plan;
  plan.resize(2, 3, 2);
  for (Index n = 0; n < 2; ++n) plan.item(n) = n, plan.expert(n) = 0, plan.weight(n) = 1;
  plan.build(ctx);
  Tensor<float, 1, Cpu> loss(1);
  auto drank = constant_tensor<float>(ctx, 0, 2, 3), dvalue = constant_tensor<float>(ctx, 0, 2, 3),
       ddeviation = constant_tensor<float>(ctx, 0, 2, 3);
  const GateOutcome<float, Cpu> a{rank, rank, plan, {}, rank, {rank, deviation}};
  const Load load{.weight = 1};
  load.forward<float, Cpu>(ctx, a, loss);
  CHECK(loss(0) == rounded<float>(0.5));  // v = (1, 1, 0): variance 2/9, squared mean 4/9
  load.backward<float, Cpu>(ctx, a, GateOutcomeGrad<float, Cpu>{{}, {}, drank, {dvalue, ddeviation}});
  for (const double g : values(drank, dvalue, ddeviation)) CHECK(g == 0);
}

TEST_CASE("Load: sums v in double for a million items") {
  Cpu::Context ctx(1);
  const Index items = Index(1) << 20;
  const auto rank = constant_tensor<float>(ctx, 0, items, 2), value = constant_tensor<float>(ctx, 0.3, items, 2);
  auto deviation = constant_tensor<float>(ctx, 1, items, 2);
  for (Index n = 0; n < items; ++n) deviation(n, 1) = 2;
  SparsePlan<float, Cpu> plan;
  plan.resize(items, 2, items);
  for (Index n = 0; n < items; ++n) plan.item(n) = n, plan.expert(n) = 0, plan.weight(n) = 1;
  Tensor<float, 1, Cpu> loss(1);
  Load{.weight = 1}.forward<float, Cpu>(ctx, GateOutcome<float, Cpu>{rank, rank, plan, {}, rank, {value, deviation}},
                                        loss);
  const double a = 0.5 * std::erfc(0.3 / std::sqrt(2.0)), b = 0.5 * std::erfc(0.15 / std::sqrt(2.0));
  CHECK(loss(0) == rounded<float>((a - b) * (a - b) / ((a + b) * (a + b))));
}

TEST_CASE("Load: wrong options or selections throw before any write") {
  CHECK(message_of([] { Load{.cv = {.epsilon = -1}}.validate(3); }) == "Load: cv.epsilon: expected at least 0, got -1");
  CHECK(message_of([] { Load{}.validate(3); }) == "no ArgumentError");
  CHECK(Load::needs_noise);
  CHECK(Load::needs_picks_by_item);
  CHECK(Load::shazeer().cv.ddof == 0);
  CHECK(Load::shazeer().cv.epsilon == 1e-10);
}

TEST_CASE("Load: one expert, or equal logits, gives a finite loss") {
  CHECK(alone({.k = 1, .excluding = true, .experts = 1}).saved.auxiliary(1) == 0);
  CHECK(alone({.k = 1, .experts = 1}).saved.auxiliary(1) == 0);
  Cpu::Context ctx(1);
  const auto rank = equal_ranks(3, 3), deviation = equal_ranks(3, 3, 1), value = equal_ranks(3, 3, 0.5);
  SparsePlan<double, Cpu> plan;
  plan.resize(3, 3, 3);
  for (Index n = 0; n < 3; ++n) {
    plan.item(n) = n;
    plan.expert(n) = 0;
    plan.weight(n) = 1;
  }
  plan.build(ctx);
  Tensor<double, 1, Cpu> loss(1);
  const GateOutcome<double, Cpu> a{rank, rank, plan, {}, rank, {value, deviation}};
  for (const auto& l : {Load{}, Load::shazeer()}) {
    l.forward<double, Cpu>(ctx, a, loss);
    CHECK(loss(0) == 0);  // each expert has probability 1/2
  }
}
