#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "measure.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "fit.hpp"

using namespace studies;
using namespace studies::mot;
using namespace gatefold;

namespace {

/// Four experts for four classes, no noise: everything can be said beforehand.
struct Case {
  Setting setting{.experts = 4, .samples = 8, .test = 64, .noise = 0};
  Cpu::Context ctx{1};
  Data data{ctx, setting, Seed{3}};
  Mixture<SoftmaxNoisyTop1, AttentionExpert> mixture{
      {.scores = {.model_dim = 50, .experts = 4, .length = 8, .bias = false, .initial = Initial::zero()}},
      {.model_dim = 50, .length = 8}};
  RoutedTrainer<float, Cpu::Context, Mixture<SoftmaxNoisyTop1, AttentionExpert>, Logistic> trainer{ctx, mixture,
                                                                                                   Logistic{}, Seed{1}};

  Case() {
    set_zero(ctx, trainer.params);
    for (Index i = 0; i < 4; ++i)
      for (Index j = 0; j < 50; ++j) {
        trainer.params.gate.scores.weight(j, i) = 10 * data.signals.center(i, j);
        trainer.params.expert.value(i, j, 0) = 2 * data.signals.feature(i, j) - 3 * data.signals.center(i, j);
      }
  }
};

}  // namespace

TEST_CASE("specialists: experts that know one class each and get it") {
  Case c;
  c.trainer.evaluate(c.data.test.x, c.data.test.target);
  const Json found = specialists(c.ctx, c.data, neurons(c.trainer.params.expert), c.trainer.saved.plan);
  Index sums[4]{};
  for (Index n = 0; n < 64; ++n) sums[c.data.test.cluster(n)] += c.data.test.target(n, 0) > 0 ? 1 : -1;
  Index more = 0;
  for (const Index sum : sums) more += std::abs(sum);
  for (const auto& [number, expected] : {std::pair{"margin", 2.0},
                                         {"least_margin", 2},
                                         {"covered", 4},
                                         {"used", 4},
                                         {"share", 1},
                                         {"uneven", 0},
                                         {"own", 2},
                                         {"other", 0},
                                         {"used_own", 2},
                                         {"used_other", 0},
                                         {"center", 0.75},
                                         {"one_label", static_cast<double>(more) / 64}})
    CHECK_LE(std::abs(found[number].get<double>() - expected), 1e-6);
  for (Index n = 0; n < 4; ++n)
    for (Index i = 0; i < 4; ++i) {
      CHECK(found["routing"][std::size_t(n)][std::size_t(i)] == (i == n ? 1 : 0));
      CHECK(found["center_alignment"][std::size_t(i)][std::size_t(n)].get<double>() ==
            doctest::Approx(i == n ? -3 : 0).scale(1));
    }
}

TEST_CASE("specialists: one expert gets everything") {
  Case c;
  set_zero(c.ctx, c.trainer.params.gate);
  c.trainer.evaluate(c.data.test.x, c.data.test.target);  // ties go to the first
  const Json found = specialists(c.ctx, c.data, neurons(c.trainer.params.expert), c.trainer.saved.plan);
  Index first = 0;
  for (Index n = 0; n < 64; ++n) first += c.data.test.cluster(n) == 0;
  CHECK(found["used"] == 1);
  CHECK(found["share"].get<double>() == static_cast<double>(first) / 64);
}

TEST_CASE("attention: K_i = s v_i v_iᵀ makes v_n look at itself, by as much as softmax says") {
  Case c;
  const double s = 2, rest = 7, total = std::exp(s) + rest;
  for (Index i = 0; i < 4; ++i)
    for (Index a = 0; a < 50; ++a)
      for (Index b = 0; b < 50; ++b)
        c.trainer.params.expert.key_query(i, a, b) =
            static_cast<float>(s) * c.data.signals.feature(i, a) * c.data.signals.feature(i, b);
  c.trainer.evaluate(c.data.test.x, c.data.test.target);
  const auto of = metric::specialisation(c.ctx, neurons(c.trainer.params.expert), c.data.signals.feature);
  const auto [specialists, routed] = attention(c.ctx, c.data, std::as_const(c.trainer.params.expert.key_query).view(),
                                               of, c.trainer.saved.plan.expert);
  for (const studies::mot::Attention& p : {specialists, routed})
    for (std::size_t a = 0; a < kKinds; ++a)
      for (std::size_t b = 0; b < kKinds; ++b)
        CHECK(p[a][b] == doctest::Approx(a > 0 ? 0.125 : b > 0 ? 1 / total : std::exp(s) / total).epsilon(1e-5));
}

TEST_CASE("shapes: each law is found, and told from the other") {
  std::vector<double> t, exponential, power;
  for (int i = 0; i < 20; ++i) {
    t.push_back(i);
    exponential.push_back(3 * std::exp(-0.2 * i));
    power.push_back(i > 0 ? 2.0 / i : NAN);
  }
  const Shapes e = shapes(t, exponential), p = shapes(t, power);
  CHECK(e.exponential.slope == doctest::Approx(-0.2));
  CHECK(e.exponential.r2 == doctest::Approx(1));
  CHECK(e.power.r2 < 0.95);
  CHECK(p.power.slope == doctest::Approx(-1));
  CHECK(p.power.r2 == doctest::Approx(1));
  CHECK(p.exponential.r2 < 0.95);
  CHECK(shapes({0, 1, 2}, {1, 1, 1}).power.slope == 0);  // two points are no law
}
