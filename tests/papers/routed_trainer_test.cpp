#include "gatefold/papers/routed_trainer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/attention_expert.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/patch_cnn.hpp"
#include "gatefold/expert/patch_mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/logistic.hpp"
#include "gatefold/papers/signal_mixture.hpp"
#include "support/allocations.hpp"

using namespace gatefold;

namespace {

constexpr Index kDim = 8, kLength = 4, kItems = 24, kExperts = 3;
const SignalMixture kData{
    .clusters = 3, .model_dim = kDim, .length = kLength, .feature = {0.5, 2}, .center = {1, 2}, .distractor = {0.5, 3}};

using Scores = Tensor<double, 2, Cpu>;

SignalMixture::Sample<double, Cpu> sample(Index items = kItems) {
  Cpu::Context ctx(1);
  return kData.draw<double, Cpu>(ctx, kData.signals<double, Cpu>(ctx, Seed{1}), Seed{2}, items);
}
/// Paper 000: attention experts, with one Θ for all positions.
auto transformers() {
  return Mixture{
      SoftmaxNoisyTop1{
          .scores = {.experts = kExperts, .length = kLength, .bias = false, .initial = Initial::normal(0.3)}},
      AttentionExpert{.model_dim = kDim, .length = kLength, .initial = Initial::normal(0.5)}};
}
/// Paper 003: cubic patch experts, with a Θ for every patch.
auto patch_experts() {
  return Mixture{PatchNoisyTop1{.scores = {.experts = kExperts, .length = kLength, .initial = Initial::normal(0.3)}},
                 PatchMlp<Cubic>{.model_dim = kDim,
                                 .patches = kLength,
                                 .filters = 2,
                                 .equal_patches = false,
                                 .initial = Initial::normal(0.6)}};
}
template <class M>
Extra<M, double, Cpu> noise(const M&) {
  Extra<M, double, Cpu> extra;
  extra.selection.random = Random{Seed{5}, 11};
  return extra;
}

double softplus(double z) { return z > 0 ? z + std::log1p(std::exp(-z)) : std::log1p(std::exp(z)); }
double slope(double z) { return -1 / (1 + std::exp(z)); }  // ℓ'

/// Quantities in the formulas of papers 000 and 003: π, the chosen expert, its output f, and ℓ' of the losses of router
/// and experts.
struct Seen {
  std::vector<std::vector<double>> pi;
  std::vector<Index> expert;
  std::vector<double> f, router_slope, expert_slope;
};
template <class R, class S>
Seen see(const R& run, const S& s) {
  Seen seen;
  const auto& plan = run.saved.plan;
  seen.expert.resize(std::size_t(s.x.extent(0)));
  for (Index p = 0; p < plan.item.size(); ++p) seen.expert[std::size_t(plan.item(p))] = plan.expert(p);
  for (Index n = 0; n < s.x.extent(0); ++n) {
    std::vector<double> z, pi;
    double total = 0;
    for (Index e = 0; e < kExperts; ++e) total += std::exp(run.saved.gate.logits(n, e));
    for (Index e = 0; e < kExperts; ++e) pi.push_back(std::exp(run.saved.gate.logits(n, e)) / total);
    seen.pi.push_back(pi);
    const double f = run.expert_output()(n, 0), y = s.target(n, 0);
    seen.f.push_back(f);
    seen.router_slope.push_back(slope(y * f * pi[std::size_t(seen.expert[std::size_t(n)])]));
    seen.expert_slope.push_back(slope(y * f));
  }
  return seen;
}
/// Returns (1/N) Σ_n ℓ'(y f π) y f π (1[i = m_n] − π_i) · of(n).
template <class S, class F>
double router_gradient(const Seen& seen, const S& s, Index i, const F& of) {
  double sum = 0;
  const Index items = s.x.extent(0);
  for (Index n = 0; n < items; ++n) {
    const auto& pi = seen.pi[std::size_t(n)];
    const Index m = seen.expert[std::size_t(n)];
    sum += seen.router_slope[std::size_t(n)] * s.target(n, 0) * seen.f[std::size_t(n)] * pi[std::size_t(m)] *
           ((i == m ? 1 : 0) - pi[std::size_t(i)]) * of(n);
  }
  return sum / static_cast<double>(items);
}
/// Compares the two losses with losses computed from the logits and outputs that the trainer holds.
template <class R, class S>
void check_losses(const R& run, const S& s, const typename R::Losses& losses, bool weighted) {
  const Seen seen = see(run, s);
  double router = 0, experts = 0;
  for (std::size_t n = 0; n < seen.f.size(); ++n) {
    const double y = s.target(Index(n), 0);
    router += softplus(-y * seen.f[n] * seen.pi[n][std::size_t(seen.expert[n])]);
    experts += softplus(-y * seen.f[n]);
  }
  CHECK(losses.router == doctest::Approx(router / double(kItems)).epsilon(1e-13));
  CHECK(losses.experts == doctest::Approx((weighted ? router : experts) / double(kItems)).epsilon(1e-13));
}
#define CHECK_CLOSE(a, b, scale) CHECK(std::abs((a) - (b)) <= 1e-13 * (scale))

/// Compares every parameter's gradient with difference quotients of its loss.
template <class M, class L, class Target>
void check_differences(const M& mixture, const L& loss, Target target, const Tensor<double, 2, Cpu>& x, bool weighted) {
  Cpu::Context ctx(1);
  RoutedTrainer run{ctx, mixture, loss, Seed{7}, weighted, Element<double>{}};
  const auto extra = noise(mixture);
  run.gradients(x, target, extra);
  const auto part = [&](auto& params, auto& grads, bool router) {
    std::vector<check::GradientSlot> slots;
    std::vector<std::vector<double>> kept;
    for_each_tensor([&](const Name&, auto& g) { kept.emplace_back(g.data(), g.data() + g.size()); }, grads);
    std::size_t i = 0;
    for_each_tensor(
        [&](const Name& name, auto& p) {
          slots.push_back({name.str(), p.data(), kept[i++].data(), p.size()});
        },
        params);
    const auto report = check::compare_gradients(
        slots,
        [&] {
          const auto l = run.evaluate(x, target, extra);
          return router ? l.router : l.experts;
        },
        [&] {
          std::uint64_t h = 0;
          for (Index p = 0; p < run.saved.plan.expert.size(); ++p)
            h = mix64(h ^ std::uint64_t(run.saved.plan.expert(p)));
          return h;
        },
        {.most_skipped = 0.1});
    CHECK_MESSAGE(report, report.str());
  };
  part(run.params.gate, run.grads.gate, true);
  part(run.params.expert, run.grads.expert, false);
}

}  // namespace

