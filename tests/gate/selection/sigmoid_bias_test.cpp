#include "gatefold/gate/selection/sigmoid_bias.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/mixing/token_similarity.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clone.hpp"
#include "gatefold/train/load_parameters.hpp"
#include "gatefold/train/select_experts.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using BiasGate = ComposedGate<LinearScores, Independent, SigmoidBias>;

auto mixture(const SigmoidBias& selection, Index experts) {
  return Mixture{BiasGate{.scores = {.experts = experts}, .selection = selection}, Linear{.model_dim = 4}};
}
SparsePlan<double, Cpu> select(const SigmoidBias& selection, const Tensor<double, 2, Cpu>& rank,
                               const std::vector<double>& bias) {
  Cpu::Context ctx(2);
  SigmoidBias filled = selection;
  filled.experts = rank.extent(1);
  auto p = filled.init<double, Cpu>(ctx, {});
  for (std::size_t e = 0; e < bias.size(); ++e) p.bias(e) = bias[e];
  SparsePlan<double, Cpu> plan;
  Nothing<double, Cpu> none;
  filled.forward(ctx, p, Candidates<double, Cpu>{rank, rank, rank}, plan, none, none);
  return plan;
}
double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }
double largest_share(const SparsePlan<double, Cpu>& plan) {
  Index most = 0;
  for (Index e = 0; e < plan.experts(); ++e) most = std::max(most, plan.offsets(e + 1) - plan.offsets(e));
  return double(most) * double(plan.experts()) / double(plan.offsets(plan.experts()));
}

}  // namespace

TEST_CASE("SigmoidBias (1), (2): bias changes picks but not weights") {
  Cpu::Context ctx(1);
  for (const Index experts : {1, 4, 257})
    for (const bool renormalise : {false, true}) {
      CAPTURE(experts);
      const Index k = std::min<Index>(experts, 3), items = 10;
      const SigmoidBias selection{.k = k, .renormalise = renormalise, .scale = 2.5};
      const auto rank = uniform_tensor<double>(ctx, Seed{1}, 4, items, experts);
      const auto bias = values(uniform_tensor<double>(ctx, Seed{2}, 0.5, experts));
      const auto plan = select(selection, rank, bias);
      REQUIRE(plan.expert.size() == items * k);
      for (Index n = 0; n < items; ++n) {
        naive::Row biased;
        for (Index e = 0; e < experts; ++e) biased.push_back(sigmoid(rank(n, e)) + bias[std::size_t(e)]);
        const auto best = naive::best(biased, k);
        double total = 0;
        for (const Index e : best) total += sigmoid(rank(n, e));
        for (Index j = 0; j < k; ++j) {
          const Index e = best[std::size_t(j)];
          CHECK(plan.item(n * k + j) == n);
          CHECK(plan.expert(n * k + j) == e);
          CHECK(plan.weight(n * k + j) ==
                doctest::Approx(2.5 * sigmoid(rank(n, e)) / (renormalise ? total : 1)).epsilon(1e-13));
        }
      }
    }
}

TEST_CASE("SigmoidBias (2): weights sum to scale even if σ underflows") {
  const auto rank = matrix<double>({{-1000, -1001, -2000}, {1000, 900, 800}});
  const auto plan = select({.k = 2, .scale = 3}, rank, {});
  CHECK(plan.weight(0) == rounded(3 / (1 + std::exp(-1.0))));
  CHECK(plan.weight(0) + plan.weight(1) == rounded(3));
  CHECK(plan.weight(2) == rounded(1.5));
  const auto biased = select({.k = 2, .scale = 3}, rank, {5, 5, 5});
  CHECK(same_bits(values(plan.weight), values(biased.weight)));
}

