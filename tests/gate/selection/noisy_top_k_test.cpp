#include "gatefold/gate/selection/noisy_top_k.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "support/naive_moe.hpp"
#include "support/rounded.hpp"
#include "support/selections.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Noise noise{Random{Seed{5}, 2}};
using Gate = ComposedGate<LinearScores, Independent, NoisyTopK<>>;

/// A policy with W ≠ 0, so that the items change the deviation.
NoisyTopK<> learned(Index k, double epsilon = 0) {
  NoisyTopK<> p = NoisyTopK<>::reference({.k = k});
  p.epsilon = epsilon;
  p.initial = Initial::normal(0.7);
  return p;
}

/// Returns softplus(x[n] W)[e] for x [N, 3].
template <class S>
double softplus_of(const S& s, Index n, Index e) {
  double dot = 0;
  for (Index d = 0; d < 3; ++d) dot += s.x(n, d) * s.params.noise(d, e);
  return std::log(1 + std::exp(dot));
}
/// Checks that the picks of item n are the k best of its noisy values, with the weights of (1), or of (2) for V-MoE.
void check_picks(const SparsePlan<double, Cpu>& plan, Index n, const naive::Row& value, Index k, bool vmoe) {
  const auto best = naive::best(value, k);
  naive::Row taken;
  for (const Index e : best) taken.push_back(value[static_cast<std::size_t>(e)]);
  for (Index j = 0; j < k; ++j) {
    const Index e = best[static_cast<std::size_t>(j)];
    CHECK(plan.expert(n * k + j) == e);
    CHECK(plan.weight(n * k + j) == doctest::Approx(vmoe ? naive::softmax(value)[static_cast<std::size_t>(e)]
                                                         : naive::softmax(taken)[static_cast<std::size_t>(j)])
                                        .epsilon(1e-13));
  }
}

}  // namespace

TEST_CASE("NoisyTopK: the slope of softplus + epsilon is σ(v)") {
  Cpu::Context ctx(1);
  NoisyTopK<> policy = NoisyTopK<>::reference({.k = 1});
  policy.model_dim = 1;
  policy.experts = 4;
  auto p = policy.init<float, Cpu>(ctx, Seed{1});
  const double v[] = {-60, -25, -19, 2};
  for (Index e = 0; e < 4; ++e) p.noise(0, e) = float(v[e]);
  auto grads = zeros_like(ctx, p);
  const auto x = constant_tensor<float>(ctx, 1, 1, 1), rank = constant_tensor<float>(ctx, 0, 1, 4),
             q = constant_tensor<float>(ctx, 0.25, 1, 4);
  auto dx = zeros_like(ctx, x), drank = zeros_like(ctx, rank), dq = zeros_like(ctx, q), dvalue = zeros_like(ctx, rank),
       ddeviation = constant_tensor<float>(ctx, 1, 1, 4);
  const Candidates<float, Cpu> c{x, rank, q};
  const Noise noise{Random{Seed{5}, 2}};
  SparsePlan<float, Cpu> plan;
  NoisyTopK<>::Saved<float, Cpu> saved;
  policy.forward(ctx, p, c, plan, saved, noise);
  auto mark = ctx.mark();
  const auto dplan = plan.grad(ctx);
  policy.backward(ctx, p, c, plan, saved, dplan, CandidatesGrad<float, Cpu>{dx, drank, dq, {dvalue, ddeviation}}, grads,
                  noise);
  for (Index e = 0; e < 4; ++e) {
    CHECK(saved.deviation(0, e) == rounded<float>(std::log1p(std::exp(v[e])) + 0.01));
    CHECK(grads.noise(0, e) * (1 + std::exp(-v[e])) == rounded<float>(1));
  }
}

