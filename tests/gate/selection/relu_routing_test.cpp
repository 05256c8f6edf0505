#include "gatefold/gate/selection/relu_routing.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/checkpoint.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Index dim = 4;
using Gate = ComposedGate<LinearScores, Independent, ReluRouting>;

auto mixture(const ReluRouting& selection, Index experts) {
  return Mixture{Gate{.scores = {.experts = experts}, .selection = selection}, Linear{.model_dim = dim}};
}
/// Returns the weights (1) of one item. Keeps only the `most` largest unless `most` is 0.
naive::Row weights(const naive::Row& z, Index most) {
  naive::Row w(z.size(), 0);
  for (const Index e : naive::best(z, most > 0 ? most : static_cast<Index>(z.size()))) {
    const auto at = static_cast<std::size_t>(e);
    w[at] = std::max(z[at], 0.0);
  }
  return w;
}
/// Computes the loss (2) and the number of active experts A in loops.
struct Loss {
  double value = 0, active = 0, items = 0;
};
template <class P>
Loss loss_in_loops(const P& p, const ReluRouting& of, const std::vector<double>& valid) {
  const auto experts = static_cast<std::size_t>(p.params.branch.gate.scores.bias.size());
  std::vector<double> count(experts, 0), sum(experts, 0);
  Loss loss;
  for (Index n = 0; n < p.x.extent(0); ++n) {
    if (!valid.empty() && valid[static_cast<std::size_t>(n)] == 0) continue;
    ++loss.items;
    const auto z = naive::logits(p.params.branch.gate.scores, naive::row(p.x, n));
    for (std::size_t e = 0; e < experts; ++e) {
      count[e] += z[e] > 0;
      sum[e] += std::max(z[e], 0.0);
      loss.active += z[e] > 0;
    }
  }
  for (std::size_t e = 0; e < experts; ++e) {
    const double f = of.balanced ? double(experts) / (double(of.k) * loss.items) * count[e] : 1;
    loss.value += p.params.branch.gate.selection.coefficient(0) / loss.items * f * sum[e];
  }
  return loss;
}

}  // namespace

TEST_CASE("ReluRouting (1): picks positive logits and weights by them") {
  Cpu::Context ctx(2);
  for (const Index experts : {1, 3, 8, 65})
    for (const Index most : {Index(0), Index(2), experts}) {
      if (most > experts) continue;
      CAPTURE(experts);
      CAPTURE(most);
      auto p = pass<double>(ctx, mixture({.most = most}, experts), 20);
      p.forward();
      const auto& of = p.params.branch;
      std::vector<double> expected;
      for (Index n = 0; n < 20; ++n) {
        const auto x = naive::row(p.x, n), w = weights(naive::logits(of.gate.scores, x), most);
        naive::Row u(static_cast<std::size_t>(dim), 0);
        for (Index e = 0; e < experts; ++e) {
          const auto z = naive::affine(
              x, dim, [&](Index d, Index o) { return of.expert.weight(e, d, o); },
              [&](Index o) { return of.expert.bias(e, o); });
          for (std::size_t o = 0; o < u.size(); ++o) u[o] += w[static_cast<std::size_t>(e)] * z[o];
        }
        expected.insert(expected.end(), u.begin(), u.end());
      }
      CHECK(difference(values(p.y), expected) <= 1e-13);
      fill(ctx, p.y, quiet_nan);
      p.infer();
      CHECK(difference(values(p.y), expected) <= 1e-13);
    }
}

TEST_CASE("ReluRouting: only active experts have slots") {
  Cpu::Context ctx(1);
  for (const Index most : {0, 4}) {
    CAPTURE(most);
    auto p = pass<double>(ctx, mixture({.most = most}, 6), 30);
    p.forward();
    Index active = 0;
    for (Index n = 0; n < 30; ++n)
      for (const double w : weights(naive::logits(p.params.branch.gate.scores, naive::row(p.x, n)), most))
        active += w > 0;
    const auto& plan = p.saved.branch.plan;
    CHECK(plan.offsets(6) == active);
    CHECK(plan.expert.size() == 30 * (most > 0 ? most : 6));
    CHECK(active < plan.expert.size());
  }
}