TEST_CASE("SigmoidBias: sqrt_softplus picks and weighs by √(log(1 + e^z))") {
  Cpu::Context ctx(1);
  const auto score = [](double z) { return std::sqrt(std::log1p(std::exp(z))); };
  const auto rank = uniform_tensor<double>(ctx, Seed{1}, 4, 10, 6);
  const std::vector<double> bias{0.5, -0.5, 0, 1, -1, 0.2};
  for (const bool renormalise : {false, true}) {
    const auto plan =
        select({.k = 3, .renormalise = renormalise, .scale = 1.5, .score = RouterScore::sqrt_softplus}, rank, bias);
    for (Index n = 0; n < 10; ++n) {
      naive::Row biased;
      for (Index e = 0; e < 6; ++e) biased.push_back(score(rank(n, e)) + bias[std::size_t(e)]);
      const auto best = naive::best(biased, 3);
      double total = 0;
      for (const Index e : best) total += score(rank(n, e));
      for (Index j = 0; j < 3; ++j) {
        CHECK(plan.expert(n * 3 + j) == best[std::size_t(j)]);
        CHECK(plan.weight(n * 3 + j) ==
              doctest::Approx(1.5 * score(rank(n, best[std::size_t(j)])) / (renormalise ? total : 1)).epsilon(1e-13));
      }
    }
  }
  // In row 0, log(1 + e^z) underflows; in row 1, it equals z. The weights are those of the limits √(e^z) and √z.
  const auto extreme = matrix<double>({{-1000, -1002, -3000}, {2500, 900, 400}, {-30, -30.5, -900}});
  const auto plan = select({.k = 2, .score = RouterScore::sqrt_softplus}, extreme, {});
  CHECK(plan.weight(0) == rounded(1 / (1 + std::exp(-1.0))));
  CHECK(plan.weight(2) == rounded(50.0 / 80.0));
  CHECK(plan.weight(4) == rounded(1 / (1 + score(-30.5) / score(-30.0))));
}

TEST_CASE("SigmoidBias: softmax picks and weighs by q, with a bias") {
  Cpu::Context ctx(1);
  const auto rank = uniform_tensor<double>(ctx, Seed{1}, 4, 10, 6);
  const std::vector<double> bias{0.5, -0.5, 0, 0.3, -1, 0.2};
  for (const bool renormalise : {false, true}) {
    const SigmoidBias selection{
        .k = 3, .renormalise = renormalise, .scale = 1.5, .experts = 6, .score = RouterScore::softmax};
    Tensor<double, 2, Cpu> q(10, 6);
    auto p = selection.init<double, Cpu>(ctx, {});
    SparsePlan<double, Cpu> plan;
    Nothing<double, Cpu> none;
    for (Index n = 0; n < 10; ++n)
      for (Index e = 0; e < 6; ++e) q(n, e) = naive::softmax(naive::row(rank, n))[std::size_t(e)];
    for (Index e = 0; e < 6; ++e) p.bias(e) = bias[std::size_t(e)];
    selection.forward(ctx, p, Candidates<double, Cpu>{rank, rank, q}, plan, none, none);
    for (Index n = 0; n < 10; ++n) {
      naive::Row biased;
      for (Index e = 0; e < 6; ++e) biased.push_back(q(n, e) + bias[std::size_t(e)]);
      const auto best = naive::best(biased, 3);
      double total = 0;
      for (const Index e : best) total += q(n, e);
      for (Index j = 0; j < 3; ++j) {
        CHECK(plan.expert(n * 3 + j) == best[std::size_t(j)]);
        CHECK(plan.weight(n * 3 + j) ==
              doctest::Approx(1.5 * q(n, best[std::size_t(j)]) / (renormalise ? total : 1)).epsilon(1e-13));
      }
    }
  }
}

TEST_CASE("SigmoidBias: renormalised softmax weights survive underflow") {
  Cpu::Context ctx(1);
  auto m = pass<float>(ctx, mixture({.k = 2, .scale = 3, .score = RouterScore::softmax}, 3), 1);
  fill(ctx, m.params.branch.gate.scores.weight.view(), 0);
  auto& logits = m.params.branch.gate.scores.bias;
  logits(0) = 500, logits(1) = 1, logits(2) = 0;  // q of experts 1 and 2 underflows to 0
  m.params.branch.gate.selection.bias(1) = 5;
  m.params.branch.gate.selection.bias(2) = 4;
  m.forward();
  const auto& plan = m.saved.branch.plan;
  CHECK(plan.expert(0) == 1);
  CHECK(plan.expert(1) == 2);
  CHECK(plan.weight(0) == rounded<float>(3 / (1 + std::exp(-1.0))));
  CHECK(plan.weight(0) + plan.weight(1) == rounded<float>(3));
}

