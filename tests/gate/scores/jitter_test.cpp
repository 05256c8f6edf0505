#include "gatefold/gate/scores/jitter.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/scores/linear_scores.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/stack.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using JitterTopK = ComposedGate<Jitter<>, Independent, TopK>;

auto mixture(double epsilon) {
  return Mixture{JitterTopK{.scores = {.scores = {.experts = 3}, .epsilon = epsilon}}, Linear{.model_dim = 4}};
}
/// The extra inputs of a gate with noise.
struct WithNoise {
  template <class T>
  ComposedGate<Jitter<>, Independent, TopK>::Extra<T, Cpu> operator()(Element<T>, Index, Index) const {
    return {.scores = {Random{Seed{9}, 4}}};
  }
};

/// Equation (1) in loops, with factor(i) for element i of x [6, 4]; scores are [6, 3].
template <class P, class F>
std::vector<double> jittered_scores(const P& scores, const Tensor<double, 2, Cpu>& x, const F& factor) {
  std::vector<double> z;
  for (Index n = 0; n < 6; ++n)
    for (Index e = 0; e < 3; ++e) {
      double sum = scores.bias(e);
      for (Index d = 0; d < 4; ++d) sum += x(n, d) * factor(std::uint64_t(n * 4 + d)) * scores.weight(d, e);
      z.push_back(sum);
    }
  return z;
}

}  // namespace

TEST_CASE("Jitter (1): the router reads x ⊙ ξ") {
  Cpu::Context ctx(1);
  const Jitter<> jitter{.scores = {.model_dim = 4, .experts = 3}, .epsilon = 0.1};
  const auto p = jitter.init<double, Cpu>(ctx, Seed{1});
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 6, 4);
  Tensor<double, 2, Cpu> z(6, 3), plain(6, 3);
  jitter.forward(ctx, p, x, z, Noise{Random{Seed{9}, 4}});
  const auto factor = [](std::uint64_t i) { return 0.9 + 0.2 * uniform<double>(Seed{9}, 4, i); };
  CHECK(difference(values(z), jittered_scores(p.scores, x, factor)) <= 1e-14);
  // Without noise the results are those of the inner scores, bit for bit.
  jitter.forward(ctx, p, x, z, Noise{});
  jitter.scores.forward(ctx, p.scores, x, plain);
  CHECK(same_bits(values(z), values(plain)));
}

TEST_CASE("Jitter (1): ξ has its range and mean 1") {
  const functor::JitterFactor<SignedUniformNoise, double> factor{Random{Seed{3}, 1}, 0.25};
  double low = 2, high = 0, mean = 0;
  for (Index i = 0; i < 20000; ++i) {
    low = std::min(low, factor(i));
    high = std::max(high, factor(i));
    mean += factor(i) / 20000;
  }
  CHECK(low >= 0.75);
  CHECK(low < 0.7505);
  CHECK(high < 1.25);
  CHECK(high > 1.2495);
  CHECK(std::abs(mean - 1) < 4 * 0.25 / std::sqrt(3 * 20000.0));
}

TEST_CASE("Jitter (1): multiplies items by noise of other laws") {
  Cpu::Context ctx(1);
  using Normal = Jitter<LinearScores, GaussianNoise>;
  const Normal jitter{.scores = {.model_dim = 4, .experts = 3}, .epsilon = 0.1};
  const auto p = jitter.init<double, Cpu>(ctx, Seed{1});
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 6, 4);
  Tensor<double, 2, Cpu> z(6, 3);
  jitter.forward(ctx, p, x, z, Noise{Random{Seed{9}, 4}});
  const auto factor = [](std::uint64_t i) { return 1 + 0.1 * normal<double>(Seed{9}, 4, i); };
  CHECK(difference(values(z), jittered_scores(p.scores, x, factor)) <= 1e-14);
  const ComposedGate<Normal, Independent, TopK> gate{.scores = {.scores = {.experts = 3}, .epsilon = 0.3}};
  const auto report =
      check::gradients(ctx, Mixture{gate, Linear{.model_dim = 4}}, {}, {.scores = {Random{Seed{9}, 4}}});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Jitter: the experts read x without noise") {
  Cpu::Context ctx(1);
  auto m = pass<double>(
      ctx, Mixture{JitterTopK{.scores = {.scores = {.experts = 1}}, .selection = {.k = 1}}, Linear{.model_dim = 4}}, 5);
  m.forward();
  const auto without = values(m.y);
  m.extra.scores.random = Random{Seed{9}, 4};
  m.forward();
  CHECK(same_bits(values(m.y), without));  // with one expert its weight is 1, whatever the router saw
}

TEST_CASE("Jitter: gradients and conformance, with and without noise") {
  const auto noisy = check::conformance<Cpu, double>(mixture(0.3), {}, WithNoise{});
  CHECK_MESSAGE(noisy, noisy.str());
  Cpu::Context ctx(1);
  const auto plain = check::gradients(ctx, mixture(0.3));
  CHECK_MESSAGE(plain, plain.str());
}

TEST_CASE("Jitter: each step and layer draws its own noise") {
  Cpu::Context ctx(1);
  auto m = pass<double>(ctx, mixture(0.3), 5);
  const auto logits = [&](const Noise& noise) {
    m.extra.scores = noise;
    m.forward();
    return values(m.saved.branch.gate.logits);
  };
  const Noise noise{Random{Seed{9}, 4}};
  const auto home = logits(noise);
  CHECK(same_bits(home, logits(noise)));
  CHECK_FALSE(same_bits(home, logits(Noise{Random{Seed{9}, 5}})));
  CHECK_FALSE(same_bits(home, logits(noise.at(0))));
  CHECK_FALSE(same_bits(logits(noise.at(1)), logits(noise.at(0))));
}

TEST_CASE("Jitter: has the names and options of its scores") {
  Cpu::Context ctx(1);
  const Jitter<FixedScores> frozen{.scores = {{.model_dim = 2, .experts = 3}}};
  const auto p = frozen.init<double, Cpu>(ctx, Seed{1});
  int learned = 0;
  std::string names;
  for_each_learned([&](const Name&, const auto&) { ++learned; }, p);
  for_each_tensor([&](const Name& name, const auto&) { names += name.str() + " "; }, p);
  CHECK(learned == 0);
  CHECK(names == "weight bias ");
  CHECK(with_experts(with_model_dim(Jitter<>{}, 6), 4).experts() == 4);
  CHECK(with_model_dim(Jitter<>{}, 6).scores.model_dim == 6);
  for (const double epsilon : {-0.1, 1.0, quiet_nan})
    CHECK(message_of([&] {
            (void)Jitter<>{.scores = {.model_dim = 2, .experts = 3}, .epsilon = epsilon}.init<double, Cpu>(ctx, {});
          }).starts_with("Jitter: epsilon: expected 0 <= epsilon < 1, got "));
  const auto fits = with_model_dim(Jitter<>{.scores = {.experts = 3}}, 2);
  const auto params = fits.init<double, Cpu>(ctx, Seed{1});
  auto changed = fits;
  changed.epsilon = 1;
  CHECK(message_of([&] { changed.validate(params); }) == "Jitter: epsilon: expected 0 <= epsilon < 1, got 1");
}