TEST_CASE("NoisyTopK (1), (2): keeps the k largest noisy ranks") {
  for (const Index experts : {1, 3, 257})
    for (const Index k : {Index(1), Index(2), experts})
      for (const bool vmoe : {false, true}) {
        if (k > experts) continue;
        const auto s = select(vmoe ? NoisyTopK<>::vmoe({.k = k}) : learned(k, 0.01), random_ranks(12, experts), noise);
        REQUIRE(picks_are_distinct(s.plan, k));
        for (Index n = 0; n < 12; ++n) {
          naive::Row value;
          for (Index e = 0; e < experts; ++e) {
            const double deviation = vmoe ? 1 / double(experts) : softplus_of(s, n, e) + 0.01;
            value.push_back(s.rank(n, e) +
                            deviation * normal<double>(Seed{5}, 2, static_cast<std::uint64_t>(n * experts + e)));
            CHECK(s.policy.noisy(s.saved).deviation(n, e) == doctest::Approx(deviation).epsilon(1e-14));
            CHECK(s.policy.noisy(s.saved).value(n, e) == doctest::Approx(value.back()).epsilon(1e-13));
          }
          check_picks(s.plan, n, value, k, vmoe);
        }
      }
}

TEST_CASE_TEMPLATE("NoisyTopK (1), (2): adds each kind of noise", Law, UniformNoise, SignedUniformNoise, GumbelNoise) {
  using Policy = NoisyTopK<Law>;
  const Index experts = 5, k = 2;
  for (const bool vmoe : {false, true}) {
    CAPTURE(vmoe);
    const Policy options{.k = k, .initial = Initial::normal(0.7)};
    const auto s = select(vmoe ? Policy::vmoe(options) : options, random_ranks(12, experts), noise);
    for (Index n = 0; n < 12; ++n) {
      naive::Row value;
      for (Index e = 0; e < experts; ++e) {
        const double u = uniform<double>(Seed{5}, 2, static_cast<std::uint64_t>(n * experts + e));
        const double r = std::is_same_v<Law, UniformNoise>         ? u
                         : std::is_same_v<Law, SignedUniformNoise> ? 2 * u - 1
                                                                   : -std::log(-std::log(u));
        value.push_back(s.rank(n, e) + (vmoe ? 1 / double(experts) : softplus_of(s, n, e)) * r);
      }
      check_picks(s.plan, n, value, k, vmoe);
    }
    GateAlone<ComposedGate<LinearScores, Independent, Policy>> alone(
        {.scores = {.experts = 3}, .selection = vmoe ? Policy::vmoe(options) : options}, 7, {.selection = noise});
    const auto report = alone.gradients();
    CHECK_MESSAGE(report, report.str());
  }
  CHECK_FALSE(Policy::shows_noise);  // Load assumes Gaussian noise
}

TEST_CASE("NoisyTopK (1): initial deviations are log 2, plus epsilon") {
  const auto paper = select(NoisyTopK<>{}, random_ranks(5, 4), noise),
             reference = select(NoisyTopK<>::reference(), random_ranks(5, 4), noise);
  for (const double v : values(paper.saved.deviation)) CHECK(v == doctest::Approx(std::log(2.0)).epsilon(1e-15));
  for (const double v : values(reference.saved.deviation))
    CHECK(v == doctest::Approx(std::log(2.0) + 0.01).epsilon(1e-15));
  CHECK(paper.params.noise.size() == 12);
  CHECK(select(NoisyTopK<>::vmoe(), random_ranks(5, 4), noise).params.noise.size() == 0);
}

TEST_CASE("NoisyTopK: large x W neither overflows nor loses the deviation") {
  Cpu::Context ctx(1);
  const auto rank = matrix<float>({{0, 0, 0}});
  Params<NoisyTopK<>, float, Cpu> p{matrix<float>({{300, -300, -20}})};
  Saved<NoisyTopK<>, float, Cpu> saved;
  SparsePlan<float, Cpu> plan;
  NoisyTopK<>{.k = 1}.forward(ctx, p, Candidates<float, Cpu>{matrix<float>({{1}}), rank, rank}, plan, saved, noise);
  CHECK(saved.deviation(0, 0) == 300);
  CHECK(saved.deviation(0, 1) == 0);
  CHECK(saved.deviation(0, 2) / std::exp(-20.0) == rounded<float>(1));
}

