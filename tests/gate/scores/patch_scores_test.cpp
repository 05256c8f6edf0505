#include "gatefold/gate/scores/patch_scores.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using PatchTopK = ComposedGate<PatchScores, Independent, TopK>;

}  // namespace

TEST_CASE("PatchScores (1): sums patch scores for any expert count") {
  Cpu::Context ctx(1);
  for (const Index length : {1, 3})
    for (const Index experts : {1, 4, 257}) {
      const PatchScores scores{.model_dim = 5, .experts = experts, .length = length, .initial = Initial::normal(0.3)};
      const auto p = scores.init<double, Cpu>(ctx, Seed{1});
      const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 7, length * 5);
      Tensor<double, 2, Cpu> z(7, experts);
      scores.forward(ctx, p, x, z);
      std::vector<double> expected;
      for (Index n = 0; n < 7; ++n)
        for (Index e = 0; e < experts; ++e) {
          double sum = 0;
          for (Index l = 0; l < length; ++l)
            for (Index d = 0; d < 5; ++d) sum += x(n, l * 5 + d) * p.weight(l, d, e);
          expected.push_back(sum);
        }
      CHECK(difference(values(z), expected) <= 1e-14);
    }
}

TEST_CASE("PatchScores (1): with equal Θ it equals LinearScores without bias") {
  Cpu::Context ctx(1);
  const PatchScores patch{.model_dim = 4, .experts = 3, .length = 2};
  const LinearScores linear{.model_dim = 4, .experts = 3, .length = 2, .bias = false};
  auto p = patch.init<double, Cpu>(ctx, Seed{1});
  const auto q = linear.init<double, Cpu>(ctx, Seed{1});
  for (Index i = 0; i < p.weight.size(); ++i) p.weight.data()[i] = q.weight.data()[i % q.weight.size()];
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 6, 8);
  Tensor<double, 2, Cpu> z(6, 3), same(6, 3);
  patch.forward(ctx, p, x, z);
  linear.forward(ctx, q, x, same);
  CHECK(difference(values(z), values(same)) <= 1e-14);
}

TEST_CASE("PatchScores: starts at 0, so the lower experts are picked") {
  Cpu::Context ctx(1);
  auto m = pass<double>(ctx, Mixture{PatchTopK{.scores = {.experts = 4, .length = 2}}, Linear{.model_dim = 6}}, 5);
  for (const double v : values(m.params.branch.gate)) CHECK(v == 0);
  m.forward();
  for (Index n = 0; n < 5; ++n)
    for (Index j = 0; j < 2; ++j) {
      CHECK(m.saved.branch.plan.expert(2 * n + j) == j);
      CHECK(m.saved.branch.plan.weight(2 * n + j) == 0.5);
    }
}

TEST_CASE("PatchScores: gradients and conformance; router gradients sum to 0") {
  const Mixture mixture{PatchTopK{.scores = {.experts = 3, .length = 2, .initial = {}}}, Linear{.model_dim = 6}};
  const auto report = check::conformance<Cpu, double>(mixture, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
  Cpu::Context ctx(1);
  auto m = pass<double>(ctx, mixture, 5);
  m.forward();
  m.backward();
  const auto& g = m.grads.branch.gate.scores.weight;
  for (Index l = 0; l < 2; ++l)
    for (Index d = 0; d < 3; ++d) CHECK(std::abs(g(l, d, 0) + g(l, d, 1) + g(l, d, 2)) <= 1e-14);
}

TEST_CASE("PatchScores: NaN stays in its item") {
  Cpu::Context ctx(1);
  const PatchScores scores{.model_dim = 2, .experts = 3, .length = 2, .initial = {}};
  const auto p = scores.init<double, Cpu>(ctx, Seed{1});
  auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 4);
  Tensor<double, 2, Cpu> clean(4, 3), z(4, 3);
  scores.forward(ctx, p, x, clean);
  x(1, 3) = quiet_nan;
  scores.forward(ctx, p, x, z);
  for (Index n = 0; n < 4; ++n)
    for (Index e = 0; e < 3; ++e) CHECK((n == 1 ? std::isnan(z(n, e)) : z(n, e) == clean(n, e)));
}

TEST_CASE("PatchScores: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  CHECK(PatchScores{.experts = 2, .length = 3}.with_model_dim(6).model_dim == 2);
  CHECK(message_of([] { (void)PatchScores{.model_dim = 5}.with_model_dim(6); }) ==
        "PatchScores: model_dim: expected 6 (the width of the items), got 5");
  CHECK(message_of([] { (void)PatchScores{.length = 4}.with_model_dim(6); }) ==
        "PatchScores: length: expected a divisor of the items' width 6, got 4");
  CHECK(message_of([&] { (void)PatchScores{.experts = 2}.init<double, Cpu>(ctx, {}); }) ==
        "PatchScores.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)PatchScores{.model_dim = 2}.init<double, Cpu>(ctx, {}); }) ==
        "PatchScores.init: experts: expected at least 1, got 0");
  CHECK(message_of([&] { (void)PatchScores{.model_dim = 2, .experts = 2, .length = 0}.init<double, Cpu>(ctx, {}); }) ==
        "PatchScores.init: length: expected at least 1, got 0");
  const PatchScores scores{.model_dim = 2, .experts = 3, .length = 2};
  auto p = scores.init<double, Cpu>(ctx, {});
  p.weight.resize(2, 2, 4);
  CHECK(message_of([&] { scores.validate(p); }) == "PatchScores: params.weight: expected [2, 2, 3], got [2, 2, 4]");
}
