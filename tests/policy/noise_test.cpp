#include "gatefold/policy/noise.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/auxiliary/importance.hpp"
#include "gatefold/gate/auxiliary/load.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/plain.hpp"

using namespace gatefold;

namespace {

struct Moments {
  double mean, variance, least, largest;
};
template <class LawT, class T>
Moments moments(Random at, Index count = 20000) {
  Moments m{0, 0, LawT::template sample<T>(at, 0), LawT::template sample<T>(at, 0)};
  for (Index i = 0; i < count; ++i) {
    const double v = static_cast<double>(LawT::template sample<T>(at, i));
    REQUIRE(std::isfinite(v));
    m.mean += v / double(count);
    m.variance += v * v / double(count);
    m.least = std::min(m.least, v);
    m.largest = std::max(m.largest, v);
  }
  m.variance -= m.mean * m.mean;
  return m;
}

}  // namespace

TEST_CASE_TEMPLATE("noise laws: samples have the expected mean, variance and range", T, float, double) {
  const Random at{Seed{5}, 3};
  const auto five_sigma = [](double variance) { return 5 * std::sqrt(variance / 20000); };  // for a mean of 20000
  const auto uniform_ = moments<UniformNoise, T>(at);
  CHECK(std::abs(uniform_.mean - 0.5) < five_sigma(1.0 / 12));
  CHECK(std::abs(uniform_.variance - 1.0 / 12) < five_sigma(1.0 / 180));
  CHECK(uniform_.least >= 0);
  CHECK(uniform_.largest < 1);
  const auto signed_ = moments<SignedUniformNoise, T>(at);
  CHECK(std::abs(signed_.mean) < five_sigma(1.0 / 3));
  CHECK(std::abs(signed_.variance - 1.0 / 3) < five_sigma(16.0 / 180));
  CHECK(signed_.least >= -1);
  CHECK(signed_.largest < 1);
  const auto normal_ = moments<GaussianNoise, T>(at);
  CHECK(std::abs(normal_.mean) < 0.02);  // nearly three standard deviations
  CHECK(std::abs(normal_.variance - 1) < five_sigma(2));
  const double pi = 3.14159265358979323846, euler = 0.57721566490153286;
  const auto gumbel = moments<GumbelNoise, T>(at);
  const double variance = pi * pi / 6;
  CHECK(std::abs(gumbel.mean - euler) < five_sigma(variance));
  CHECK(std::abs(gumbel.variance - variance) < five_sigma(4.4 * variance * variance));  // the kurtosis is 5.4
}

TEST_CASE("GumbelNoise: the argmax of rank + noise follows softmax(rank)") {
  const double rank[] = {0.3, -1, 1.2};
  double total = 0, share[3] = {};
  for (const double v : rank) total += std::exp(v);
  const Index items = 20000;
  for (Index n = 0; n < items; ++n) {
    Index best = 0;
    double top = 0;
    for (Index e = 0; e < 3; ++e) {
      const double v = rank[e] + GumbelNoise::sample<double>({Seed{2}, 0}, n * 3 + e);
      if (e > 0 && v <= top) continue;
      best = e;
      top = v;
    }
    share[best] += 1 / double(items);
  }
  // The tolerance is at least three standard deviations.
  for (Index e = 0; e < 3; ++e) CHECK(std::abs(share[e] - std::exp(rank[e]) / total) < 0.012);
}

TEST_CASE("Noise: position, step, layer and seed determine the numbers") {
  const Noise noise{Random{Seed{5}, 3}};
  const auto first = [](const Noise& n) { return GaussianNoise::sample<double>(*n.random, 7); };
  CHECK(first(noise) == first(Noise{Random{Seed{5}, 3}}));
  CHECK(first(noise) != first(Noise{Random{Seed{5}, 4}}));
  CHECK(first(noise) != first(Noise{Random{Seed{6}, 3}}));
  CHECK(first(at_layer(noise, 0)) != first(at_layer(noise, 1)));
  CHECK(first(at_layer(noise, 1)) == first(noise.at(1)));
  CHECK(noise.at(1).random->step == 3);
}

TEST_CASE("Noise: an empty extra input gives no noise") {
  CHECK_FALSE(Noise{}.at(4).random.has_value());
  const auto none = functor::draw<GumbelNoise, double>(Noise{});
  for (Index i = 0; i < 5; ++i) CHECK(none(i) == 0);
  CHECK(functor::draw<UniformNoise, double>({Random{Seed{5}, 3}})(2) == UniformNoise::sample<double>({Seed{5}, 3}, 2));
}

TEST_CASE("Noise: gradients of noise-dependent losses equal finite differences") {
  using Gate = ComposedGate<LinearScores, Independent, NoisyTopK<>, Importance, Load>;
  const Gate gate{.scores = {.experts = 3},
                  .selection = NoisyTopK<>::reference(),
                  .auxiliary = {Importance{.weight = 0.5}, Load::shazeer({.weight = 0.5})}};
  Cpu::Context ctx(1);
  const auto report = check::gradients(ctx, Stack{Residual{update::Plain{}, Mixture{gate, Linear{.model_dim = 3}}}, 2},
                                       {}, {.selection = {Random{Seed{5}, 3}}});
  CHECK_MESSAGE(report, report.str());
}