TEST_CASE("RoutedTrainer (1)-(3): all gradients equal finite differences") {
  const auto s = sample();
  for (const bool weighted : {false, true}) {
    CAPTURE(weighted);
    check_differences<decltype(transformers()), Logistic, View<const double, 2, Cpu>>(transformers(), {}, s.target, s.x,
                                                                                      weighted);
    check_differences<decltype(patch_experts()), Logistic, View<const double, 2, Cpu>>(patch_experts(), {}, s.target,
                                                                                       s.x, weighted);
  }
  Tensor<Index, 1, Cpu> labels(kItems);  // for several outputs
  for (Index n = 0; n < kItems; ++n) labels(n) = s.cluster(n);
  const Mixture several{
      SoftmaxNoisyTop1{.scores = {.experts = kExperts, .length = kLength, .initial = Initial::normal(0.3)}},
      PatchCnn<Cubic>{.model_dim = kDim, .patches = kLength, .filters = 6, .outputs = 3, .bias = true}};
  check_differences<decltype(several), CrossEntropy, View<const Index, 1, Cpu>>(several, {}, labels, s.x, false);
}

TEST_CASE("RoutedTrainer: losses and gradients equal a plain loop") {
  Cpu::Context ctx(2);
  const auto s = sample();
  const auto mixture = transformers();
  RoutedTrainer run{ctx, mixture, Logistic{}, Seed{7}, false, Element<double>{}};
  check_losses(run, s, run.gradients(s.x, s.target, noise(mixture)), false);
  const Seen seen = see(run, s);
  const auto x = [&](Index n, Index l, Index j) { return s.x(n, l * kDim + j); };
  // θ_i: x_l summed over positions
  for (Index j = 0; j < kDim; ++j) {
    double sum = 0;
    for (Index i = 0; i < kExperts; ++i) {
      const double expected = router_gradient(seen, s, i, [&](Index n) {
        double all = 0;
        for (Index l = 0; l < kLength; ++l) all += x(n, l, j);
        return all;
      });
      CHECK_CLOSE(run.grads.gate.scores.weight(j, i), expected, 1);
      sum += run.grads.gate.scores.weight(j, i);
    }
    CHECK(std::abs(sum) <= 1e-16);
  }
  // W_i: (1/N) Σ_{n→i} ℓ'(y f) y X Σ_l p_l;  K_i: (1/N) Σ_{n→i} ℓ'(y f) y Σ_l X (diag p_l − p_l p_lᵀ) Xᵀ W X_lᵀ
  const auto& p = run.params.expert;
  std::vector<double> dw(kExperts * kDim, 0.0), dk(kExperts * kDim * kDim, 0.0);
  for (Index n = 0; n < kItems; ++n) {
    const Index e = seen.expert[std::size_t(n)];
    const double c = seen.expert_slope[std::size_t(n)] * s.target(n, 0) / double(kItems);
    for (Index l = 0; l < kLength; ++l) {
      std::vector<double> score(kLength, 0.0), value(kLength, 0.0);
      double total = 0, mean = 0;
      for (Index h = 0; h < kLength; ++h) {
        for (Index a = 0; a < kDim; ++a) {
          value[std::size_t(h)] += x(n, h, a) * p.value(e, a, 0);
          for (Index b = 0; b < kDim; ++b) score[std::size_t(h)] += x(n, h, a) * p.key_query(e, a, b) * x(n, l, b);
        }
        total += std::exp(score[std::size_t(h)]);
      }
      for (Index h = 0; h < kLength; ++h) mean += std::exp(score[std::size_t(h)]) / total * value[std::size_t(h)];
      for (Index h = 0; h < kLength; ++h) {
        const double ph = std::exp(score[std::size_t(h)]) / total;
        for (Index a = 0; a < kDim; ++a) {
          dw[std::size_t(e * kDim + a)] += c * ph * x(n, h, a);
          for (Index b = 0; b < kDim; ++b)
            dk[std::size_t((e * kDim + a) * kDim + b)] +=
                c * ph * (value[std::size_t(h)] - mean) * x(n, h, a) * x(n, l, b);
        }
      }
    }
  }
  for (std::size_t i = 0; i < dw.size(); ++i) CHECK_CLOSE(run.grads.expert.value.data()[i], dw[i], 1);
  for (std::size_t i = 0; i < dk.size(); ++i) CHECK_CLOSE(run.grads.expert.key_query.data()[i], dk[i], 1);
}