TEST_CASE("NoisyTopK: without noise it equals TopK, bit for bit") {
  for (const bool vmoe : {false, true}) {
    const NoisyTopK<> policy = vmoe ? NoisyTopK<>::vmoe({.k = 3}) : learned(3);
    const auto top = select(TopK{.k = 3, .renormalise = !vmoe}, random_ranks(20, 5));
    auto quiet = select(policy, random_ranks(20, 5));
    CHECK(quiet.experts() == top.experts());
    CHECK(same_bits(values(quiet.plan.weight), values(top.plan.weight)));
    CHECK(quiet.policy.noisy(quiet.saved).value.data() == nullptr);
    // A call with noise leaves noisy values in `saved`. A later call without noise must still give the picks of TopK.
    const Candidates<double, Cpu> c{quiet.x, quiet.rank, quiet.q};
    quiet.policy.forward(quiet.ctx, quiet.params, c, quiet.plan, quiet.saved, noise);
    CHECK(quiet.policy.noisy(quiet.saved).value.data() != nullptr);
    quiet.policy.forward(quiet.ctx, quiet.params, c, quiet.plan, quiet.saved, Noise{});
    CHECK(quiet.policy.noisy(quiet.saved).value.data() == nullptr);
    CHECK(quiet.experts() == top.experts());
  }
}

TEST_CASE("NoisyTopK: vanishing noise gives the weights of TopK") {
  for (const bool renormalise : {false, true}) {
    NoisyTopK<> policy = NoisyTopK<>::vmoe({.k = 2});
    policy.renormalise = renormalise;
    policy.deviation = 1e-13;
    const auto top = select(TopK{.k = 2, .renormalise = renormalise}, random_ranks(20, 5));
    const auto noisy = select(policy, random_ranks(20, 5), noise);
    CHECK(noisy.experts() == top.experts());
    CHECK(difference(values(noisy.plan.weight), values(top.plan.weight)) < 1e-12);
  }
}

TEST_CASE("NoisyTopK: gradients equal finite differences for any K") {
  for (const Index k : {1, 2, 3})
    for (const bool renormalise : {false, true}) {
      CAPTURE(k);
      CAPTURE(renormalise);
      NoisyTopK<> policy = learned(k, 0.1);
      policy.renormalise = renormalise;
      const bool constant = k == 1 && renormalise;  // the weight is 1
      GateAlone<Gate> noisy({.scores = {.experts = 3}, .selection = policy}, 7, {.selection = noise});
      const auto with = noisy.gradients(
          constant ? check::GradientOptions{.zero = {"x", "scores.weight", "scores.bias", "selection.noise"}}
                   : check::GradientOptions{});
      CHECK_MESSAGE(with, with.str());
    }
  GateAlone<Gate> quiet({.scores = {.experts = 3}, .selection = learned(2)}, 7);
  const auto without = quiet.gradients({.zero = {"selection.noise"}});
  CHECK_MESSAGE(without, without.str());
  GateAlone<Gate> vmoe({.scores = {.experts = 3}, .selection = NoisyTopK<>::vmoe({.k = 2})}, 7, {.selection = noise});
  const auto fixed = vmoe.gradients();
  CHECK_MESSAGE(fixed, fixed.str());
}

TEST_CASE("NoisyTopK: threads change no bit; backward adds to gradients") {
  CHECK(
      GateAlone<Gate>({.scores = {.experts = 3}, .selection = learned(2)}, 50, {.selection = noise}).keeps_promises());
}

TEST_CASE("NoisyTopK: padding does not change the gradient of W") {
  const std::vector<double> mask{1, 0, 1, 1, 0, 1};
  GateAlone<Gate> a({.scores = {.experts = 3}, .selection = learned(2)}, 6, {.selection = noise, .valid = mask});
  const auto report = a.gradients();
  CHECK_MESSAGE(report, report.str());
  const auto before = values(a.grads);
  for (const Index n : {1, 4})
    for (Index d = 0; d < 4; ++d) a.x(n, d) = quiet_nan;
  set_zero(a.ctx, a.grads);
  a.forward();
  a.backward();
  CHECK(same_bits(values(a.grads), before));
}