TEST_CASE("ReluRouting (2): the loss weights logits by load, without padding") {
  Cpu::Context ctx(1);
  const std::vector<double> mask{1, 0, 1, 1, 1, 0, 1, 1, 1};
  for (const bool balanced : {false, true})
    for (const bool padding : {false, true}) {
      CAPTURE(balanced);
      CAPTURE(padding);
      const ReluRouting selection{.k = 2, .coefficient = 0.7, .balanced = balanced};
      auto p = pass<double>(ctx, mixture(selection, 5), 9);
      const auto valid = padding ? mask : std::vector<double>{};
      p.extra.valid = valid;
      p.forward();
      const Loss loss = loss_in_loops(p, selection, valid);
      REQUIRE(loss.value > 0);
      REQUIRE(p.saved.branch.gate.auxiliary.size() == 1);
      CHECK(p.saved.branch.gate.auxiliary(0) == doctest::Approx(loss.value).epsilon(1e-13));
      p.backward();
      CHECK(p.grads.branch.gate.selection.coefficient(0) == loss.active - 2 * loss.items);
    }
}

TEST_CASE("ReluRouting: its loss is stored after the gate's auxiliary losses") {
  Cpu::Context ctx(1);
  using Losses = WithAuxiliary<Gate, Balance, ZLoss>;
  const Mixture layer{Losses{.scores = {.experts = 4},
                             .selection = {.coefficient = 0.3},
                             .auxiliary = {Balance{.weight = 0.5}, ZLoss{.weight = 0.2}}},
                      Linear{.model_dim = dim}};
  auto p = pass<double>(ctx, layer, 9);
  p.forward();
  REQUIRE(p.saved.branch.gate.auxiliary.size() == 3);
  CHECK(p.saved.branch.gate.auxiliary(2) ==
        doctest::Approx(loss_in_loops(p, {.coefficient = 0.3}, {}).value).epsilon(1e-13));
  const auto report = check::gradients(ctx, layer, {.items = 9});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("ReluRouting: gradients and conformance, with and without a limit") {
  for (const bool balanced : {false, true})
    for (const Index most : {0, 3}) {
      const auto report = check::conformance<Cpu, double>(
          mixture({.k = 2, .most = most, .coefficient = 0.5, .balanced = balanced}, 4), {.gradients = {.items = 9}});
      CHECK_MESSAGE(report, report.str());
    }
}

TEST_CASE("ReluRouting (3): the coefficient follows the sign of the excess") {
  Cpu::Context ctx(1);
  const ReluRouting selection{.k = 2, .coefficient = 0.5, .rate = 1.25, .experts = 4};
  auto p = selection.init<double, Cpu>(ctx, {});
  auto grads = zeros_like(ctx, p);
  const auto after = [&](double excess) {
    p.coefficient(0) = 0.5;
    grads.coefficient(0) = excess;
    p.adapt(ctx, grads);
    return p.coefficient(0);
  };
  CHECK(after(7) == 0.625);
  CHECK(after(-1) == 0.4);
  CHECK(after(0) == 0.5);
  grads.coefficient(0) = -1;
  for (int i = 0; i < 2000; ++i) p.adapt(ctx, grads);
  CHECK(p.coefficient(0) == 1e-30);
  grads.coefficient(0) = 1;
  for (int i = 0; i < 2000; ++i) p.adapt(ctx, grads);
  CHECK(p.coefficient(0) == 1e30);
}

TEST_CASE("ReluRouting (3): excess counts once if the rule evaluates twice") {
  Cpu::Context ctx(1);
  auto once = pass<double>(ctx, mixture({.k = 2}, 5), 9);
  auto twice = pass<double>(ctx, Residual{update::SharpnessAware{}, mixture({.k = 2}, 5)}, 9);
  copy_pack(ctx, once.params.branch, twice.params.branch);
  copy(ctx, std::as_const(once.x).view(), twice.x.view());
  once.forward();
  once.backward();
  twice.forward();
  twice.backward();
  const double excess = once.grads.branch.gate.selection.coefficient(0);
  CHECK(excess == loss_in_loops(once, {.k = 2}, {}).active - 2 * 9);
  CHECK(twice.grads.branch.gate.selection.coefficient(0) == excess);
}

TEST_CASE("ReluRouting (3): training steers the mean number of active experts") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 128, dim);
  Tensor<float, 2, Cpu> target(128, dim);
  for (Index n = 0; n < 128; ++n)
    for (Index d = 0; d < dim; ++d) target(n, d) = x(n, d) * x(n, 0);
  for (const Index k : {1, 3}) {
    CAPTURE(k);
    Trainer trainer{ctx, mixture({.k = k, .coefficient = 1e-4}, 8), MeanSquaredError{}, optim::AdamW{.lr = 1e-2},
                    Seed{1}};
    double mean = 0;
    const auto active = [&] { return double(trainer.saved.branch.plan.offsets(8)) / 128; };
    trainer.step(x, target);
    CHECK(active() > 3.5);  // about half of the logits are positive at first
    for (int i = 0; i < 600; ++i) {
      trainer.step(x, target);
      if (i >= 400) mean += active() / 200;
    }
    CHECK(mean == doctest::Approx(double(k)).epsilon(0.15));
    CHECK(trainer.params.branch.gate.selection.coefficient(0) != 1e-4F);
    CHECK(trainer.params.branch.gate.selection.rate(0) == 1.2F);
  }
}