TEST_CASE("SigmoidBias (4): picks only from the best groups") {
  Cpu::Context ctx(1);
  for (const auto& [of_experts, of_groups, of_top] :
       {std::tuple<Index, Index, Index>{12, 4, 2}, {8, 8, 3}, {6, 2, 1}, {9, 3, 3}, {4, 2, 1}})
    for (const bool even : {false, true})
      for (const Index terms : {1, 2}) {
        const Index experts = of_experts, groups = of_groups, top = of_top;  // a macro below captures them
        CAPTURE(experts);
        const Index size = experts / groups, k = 2, items = 12;
        auto rank = uniform_tensor<double>(ctx, Seed{3}, 4, items, experts);
        if (even)
          for (Index i = 0; i < rank.size(); ++i) rank.data()[i] = std::round(rank.data()[i] / 3);
        const auto bias = values(uniform_tensor<double>(ctx, Seed{4}, even ? 0 : 0.5, experts));
        const auto plan = select({.k = k, .groups = groups, .top_groups = top, .group_terms = terms}, rank, bias);
        for (Index n = 0; n < items; ++n) {
          naive::Row biased, worth;
          for (Index e = 0; e < experts; ++e) biased.push_back(sigmoid(rank(n, e)) + bias[std::size_t(e)]);
          for (Index g = 0; g < groups; ++g) {
            naive::Row of(biased.begin() + g * size, biased.begin() + (g + 1) * size);
            std::sort(of.rbegin(), of.rend());
            worth.push_back(of[0] + (size > 1 && terms == 2 ? of[1] : 0));
          }
          const auto best = naive::best(worth, top);
          for (Index e = 0; e < experts; ++e)
            if (std::find(best.begin(), best.end(), e / size) == best.end()) biased[std::size_t(e)] = -100;
          const auto picks = naive::best(biased, k);
          for (Index j = 0; j < k; ++j) CHECK(plan.expert(n * k + j) == picks[std::size_t(j)]);
        }
      }
}

TEST_CASE("SigmoidBias (4): NaN and biases of −∞ rank last") {
  const Index experts = 12, groups = 4, size = 3, top = 2, k = 5, items = 400;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double numbers[] = {quiet_nan, -infinity, infinity, -1, 0, 2};
  Cpu::Context ctx(1);
  const auto draws = uniform_tensor<double>(ctx, Seed{5}, 1, items + 1, experts);
  const auto drawn = [&](Index n, Index e) { return std::size_t((draws(n, e) + 1) / 2 * 6); };
  Tensor<double, 2, Cpu> rank(items, experts);
  for (Index n = 0; n < items; ++n)
    for (Index e = 0; e < experts; ++e) rank(n, e) = numbers[drawn(n, e)];
  for (const bool without : {false, true}) {  // whether the bias excludes experts
    std::vector<double> bias(experts, 0.0);
    for (Index e = 0; e < experts && without; ++e) bias[std::size_t(e)] = drawn(items, e) < 2 ? -infinity : 0;
    const auto plan = select({.k = k, .groups = groups, .top_groups = top}, rank, bias);
    // NaN comes after all numbers; equal numbers keep their order.
    const auto in_order = [](std::vector<double> v) {
      std::vector<std::size_t> order(v.size());
      std::iota(order.begin(), order.end(), std::size_t(0));
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::isnan(v[a]) || std::isnan(v[b]) ? !std::isnan(v[a]) && std::isnan(v[b]) : v[a] > v[b];
      });
      return order;
    };
    for (Index n = 0; n < items; ++n) {
      std::vector<double> biased, worth;
      for (Index e = 0; e < experts; ++e) biased.push_back(sigmoid(rank(n, e)) + bias[std::size_t(e)]);
      for (Index g = 0; g < groups; ++g) {
        const std::vector<double> of(biased.begin() + g * size, biased.begin() + (g + 1) * size);
        const auto best = in_order(of);
        worth.push_back(of[best[0]] + of[best[1]]);
      }
      auto kept = in_order(worth);
      kept.resize(top);
      std::sort(kept.begin(), kept.end());
      std::vector<double> eligible;
      for (const std::size_t g : kept)
        for (std::size_t e = g * size; e < (g + 1) * size; ++e)
          eligible.push_back(biased[e] > -infinity ? biased[e] : -infinity);
      const auto order = in_order(eligible);
      for (std::size_t j = 0; j < k; ++j)
        CHECK(plan.expert(n * k + Index(j)) == Index(kept[order[j] / size] * size + order[j] % size));
    }
  }
}