TEST_CASE("NoisyTopK: NaN gives distinct experts; ties pick lower indices") {
  const auto rank = [] {
    return matrix<double>({{quiet_nan, quiet_nan, quiet_nan, quiet_nan},
                           {quiet_nan, 1, quiet_nan, 2},
                           {-infinity, 3, infinity, quiet_nan}});
  };
  for (const auto& policy : {learned(3), NoisyTopK<>::vmoe({.k = 3})}) {
    const auto s = select(policy, rank(), noise);
    CHECK(picks_are_distinct(s.plan, 3));
    CHECK(s.plan.expert(0) == 0);
    CHECK(s.plan.expert(5) == 0);
    CHECK(s.plan.expert(6) == 2);
    CHECK(select(policy, equal_ranks(2, 4)).experts() == Ids{0, 1, 2, 0, 1, 2});
  }
}

TEST_CASE("NoisyTopK: empty batches, one expert and k = experts work") {
  for (const auto& policy : {learned(1), NoisyTopK<>::vmoe({.k = 1})}) {
    const auto none = select(policy, random_ranks(0, 4), noise);
    CHECK(none.plan.expert.size() == 0);
    CHECK(none.plan.experts() == 4);
    const auto one = select(policy, random_ranks(3, 1), noise);
    CHECK(one.experts() == Ids{0, 0, 0});
    CHECK(values(one.plan.weight) == std::vector<double>{1, 1, 1});
    auto rank = random_ranks(6, 4);
    for (Index n = 0; n < 6; ++n) rank(n, 2) = 40;
    const auto hot = select(policy, std::move(rank), noise);
    CHECK(hot.experts() == Ids(6, 2));
    CHECK(hot.plan.offsets(2) == 0);
    CHECK(hot.plan.offsets(3) == 6);
  }
  const auto all = select(learned(4), random_ranks(5, 4), noise);
  CHECK(picks_are_distinct(all.plan, 4));
  for (Index n = 0; n < 5; ++n) {
    double sum = 0;
    for (Index j = 0; j < 4; ++j) sum += all.plan.weight(4 * n + j);
    CHECK(sum == doctest::Approx(1).epsilon(1e-14));
  }
}

TEST_CASE("NoisyTopK: wrong options and shapes throw") {
  const auto run = [](const NoisyTopK<>& p) { return message_of([&] { select(p, random_ranks(2, 3), noise); }); };
  CHECK(run({.k = 4}) == "NoisyTopK: k: expected 1 <= k <= experts = 3, got 4");
  CHECK(message_of([] { NoisyTopK<>{.deviation = 0}.validate_options(3); }) ==
        "NoisyTopK: deviation: expected more than 0, got 0");
  CHECK(message_of([] { NoisyTopK<>{.epsilon = -1}.validate_options(3); }) ==
        "NoisyTopK: epsilon: expected at least 0, got -1");
  CHECK(run({.model_dim = 5}) == "NoisyTopK: model_dim: expected 3 (the width of the items), got 5");
  CHECK(run({.experts = 5}).starts_with("Gate: experts: expected 3"));
  const Params<NoisyTopK<>, double, Cpu> p{matrix<double>({{1, 2}})};
  CHECK(message_of([&] { NoisyTopK<>{.model_dim = 3, .experts = 2}.validate(p, 1, noise); }) ==
        "NoisyTopK: params.noise: expected [3, 2], got [1, 2]");
  auto s = select(NoisyTopK<>{}, random_ranks(2, 3), noise);
  s.params.noise.resize(3, 2);
  CHECK(message_of([&] {
          s.policy.forward(s.ctx, s.params, Candidates<double, Cpu>{s.x, s.rank, s.q}, s.plan, s.saved, noise);
        }) == "NoisyTopK: params.noise: expected [3, 3], got [3, 2]");
}
