#include "gatefold/gate/scores/cosine_scores.hpp"

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

using CosineTopK = ComposedGate<CosineScores, Independent, TopK>;

template <class T>
Tensor<T, 2, Cpu> score(const CosineScores& scores, const CosineScores::Params<T, Cpu>& p, const Tensor<T, 2, Cpu>& x) {
  Cpu::Context ctx(1);
  Tensor<T, 2, Cpu> z(x.extent(0), scores.experts);
  scores.forward(ctx, p, x, z);
  return z;
}
/// Computes ⟨r, v⟩ and both lengths in loops.
struct Angle {
  double dot = 0, item = 0, expert = 0;
  Angle(const CosineScores::Params<double, Cpu>& p, const Tensor<double, 2, Cpu>& x, Index n, Index e) {
    for (Index j = 0; j < p.embedding.extent(1); ++j) {
      double r = 0;
      for (Index d = 0; d < x.extent(1); ++d) r += x(n, d) * p.projection(d, j);
      dot += r * p.embedding(e, j);
      item += r * r;
      expert += p.embedding(e, j) * p.embedding(e, j);
    }
    item = std::sqrt(item);
    expert = std::sqrt(expert);
  }
};
CosineScores reference(Index model_dim, Index experts) {
  CosineScores scores = CosineScores::reference();
  scores.model_dim = model_dim;
  scores.experts = experts;
  return scores;
}

}  // namespace

TEST_CASE("CosineScores (1): equals the cosine divided by the temperature") {
  Cpu::Context ctx(1);
  for (const Index experts : {1, 4, 257}) {
    const CosineScores scores{.model_dim = 5, .experts = experts, .dim = 3};
    const auto p = scores.init<double, Cpu>(ctx, Seed{1});
    CHECK(p.temperature(0) == 0.07);
    const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 6, 5);
    const auto z = score(scores, p, x);
    for (Index n = 0; n < 6; ++n)
      for (Index e = 0; e < experts; ++e) {
        const Angle a(p, x, n, e);
        CHECK(z(n, e) == doctest::Approx(a.dot / (0.07 * a.item * a.expert)).epsilon(1e-12));
        CHECK(std::abs(z(n, e)) <= 1 / 0.07 + 1e-12);
      }
  }
}

TEST_CASE("CosineScores (2): reference() divides only by the expert's length") {
  Cpu::Context ctx(1);
  const CosineScores scores = reference(5, 4);
  auto p = scores.init<double, Cpu>(ctx, Seed{1});
  CHECK(p.temperature.size() == 0);
  CHECK(p.projection.extent(1) == 8);
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 6, 5);
  const auto z = score(scores, p, x);
  for (Index n = 0; n < 6; ++n)
    for (Index e = 0; e < 4; ++e) {
      const Angle a(p, x, n, e);
      CHECK(z(n, e) == doctest::Approx(a.dot / a.expert).epsilon(1e-12));
    }
  // The reference code rescales embeddings to length 1.5, which changes nothing here.
  for (Index e = 0; e < 4; ++e) {
    double square = 0;
    for (Index j = 0; j < 8; ++j) square += p.embedding(e, j) * p.embedding(e, j);
    for (Index j = 0; j < 8; ++j) p.embedding(e, j) *= 1.5 / std::sqrt(square);
  }
  CHECK(difference(values(score(scores, p, x)), values(z)) <= 1e-14);
}