TEST_CASE("SigmoidBias: equal logits pick lower experts; the bias breaks ties") {
  const auto rank = matrix<double>({{0.5, 0.5, 0.5}});
  const auto even = select({.k = 2}, rank, {});
  CHECK(even.expert(0) == 0);
  CHECK(even.expert(1) == 1);
  CHECK(even.weight(0) == 0.5);
  const auto biased = select({.k = 2}, rank, {0, 0, 0.001});
  CHECK(biased.expert(0) == 2);
  CHECK(biased.expert(1) == 0);
}

TEST_CASE("SigmoidBias: NaN stays in its item") {
  const auto clean = matrix<double>({{1, 2, 3}, {3, 1, 2}});
  auto rank = matrix<double>({{1, 2, 3}, {quiet_nan, quiet_nan, quiet_nan}});
  const auto expected = select({.k = 2}, clean, {}), plan = select({.k = 2}, rank, {});
  for (Index j = 0; j < 2; ++j) {
    CHECK(plan.expert(j) == expected.expert(j));
    CHECK(plan.weight(j) == expected.weight(j));
    CHECK(plan.expert(2 + j) == j);
    CHECK(std::isnan(plan.weight(2 + j)));
  }
}

TEST_CASE("SigmoidBias: gradients and conformance, with and without renormalising") {
  for (const bool renormalise : {false, true})
    for (const Index groups : {1, 2}) {
      const auto report = check::conformance<Cpu, double>(
          mixture({.renormalise = renormalise, .scale = 2.5, .groups = groups}, 4), {.items_are_independent = true});
      CHECK_MESSAGE(report, report.str());
    }
  for (const bool renormalise : {false, true}) {
    const auto report = check::conformance<Cpu, double>(
        mixture({.renormalise = renormalise, .scale = 1.5, .score = RouterScore::sqrt_softplus}, 4),
        {.items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  }
  for (const bool renormalise : {false, true})
    for (const Index groups : {1, 2}) {
      const auto report = check::conformance<Cpu, double>(
          mixture({.renormalise = renormalise, .scale = 1.5, .groups = groups, .score = RouterScore::softmax}, 4),
          {.items_are_independent = true});
      CHECK_MESSAGE(report, report.str());
    }
  Cpu::Context ctx(1);
  for (const bool renormalise : {false, true}) {
    const ComposedGate<LinearScores, TokenSimilarity, SigmoidBias> mixing{
        .scores = {.experts = 4}, .selection = {.renormalise = renormalise, .score = RouterScore::softmax}};
    const auto report = check::gradients(ctx, Mixture{mixing, Linear{.model_dim = 4}});
    CHECK_MESSAGE(report, report.str());
  }
  const auto one = check::gradients(ctx, mixture({.k = 1}, 3), {.zero = {"gate.scores.weight", "gate.scores.bias"}});
  CHECK_MESSAGE(one, one.str());
  const auto learning = check::gradients(ctx, mixture({.k = 1, .renormalise = false}, 3));
  CHECK_MESSAGE(learning, learning.str());
}

TEST_CASE("SigmoidBias (3): backward computes E (mean load − load)") {
  Cpu::Context ctx(1);
  auto m = pass<double>(ctx, mixture({.k = 1, .speed = 0.25}, 3), 5);
  fill(ctx, m.params.branch.gate.scores.weight.view(), 0);
  for (Index e = 0; e < 3; ++e) m.params.branch.gate.scores.bias(e) = 1 - double(e);
  const std::vector<double> valid{1, 1, 0, 1, 1};
  m.extra.valid = valid;
  m.forward();  // all four items go to expert 0
  m.backward();
  auto& grads = m.grads.branch.gate.selection;
  CHECK(values(grads.bias) == std::vector<double>{4 - 3 * 4, 4, 4});
  m.backward();  // adds to the load
  CHECK(values(grads.bias) == std::vector<double>{-16, 8, 8});
  grads.bias(2) = 0;  // an expert with the mean load keeps its bias
  adapt_params(ctx, m.params, m.grads);
  CHECK(values(m.params.branch.gate.selection.bias) == std::vector<double>{-0.25, 0.25, 0});
}

TEST_CASE("SigmoidBias (3): the load includes dropped picks") {
  Cpu::Context ctx(1);
  const Capacity<SigmoidBias> selection = with_experts(Capacity<SigmoidBias>{.selection = {.k = 1}, .slots = 1}, 3);
  const auto rank = matrix<double>({{1, 0, 0}, {1, 0, 0}, {1, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}});
  auto p = selection.init<double, Cpu>(ctx, {});
  auto grads = zeros_like(ctx, p);
  SparsePlan<double, Cpu> plan;
  Nothing<double, Cpu> none;
  Saved<Capacity<SigmoidBias>, double, Cpu> saved;
  Candidates<double, Cpu> c{rank, rank, rank};
  selection.forward(ctx, p, c, plan, saved, none);
  CHECK(values(plan.offsets) == std::vector<double>{0, 1, 2, 3});  // one pick each, three dropped
  auto mark = ctx.mark();
  const auto dplan = plan.grad(ctx);
  auto dx = zeros_like(ctx, rank), drank = zeros_like(ctx, rank), dq = zeros_like(ctx, rank);
  const auto backward = [&] {
    selection.backward(ctx, p, c, plan, saved, dplan, CandidatesGrad<double, Cpu>{dx, drank, dq}, grads, none);
  };
  backward();
  CHECK(values(grads.bias) == std::vector<double>{6 - 3 * 4, 3, 3});
  c.first_evaluation = false;  // the same step evaluated again: already counted
  backward();
  CHECK(values(grads.bias) == std::vector<double>{-6, 3, 3});
  p.adapt(ctx, grads);
  CHECK(values(p.bias) == std::vector<double>{-0.001, 0.001, 0.001});
}

TEST_CASE("SigmoidBias (3): loads count once if the rule evaluates twice") {
  Cpu::Context ctx(1);
  auto twice = pass<double>(ctx, Residual{update::SharpnessAware{}, mixture({.k = 1}, 3)}, 5);
  fill(ctx, twice.params.branch.gate.scores.weight.view(), 0);
  for (Index e = 0; e < 3; ++e) twice.params.branch.gate.scores.bias(e) = 1 - double(e);
  twice.forward();
  twice.backward();
  CHECK(values(twice.grads.branch.gate.selection.bias) == std::vector<double>{5 - 3 * 5, 5, 5});
}

TEST_CASE("SigmoidBias (3): training evens out skewed loads") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 64, 4),
             target = uniform_tensor<double>(ctx, Seed{3}, 1, 64, 4);
  for (const double speed : {0.02, 0.0}) {
    const optim::AdamW adam{.lr = 1e-4, .decay = 0.5};
    Trainer trainer{ctx, mixture({.k = 1, .speed = speed}, 4), MeanSquaredError{}, adam, Seed{1}, Element<double>{}};
    auto& gate = trainer.params.branch.gate;
    gate.scores.bias(2) += 2;
    gate.selection.bias(1) = 0.125;
    trainer.step(x, target);
    CHECK(largest_share(trainer.saved.branch.plan) > 3);
    for (int i = 0; i < 60; ++i) trainer.step(x, target);
    if (speed > 0) {
      CHECK(largest_share(trainer.saved.branch.plan) < 1.5);
    } else {
      CHECK(largest_share(trainer.saved.branch.plan) > 3);
      CHECK(values(gate.selection.bias) == std::vector<double>{0, 0.125, 0, 0});
    }
    CHECK(gate.selection.speed(0) == speed);
  }
}

