#include "self_check.hpp"

#include <cmath>
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "lemma1.hpp"
#include "routing_probabilities.hpp"
#include "twice_softmax.hpp"
#include "uniform_top_k.hpp"

namespace studies::expert_count {
namespace {

void require(bool holds, const std::string& what) {
  std::printf("%s  %s\n", holds ? "ok    " : "FAILED", what.c_str());
  if (!holds) throw std::runtime_error("self-check: " + what);
}

void check_loss(Cpu::Context& ctx) {
  auto y = uniform_tensor<double>(ctx, Seed{1}, 2, 6, 2);
  Tensor<double, 2, Cpu> dy(6, 2);
  Tensor<Index, 1, Cpu> label(6);
  for (Index n = 0; n < 6; ++n) label(n) = n % 2;
  TwiceSoftmax{}.backward<double, Cpu>(ctx, y, label, dy);
  const auto value = [&] {
    Tensor<double, 1, Cpu> v(1);
    TwiceSoftmax{}.forward<double, Cpu>(ctx, y, label, v);
    return v(0);
  };
  const auto report =
      check::compare_gradients({{"y", y.data(), dy.data(), y.size()}}, value, [] { return std::uint64_t(0); }, {});
  require(bool(report), "loss of two softmaxes, its gradient: " + report.str());
  for (Index n = 0; n < 6; ++n)
    for (Index c = 0; c < 2; ++c) y(n, c) = c == label(n) ? 50 : -50;
  require(std::abs(value() - std::log1p(std::exp(-1.0))) < 1e-12, "its least value is log(1 + 1/e)");
}

void check_selection(Cpu::Context& ctx) {
  const PatchMlp<Cubic> expert{.model_dim = 3, .patches = 2, .filters = 4};
  using Gate = ComposedGate<PatchScores, Independent, UniformTopK>;
  const PatchScores scores{.experts = 5, .length = 2, .initial = {}};
  const auto report =
      check::conformance<Cpu>(Mixture{Gate{.scores = scores, .mixing = {}, .selection = {.k = 2}}, expert});
  require(bool(report), "top-k selection: " + report.str());

  const auto z = uniform_tensor<float>(ctx, Seed{2}, 1, 200, 5);
  const Candidates<float, Cpu> candidates{z, z, z};
  const Noise noise{Random{Seed{3}, 4}};
  SparsePlan<float, Cpu> one, other;
  Nothing<float, Cpu> none;
  NoisyTop1<>{}.forward<float, Cpu>(ctx, none, candidates, one, none, noise);
  UniformTopK{1}.forward<float, Cpu>(ctx, none, candidates, other, none, noise);
  bool same = true;
  for (Index n = 0; n < 200; ++n) same = same && one.expert(n) == other.expert(n) && one.weight(n) == other.weight(n);
  require(same, "top-k selection with k = 1 is NoisyTop1");
}

void check_probabilities() {
  double worst = 0;
  for (const double s : {0.0, 0.1, 0.5, 0.99, 1.0, 3.0}) {
    const double t = std::min(s, 1.0);
    worst = std::max(worst, std::abs(RoutingProbabilities(2)({s, 0})[0] - (0.5 + t - t * t / 2)));
  }
  require(worst < 1e-14, "routing probabilities of two experts are 1/2 + s - s^2/2");
  for (const std::size_t experts : {3, 8, 64}) {
    std::vector<double> h(experts);
    double total = 0;
    for (std::size_t m = 0; m < experts; ++m) h[m] = 0.7 * std::sin(static_cast<double>(3 * m + 1));
    for (const double p : RoutingProbabilities(experts)(h)) total += p;
    require(std::abs(total - 1) < 1e-12, "routing probabilities of " + std::to_string(experts) + " experts sum to 1");
    const double s = 0.25, m = static_cast<double>(experts);
    std::vector<double> ahead(experts);
    // Expert 0 wins if its score s plus noise is above 1, or if this sum is the largest of all experts.
    ahead[0] = s;
    const double expected = s + (1 - std::pow(s, m)) / m;
    require(std::abs(RoutingProbabilities(experts)(ahead)[0] - expected) < 1e-12,
            "one of " + std::to_string(experts) + " ahead by 1/4");
  }
}

/// Checks that the search finds no ratio above the bound of Lemma 1 with noise, and that it finds larger ratios without
/// noise.
void check_lemma1() {
  for (const std::size_t experts : {2, 4, 8, 16, 32, 64}) {
    const Json found = lemma1::measure(experts, 40, 1, 1, [](double) {});
    const std::string of = " M^2 = " + std::to_string(experts * experts);
    require(number(found.at("adversarial")) <= lemma1::bound(experts), "lemma 1 with noise: no ratio above" + of);
    require(number(found.at("without_noise")) > lemma1::bound(experts), "lemma 1 without noise: a ratio above" + of);
  }
}

}  // namespace

void self_check() {
  Cpu::Context ctx(1);
  check_loss(ctx);
  check_selection(ctx);
  check_probabilities();
  check_lemma1();
}

}  // namespace studies::expert_count