TEST_CASE("RoutedTrainer: loss and gradients equal equation (3) of paper 003") {
  Cpu::Context ctx(2);
  const auto s = sample();
  const auto mixture = patch_experts();
  RoutedTrainer run{ctx, mixture, Logistic{}, Seed{7}, Element<double>{}, true};
  check_losses(run, s, run.gradients(s.x, s.target, noise(mixture)), true);
  const Seen seen = see(run, s);
  const auto x = [&](Index n, Index l, Index j) { return s.x(n, l * kDim + j); };
  const auto& w = run.params.expert.weight;  // [E, P, d, J]
  for (Index l = 0; l < kLength; ++l)
    for (Index j = 0; j < kDim; ++j) {
      double sum = 0;
      for (Index i = 0; i < kExperts; ++i) {
        CHECK_CLOSE(run.grads.gate.scores.weight(l, j, i),
                    router_gradient(seen, s, i, [&](Index n) { return x(n, l, j); }), 1);
        sum += run.grads.gate.scores.weight(l, j, i);
      }
      CHECK(std::abs(sum) <= 1e-15);
    }
  for (Index e = 0; e < kExperts; ++e)
    for (Index l = 0; l < kLength; ++l)
      for (Index k = 0; k < 2; ++k)
        for (Index j = 0; j < kDim; ++j) {
          double expected = 0;
          for (Index n = 0; n < kItems; ++n) {
            if (seen.expert[std::size_t(n)] != e) continue;
            double pre = 0;
            for (Index a = 0; a < kDim; ++a) pre += w(e, l, a, k) * x(n, l, a);
            expected += seen.router_slope[std::size_t(n)] * s.target(n, 0) * seen.pi[std::size_t(n)][std::size_t(e)] *
                        3 * pre * pre * x(n, l, j) / double(kItems);
          }
          CHECK_CLOSE(run.grads.expert.weight(e, l, j, k), expected, 10);
        }
}