TEST_CASE("ReluRouting: a checkpoint restores the coefficient") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 16, dim);
  const auto path = std::filesystem::temp_directory_path() / "gatefold_relu_routing.safetensors";
  const auto make = [&] {
    return Trainer{ctx, mixture({.coefficient = 1e-3}, 4), MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  };
  auto first = make(), second = make();
  for (int i = 0; i < 5; ++i) first.step(x, x);
  save_checkpoint(path, first);
  load_checkpoint(path, second);
  std::filesystem::remove(path);
  CHECK(second.params.branch.gate.selection.coefficient(0) != 1e-3F);
  CHECK(values(first.params) == values(second.params));
  first.step(x, x), second.step(x, x);
  CHECK(values(first.params) == values(second.params));
}

TEST_CASE("ReluRouting: an item without an active expert gets output 0") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, mixture({}, 3), 4);
  fill(ctx, p.params.branch.gate.scores.weight.view(), 0);
  for (Index e = 0; e < 3; ++e) p.params.branch.gate.scores.bias(e) = 0;  // 0 is not active
  p.forward();
  p.backward();
  for (const double y : values(p.y)) CHECK(y == 0);
  for (const double g : values(p.grads.branch.expert, p.grads.branch.gate.scores)) CHECK(g == 0);
  CHECK(p.grads.branch.gate.selection.coefficient(0) == -4);
}

TEST_CASE("ReluRouting: NaN stays in its item") {
  Cpu::Context ctx(1);
  for (const Index most : {0, 2}) {
    CAPTURE(most);
    auto p = pass<double>(ctx, mixture({.most = most}, 3), 4);
    p.forward();
    const auto before = values(p.y);
    p.x(1, 0) = quiet_nan;
    p.forward();
    for (Index n = 0; n < 4; ++n)
      for (Index o = 0; o < dim; ++o)
        CHECK((n == 1 ? std::isnan(p.y(n, o)) : p.y(n, o) == before[static_cast<std::size_t>(n * dim + o)]));
  }
}

TEST_CASE("ReluRouting: empty batches have no loss and no gradient") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, mixture({.coefficient = 1}, 3), 0);
  p.forward();
  p.backward();
  CHECK(p.saved.branch.gate.auxiliary(0) == 0);
  for (const double g : values(p.grads)) CHECK(g == 0);
}

TEST_CASE("ReluRouting: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  const auto message = [&](const ReluRouting& of) { return message_of([&] { pass<double>(ctx, mixture(of, 3), 2); }); };
  CHECK(message({.k = 4}) == "ReluRouting: k: expected 1 <= k <= experts = 3, got 4");
  CHECK(message({.k = 2, .most = 1}) == "ReluRouting: most: expected 0, or k = 2 <= most <= experts = 3, got 1");
  CHECK(message({.most = 4}) == "ReluRouting: most: expected 0, or k = 1 <= most <= experts = 3, got 4");
  CHECK(message({.coefficient = 0}) == "ReluRouting: coefficient: expected more than 0, got 0");
  CHECK(message({.coefficient = HUGE_VAL}) == "ReluRouting: coefficient: expected a finite number, got inf");
  CHECK(message({.rate = 0.5}) == "ReluRouting: rate: expected at least 1, got 0.5");
  auto p = pass<double>(ctx, mixture({}, 3), 2);
  p.params.branch.gate.selection.coefficient.resize(2);
  CHECK(message_of([&] { p.forward(); }) == "ReluRouting: params.coefficient: expected [1], got [2]");
}