TEST_CASE("SigmoidBias (5): centred biases have mean 0") {
  Cpu::Context ctx(1);
  const SigmoidBias selection{.speed = 0.25, .experts = 4, .centred = true};
  auto p = selection.init<double, Cpu>(ctx, {});
  auto grads = zeros_like(ctx, p);
  const double violation[] = {-9, 3, 3, 3}, before[] = {0.5, 0.25, -0.25, 0};
  for (Index e = 0; e < 4; ++e) grads.bias(e) = violation[e], p.bias(e) = before[e];
  p.adapt(ctx, grads);  // 0.25, 0.5, 0, 0.25 by (3), with mean 0.25
  CHECK(values(p.bias) == std::vector<double>{0, 0.25, -0.25, 0});
  auto whole = pass<double>(ctx, mixture({.k = 1, .speed = 0.5, .centred = true}, 5), 7);
  whole.forward();
  whole.backward();
  adapt_params(ctx, whole.params, whole.grads);
  const auto bias = values(whole.params.branch.gate.selection.bias);
  CHECK(std::abs(std::accumulate(bias.begin(), bias.end(), 0.0)) <= 1e-15);
  CHECK(*std::max_element(bias.begin(), bias.end()) > 0);
}

TEST_CASE("SigmoidBias (5): copies of parameters keep the option `centred`") {
  Cpu::Context ctx(1);
  for (const bool centred : {false, true}) {
    const auto model = mixture({.k = 1, .centred = centred}, 3);
    const auto params = init_params<float, Cpu>(model, ctx, Seed{1});
    CHECK(params.gate.selection.centred == centred);
    CHECK(clone(ctx, params).gate.selection.centred == centred);
    CHECK(select_experts(ctx, params, {2, 0}).gate.selection.centred == centred);
    CHECK(io::uninitialised_parameters<float>(ctx, model).gate.selection.centred == centred);
  }
}

