#include "gatefold/gate/scores/cosine_scores.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/conformance.hpp"
#include "gatefold/check/gradient.hpp"
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
/// Computes ⟨r, v⟩ and the lengths of r and v in loops.
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
  // The reference code rescales embeddings to length 1.5. The scores do not change, because (2) divides by the length.
  for (Index e = 0; e < 4; ++e) {
    double square = 0;
    for (Index j = 0; j < 8; ++j) square += p.embedding(e, j) * p.embedding(e, j);
    for (Index j = 0; j < 8; ++j) p.embedding(e, j) *= 1.5 / std::sqrt(square);
  }
  CHECK(difference(values(score(scores, p, x)), values(z)) <= 1e-14);
}

TEST_CASE("CosineScores: gradients and conformance for every normalisation") {
  const auto paper = check::conformance<Cpu, double>(
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
  for (Index e = 0; e < 3; ++e) CHECK(z(2, e) == 0);  // equal logits, so the gate picks experts 0 and 1
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

namespace {

constexpr UnitNorm forms[] = {UnitNorm::clamped, UnitNorm::outside, UnitNorm::inside, UnitNorm::none};

double length_of(UnitNorm form, double epsilon, double length) {
  switch (form) {
    case UnitNorm::clamped:
      return length;
    case UnitNorm::outside:
      return length + epsilon;
    case UnitNorm::inside:
      return std::sqrt(length * length + epsilon);
    case UnitNorm::none:
      return 1;
  }
  return 0;
}

template <class T>
Tensor<T, 2, Cpu> unit(const Tensor<T, 2, Cpu>& x, UnitNorm form, double epsilon, const T* scale = nullptr) {
  Cpu::Context ctx(1);
  Tensor<T, 2, Cpu> out(x.extent(0), x.extent(1));
  Cpu::for_rows(ctx, x.extent(0), functor::UnitRows<T, Cpu>{x, {form, T(epsilon)}, scale, out});
  return out;
}

}  // namespace

TEST_CASE("UnitNorm (1)-(4): every form equals its formula") {
  const auto x = matrix<double>({{3, 4, 0}, {0.1, -0.2, 0.3}, {0, 0, 0}});
  const double epsilon = 0.2, scale = 1.5;
  for (const UnitNorm form : forms) {
    const auto out = unit(x, form, epsilon, &scale);
    for (Index n = 0; n < 3; ++n) {
      double square = 0;
      for (Index d = 0; d < 3; ++d) square += x(n, d) * x(n, d);
      for (Index d = 0; d < 3; ++d)
        CHECK(out(n, d) == doctest::Approx(scale * x(n, d) / (n == 2 ? 1 : length_of(form, epsilon, std::sqrt(square))))
                               .epsilon(1e-13));
    }
  }
}

TEST_CASE("UnitNorm (1): a row within epsilon is 0 without gradient") {
  Cpu::Context ctx(1);
  const auto x = matrix<double>({{0.3, 0.4}, {0, 0}});
  CHECK(values(unit(x, UnitNorm::clamped, 0.5)) == std::vector<double>{0, 0, 0, 0});
  auto dx = constant_tensor<double>(ctx, 7, 2, 2);
  Cpu::for_rows(ctx, 2, functor::UnitRowsBackward<double, Cpu>{x, {UnitNorm::clamped, 0.5}, nullptr, x, dx});
  CHECK(values(dx) == std::vector<double>{7, 7, 7, 7});
}

TEST_CASE("UnitNorm: zero and huge rows stay finite, forward and backward") {
  Cpu::Context ctx(1);
  const auto x = matrix<float>({{0, 0}, {1e-30, 0}, {1e15, 1e15}});
  const auto dunit = matrix<float>({{1, 2}, {1, 2}, {1, 2}});
  for (const UnitNorm form : forms) {
    auto dx = constant_tensor<float>(ctx, 0, 3, 2);
    Cpu::for_rows(ctx, 3, functor::UnitRowsBackward<float, Cpu>{x, {form, 1e-6f}, nullptr, dunit, dx});
    for (const double v : values(unit(x, form, 1e-6), dx)) CHECK(std::isfinite(v));
  }
}

TEST_CASE("UnitNorm: the gradient scales with the inverse row length") {
  Cpu::Context ctx(1);
  for (const float r : {1e-10f, 1.0f, 1e14f, 1e18f}) {
    const auto x = matrix<float>({{0.6f * r, 0.8f * r}}), dunit = matrix<float>({{1, 0}});
    for (const UnitNorm form : {UnitNorm::clamped, UnitNorm::outside, UnitNorm::inside}) {
      auto dx = constant_tensor<float>(ctx, 0, 1, 2);
      Cpu::for_rows(ctx, 1, functor::UnitRowsBackward<float, Cpu>{x, {form, 1e-30f}, nullptr, dunit, dx});
      CHECK(dx(0, 0) * r == doctest::Approx(0.64).epsilon(1e-6));
      CHECK(dx(0, 1) * r == doctest::Approx(-0.48).epsilon(1e-6));
    }
  }
}

TEST_CASE("UnitNorm: gradients of rows and scale equal finite differences") {
  Cpu::Context ctx(1);
  for (const UnitNorm form : forms) {
    auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 3);
    const auto dunit = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 3);
    auto dx = constant_tensor<double>(ctx, 0, 4, 3);
    double scale = 0.7, dscale = 0;
    const functor::UnitFactor<double> factor{form, 0.01};
    Cpu::for_rows(ctx, 4, functor::UnitRowsBackward<double, Cpu>{x, factor, &scale, dunit, dx});
    Cpu::reduce<double>(ctx, 4, functor::UnitRowsScale<double, Cpu>{x, factor, dunit}, &dscale);
    const auto report = check::compare_gradients(
        {{"x", x.data(), dx.data(), x.size()}, {"scale", &scale, &dscale, 1}},
        [&] {
          const auto out = unit(x, form, 0.01, &scale);
          double f = 0;
          for (Index i = 0; i < out.size(); ++i) f += out.data()[i] * dunit.data()[i];
          return f;
        },
        [] { return 0; }, {});
    CHECK_MESSAGE(report, report.str());
  }
}