TEST_CASE("RoutedTrainer: sums an item's picks; no picks give 0") {
  Cpu::Context ctx(1);
  const auto s = sample();
  const Mixture two{SoftmaxTopK{.scores = {.experts = kExperts}, .selection = {.k = 2}},
                    Linear{.model_dim = kDim * kLength, .output_dim = 1}};
  RoutedTrainer run{ctx, two, Logistic{}, Seed{7}, Element<double>{}};
  Tensor<double, 1, Cpu> valid(kItems);
  for (Index n = 0; n < kItems; ++n) valid(n) = n % 5 != 0;
  Extra<decltype(two), double, Cpu> extra;
  extra.valid = valid;
  run.gradients(s.x, s.target, extra);
  const auto& plan = run.saved.plan;
  std::vector<double> f(kItems, 0.0);
  for (Index slot = 0; slot < plan.offsets(kExperts); ++slot) f[std::size_t(plan.rows(slot))] += run.saved.z(slot, 0);
  for (Index n = 0; n < kItems; ++n) {
    CHECK(run.expert_output()(n, 0) == doctest::Approx(f[std::size_t(n)]).epsilon(1e-14));
    if (n % 5 == 0) CHECK(run.expert_output()(n, 0) == 0);
  }
}

// No layer below learns, so paper 003's layer computes no adjoint of its items.
static_assert(detail_::hook::any::items_adjoint_is_optional<PatchMlp<Cubic>>() &&
              detail_::hook::any::items_adjoint_is_optional<
                  decltype(std::declval<const Mixture<PatchNoisyTop1, PatchMlp<Cubic>>&>().filled_gate())>());

TEST_CASE("RoutedTrainer: threads change no bit; each call zeroes the gradients") {
  const auto s = sample();
  const auto mixture = transformers();
  std::vector<std::vector<double>> all;
  for (const int threads : {1, 2, 3}) {
    Cpu::Context ctx(threads);
    RoutedTrainer run{ctx, mixture, Logistic{}, Seed{7}, false, Element<double>{}};
    run.gradients(s.x, s.target, noise(mixture));
    for (int again = 0; again < 2; ++again) {
      const auto l = run.gradients(s.x, s.target, noise(mixture));
      std::vector<double> values{l.router, l.experts};
      for_each_tensor([&](const Name&, auto& g) { values.insert(values.end(), g.data(), g.data() + g.size()); },
                      run.grads);
      all.push_back(values);
    }
  }
  for (const auto& values : all) CHECK(std::memcmp(values.data(), all[0].data(), values.size() * sizeof(double)) == 0);
}

TEST_CASE("RoutedTrainer: empty batches work; wrong shapes throw") {
  Cpu::Context ctx(1);
  const auto s = sample();
  RoutedTrainer run{ctx, transformers(), Logistic{}, Seed{7}, false, Element<double>{}};
  Tensor<double, 2, Cpu> none(0, kDim * kLength), no_target(0, 1), narrow(kItems, 3), five(5, 1);
  run.gradients(s.x, s.target);
  const auto losses = run.gradients(none, no_target);
  CHECK((losses.router == 0 && losses.experts == 0));
  for_each_tensor(
      [&](const Name& name, auto& g) {
        CAPTURE(name.str());
        CHECK(std::all_of(g.data(), g.data() + g.size(), [](double v) { return v == 0; }));
      },
      run.grads);
  CHECK_THROWS_WITH_AS(run.gradients(narrow, s.target), "RoutedTrainer: x: expected [?, 32], got [24, 3]",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(run.gradients(s.x, five),
                       "RoutedTrainer: x and target: expected the same number of items, got 24 and 5", ArgumentError);
  const View<const double, 2, Cpu> negative(s.x.data(), -24, s.x.extent(1));
  CHECK_THROWS_WITH_AS(run.gradients(negative, s.target), "RoutedTrainer: x: expected [?, 32], got [-24, 32]",
                       ArgumentError);
}

#if GATEFOLD_TEST_COUNTS
TEST_CASE("RoutedTrainer: after the first batch nothing allocates") {
  const auto s = sample();
  const auto mixture = transformers();
  const auto extra = noise(mixture);
  Cpu::Context ctx(2);
  RoutedTrainer run{ctx, mixture, Logistic{}, Seed{7}, false, Element<double>{}};
  run.gradients(s.x, s.target, extra);
  run.evaluate(s.x, s.target, extra);
  const int before = support::allocations;
  for (int t = 0; t < 3; ++t) run.gradients(s.x, s.target, extra);
  run.evaluate(s.x, s.target, extra);
  const int after = support::allocations;
  CHECK(before > 0);
  CHECK(after == before);
}
#endif