TEST_CASE("SigmoidBias: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { pass<double>(ctx, mixture({.k = 4}, 3), 2); }) ==
        "SigmoidBias: k: expected 1 <= k <= experts = 3, got 4");
  CHECK(message_of([&] { pass<double>(ctx, mixture({.k = 0}, 3), 2); }) ==
        "SigmoidBias: k: expected 1 <= k <= experts = 3, got 0");
  CHECK(message_of([&] { pass<double>(ctx, mixture({.speed = -1}, 3), 2); }) ==
        "SigmoidBias: speed: expected at least 0, got -1");
  CHECK(message_of([&] { pass<double>(ctx, mixture({.speed = HUGE_VAL}, 3), 2); }) ==
        "SigmoidBias: speed: expected a finite number, got inf");
  CHECK(message_of([&] { pass<double>(ctx, mixture({.scale = quiet_nan}, 3), 2); }) ==
        "SigmoidBias: scale: expected a finite number, got nan");
  CHECK(message_of([&] { pass<double>(ctx, mixture({.groups = 4}, 6), 2); }) ==
        "SigmoidBias: groups: expected a divisor of experts = 6, got 4");
  CHECK(message_of([&] { pass<double>(ctx, mixture({.groups = 3, .group_terms = 3}, 6), 2); }) ==
        "SigmoidBias: group_terms: expected 1 or 2, got 3");
  CHECK(message_of([&] { pass<double>(ctx, mixture({.groups = 3, .top_groups = 4}, 6), 2); }) ==
        "SigmoidBias: top_groups: expected 1 <= top_groups <= groups = 3, got 4");
  CHECK(message_of([&] { pass<double>(ctx, mixture({.k = 3, .groups = 3}, 6), 2); }) ==
        "SigmoidBias: k: expected 1 <= k <= 2 (the experts in top_groups = 1 groups), got 3");
  auto m = pass<double>(ctx, mixture({}, 3), 2);
  m.params.branch.gate.selection.bias.resize(2);
  CHECK(message_of([&] { m.forward(); }) == "SigmoidBias: params.bias: expected [3], got [2]");
}