TEST_CASE("CosineScores: gradients and conformance, with and without normalisation") {
  const auto paper = check::conformance<Cpu>(
      Mixture{CosineTopK{.scores = {.experts = 3, .dim = 4, .temperature = 0.5}}, Linear{.model_dim = 4}},
      {.items_are_independent = true});
  CHECK_MESSAGE(paper, paper.str());
  Cpu::Context ctx(1);
  CosineScores mixed{.experts = 3, .dim = 4, .temperature = 0.5, .unit_items = false};
  for (const CosineScores& scores : {mixed, reference(0, 3)}) {
    const auto report = check::gradients(ctx, Mixture{CosineTopK{.scores = scores}, Linear{.model_dim = 4}});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("CosineScores: backward_items computes only the dx of backward") {
  Cpu::Context ctx(1);
  const CosineScores scores{.model_dim = 5, .experts = 4, .dim = 3};
  const auto p = scores.init<double, Cpu>(ctx, Seed{1});
  auto grads = zeros_like(ctx, p);
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 6, 5), dz = uniform_tensor<double>(ctx, Seed{3}, 1, 6, 4);
  auto dx = constant_tensor<double>(ctx, 0.5, 6, 5), alone = constant_tensor<double>(ctx, 0.5, 6, 5);
  scores.backward(ctx, p, x, dz, dx, grads);
  scores.backward_items(ctx, p, x, dz, alone);
  CHECK(same_bits(values(dx), values(alone)));
}

TEST_CASE("CosineScores: zero items and embeddings score 0, without NaN") {
  Cpu::Context ctx(1);
  auto m = pass<float>(ctx, Mixture{CosineTopK{.scores = {.experts = 3, .dim = 4}}, Linear{.model_dim = 4}}, 5);
  for (Index d = 0; d < 4; ++d) m.x(2, d) = 0;
  for (Index j = 0; j < 4; ++j) m.params.branch.gate.scores.embedding(1, j) = 0;
  m.forward();
  m.backward();
  const auto& z = m.saved.branch.gate.logits;
  for (Index e = 0; e < 3; ++e) CHECK(z(2, e) == 0);  // equal logits: the lower experts, with equal weights
  CHECK(m.saved.branch.plan.expert(4) == 0);
  CHECK(m.saved.branch.plan.expert(5) == 1);
  CHECK(m.saved.branch.plan.weight(4) == 0.5f);
  for (Index n = 0; n < 5; ++n) CHECK(z(n, 1) == 0);
  for (const double v : m.outcome()) CHECK(std::isfinite(v));
}

TEST_CASE("CosineScores: NaN stays in its item") {
  Cpu::Context ctx(1);
  const CosineScores scores{.model_dim = 4, .experts = 3, .dim = 2};
  const auto p = scores.init<double, Cpu>(ctx, Seed{1});
  auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 5, 4);
  const auto clean = score(scores, p, x);
  x(2, 1) = quiet_nan;
  const auto z = score(scores, p, x);
  for (Index n = 0; n < 5; ++n)
    for (Index e = 0; e < 3; ++e) CHECK((n == 2 ? std::isnan(z(n, e)) : z(n, e) == clean(n, e)));
}

TEST_CASE("CosineScores: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  CHECK(CosineScores{.experts = 2}.with_model_dim(6).model_dim == 6);
  CHECK(message_of([] { (void)CosineScores{.model_dim = 5}.with_model_dim(6); }) ==
        "CosineScores: model_dim: expected 6 (the width of the items), got 5");
  CHECK(message_of([&] { (void)CosineScores{.experts = 2}.init<double, Cpu>(ctx, {}); }) ==
        "CosineScores.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)CosineScores{.model_dim = 2}.init<double, Cpu>(ctx, {}); }) ==
        "CosineScores.init: experts: expected at least 1, got 0");
  CHECK(message_of([&] { (void)CosineScores{.model_dim = 2, .experts = 2, .dim = 0}.init<double, Cpu>(ctx, {}); }) ==
        "CosineScores.init: dim: expected at least 1, got 0");
  CHECK(message_of([&] {
          (void)CosineScores{.model_dim = 2, .experts = 2, .temperature = -1}.init<double, Cpu>(ctx, {});
        }) == "CosineScores: temperature: expected at least 0, got -1");
  const CosineScores cold{.model_dim = 2, .experts = 2, .dim = 4, .temperature = 0},
      negative{.model_dim = 2, .experts = 2, .dim = 4, .temperature = -1};
  CHECK(message_of([&] { negative.validate(cold.init<double, Cpu>(ctx, {})); }) ==
        "CosineScores: temperature: expected at least 0, got -1");
  const CosineScores scores{.model_dim = 2, .experts = 3, .dim = 4};
  auto p = scores.init<double, Cpu>(ctx, {});
  p.temperature.resize(0);
  CHECK(message_of([&] { scores.validate(p); }) == "CosineScores: params.temperature: expected [1], got [0]");
  p.embedding.resize(2, 4);
  CHECK(message_of([&] { scores.validate(p); }) == "CosineScores: params.embedding: expected [3, 4], got [2, 4]");
  p.projection.resize(2, 3);
  CHECK(message_of([&] { scores.validate(p); }) == "CosineScores: params.projection: expected [2, 4], got [2, 3]");
}
