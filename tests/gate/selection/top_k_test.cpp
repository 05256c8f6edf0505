#include "gatefold/gate/selection/top_k.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"
#include "support/reserved.hpp"
#include "support/rounded.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

template <class T>
SparsePlan<T, Cpu> select(const TopK& top_k, const Tensor<T, 2, Cpu>& rank, const Tensor<T, 2, Cpu>& q) {
  Cpu::Context ctx(2);
  SparsePlan<T, Cpu> plan;
  Nothing<T, Cpu> none;
  top_k.forward(ctx, none, Candidates<T, Cpu>{q, rank, q}, plan, none, none);
  return plan;
}
std::vector<Index> experts_of(const SparsePlan<double, Cpu>& plan) {
  return {plan.expert.data(), plan.expert.data() + plan.expert.size()};
}
using Picks = std::vector<Index>;

/// Returns random ranks with many ties, NaN and infinities.
Tensor<double, 2, Cpu> wild(Index items, Index experts, unsigned seed) {
  std::mt19937 generator(seed);
  Tensor<double, 2, Cpu> rank(items, experts);
  for (Index i = 0; i < rank.size(); ++i) {
    const unsigned r = generator() % 16;
    rank.data()[i] = r == 0 ? quiet_nan : r == 1 ? infinity : r == 2 ? -infinity : double(r % 5);
  }
  return rank;
}

auto mixture(Index experts, Index k, bool renormalise) {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = k, .renormalise = renormalise}},
                 Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}};
}

}  // namespace

TEST_CASE("TopK (1), (2): picks and weights follow a stable sort") {
  for (const Index experts : {1, 2, 3, 7, 64, 257})
    for (const Index k : {Index(1), Index(2), experts / 2, experts}) {
      if (k < 1 || k > experts) continue;
      CAPTURE(experts);
      CAPTURE(k);
      const Index items = 20;
      const auto rank = wild(items, experts, static_cast<unsigned>(experts + k));
      Cpu::Context ctx(1);
      Tensor<double, 2, Cpu> q(items, experts);
      fill_uniform(ctx, Seed{3}, 0.1, 1, q);
      const auto renormalised = select(TopK{.k = k, .renormalise = true}, rank, q);
      const auto plain = select(TopK{.k = k, .renormalise = false}, rank, q);
      REQUIRE(plain.expert.size() == items * k);
      CHECK(experts_of(renormalised) == experts_of(plain));
      for (Index n = 0; n < items; ++n) {
        const auto best = naive::best(naive::row(rank, n), k);
        double total = 0;
        for (const Index e : best) total += q(n, e);
        for (Index j = 0; j < k; ++j) {
          const Index e = best[static_cast<std::size_t>(j)];
          CHECK(plain.item(n * k + j) == n);
          CHECK(plain.expert(n * k + j) == e);
          CHECK(plain.weight(n * k + j) == q(n, e));
          CHECK(renormalised.weight(n * k + j) == doctest::Approx(q(n, e) / total).epsilon(1e-14));
        }
      }
    }
}

TEST_CASE_TEMPLATE("RankedRow: after() lists all experts in order of rank", T, float, double) {
  for (const Index experts : {1, 8, 16, 17, 64, 257}) {
    const auto rank = wild(9, experts, static_cast<unsigned>(experts));
    for (Index n = 0; n < 9; ++n) {
      std::vector<T> row;
      for (Index e = 0; e < experts; ++e) row.push_back(static_cast<T>(rank(n, e)));
      const functor::RankedRow<T> ranked{row.data(), experts};
      Index last = -1, wrong = 0;
      for (const Index e : naive::best(naive::row(rank, n), experts))
        wrong += (last = ranked.after(OneLane{}, last)) != e;
      CHECK(wrong == 0);
      CHECK(ranked.after(OneLane{}, last) == -1);
    }
  }
}

TEST_CASE("TopK: ties go to the lower index") {
  const auto rank = matrix<double>({{2, 2, 2, 2}, {1, 3, 3, 1}, {-1, -2, -1, -1}});
  CHECK(experts_of(select(TopK{.k = 2}, rank, rank)) == Picks{0, 1, 1, 2, 0, 2});
  CHECK(experts_of(select(TopK{.k = 4}, rank, rank)) == Picks{0, 1, 2, 3, 1, 2, 0, 3, 0, 2, 3, 1});
  // The two zeros count as equal.
  const auto zeros = matrix<double>({{-0.0, 0.0}});
  CHECK(experts_of(select(TopK{.k = 2}, zeros, zeros)) == Picks{0, 1});
}

TEST_CASE("TopK: NaN ranks last; experts stay distinct (vLLM #39244)") {
  const auto rank = matrix<double>({{quiet_nan, quiet_nan, quiet_nan, quiet_nan},
                                    {quiet_nan, 1, quiet_nan, 2},
                                    {quiet_nan, -infinity, quiet_nan, quiet_nan},
                                    {3, quiet_nan, 3, quiet_nan}});
  CHECK(experts_of(select(TopK{.k = 3}, rank, rank)) == Picks{0, 1, 2, 3, 1, 0, 1, 0, 2, 0, 2, 1});
  const auto more = wild(200, 33, 5);
  const auto plan = select(TopK{.k = 9}, more, more);
  for (Index n = 0; n < 200; ++n) {
    std::set<Index> seen;
    for (Index j = 0; j < 9; ++j) seen.insert(plan.expert(n * 9 + j));
    CHECK(seen.size() == 9);
    CHECK(*seen.begin() >= 0);
    CHECK(*seen.rbegin() < 33);
  }
}

TEST_CASE("TopK: a NaN item changes no bit of other items") {
  Cpu::Context ctx(1);
  auto clean = pass<float>(ctx, mixture(5, 2, true), 6), poisoned = pass<float>(ctx, mixture(5, 2, true), 6);
  for (Index d = 0; d < 4; ++d) poisoned.x(3, d) = std::numeric_limits<float>::quiet_NaN();
  clean.forward();
  poisoned.forward();
  const auto& plan = poisoned.saved.branch.plan;
  CHECK(plan.expert(6) == 0);
  CHECK(plan.expert(7) == 1);
  for (Index n = 0; n < 6; ++n)
    for (Index d = 0; d < 4; ++d) {
      if (n == 3) CHECK(std::isnan(poisoned.y(n, d)));
      if (n != 3) CHECK(poisoned.y(n, d) == clean.y(n, d));
    }
}

TEST_CASE("TopK: infinite logits rank first and last among the numbers") {
  const auto rank =
      matrix<double>({{-infinity, 1, infinity}, {infinity, infinity, 0}, {-infinity, quiet_nan, -infinity}});
  CHECK(experts_of(select(TopK{.k = 3}, rank, rank)) == Picks{2, 1, 0, 0, 1, 2, 0, 2, 1});
}

TEST_CASE("TopK: a logit of minus infinity gives weight 0") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, mixture(3, 3, true), 1);
  p.params.branch.gate.scores.bias(1) = -infinity;
  p.forward();
  auto z = naive::logits(p.params.branch.gate.scores, naive::row(p.x, 0));
  const double a = 1 / (1 + std::exp(z[2] - z[0]));
  for (Index j = 0; j < 3; ++j) {
    const Index e = p.saved.branch.plan.expert(j);
    CHECK(p.saved.branch.plan.weight(j) == rounded(e == 1 ? 0 : e == 0 ? a : 1 - a));
  }
}

TEST_CASE("TopK: k = experts picks every expert once") {
  Cpu::Context ctx(1);
  auto all = pass<double>(ctx, mixture(5, 5, true), 4);
  all.forward();
  const auto& plan = all.saved.branch.plan;
  for (Index n = 0; n < 4; ++n) {
    double sum = 0;
    std::set<Index> seen;
    for (Index j = 0; j < 5; ++j) {
      seen.insert(plan.expert(n * 5 + j));
      sum += plan.weight(n * 5 + j);
      // No expert is left out, so renormalising changes nothing.
      CHECK(plan.weight(n * 5 + j) ==
            doctest::Approx(all.saved.branch.gate.probabilities(n, plan.expert(n * 5 + j))).epsilon(1e-14));
    }
    CHECK(seen.size() == 5);
    CHECK(sum == doctest::Approx(1).epsilon(1e-14));
  }
  for (const bool renormalise : {false, true}) {
    auto one = pass<double>(ctx, mixture(1, 1, renormalise), 3);
    one.forward();
    CHECK(values(one.saved.branch.plan.weight) == std::vector<double>{1, 1, 1});
  }
}

TEST_CASE("TopK: an empty batch gives an empty plan") {
  const Tensor<double, 2, Cpu> none(0, 7);
  const auto plan = select(TopK{.k = 3}, none, none);
  CHECK(plan.expert.size() == 0);
  CHECK(plan.items() == 0);
  CHECK(plan.experts() == 7);
  for (Index e = 0; e <= 7; ++e) CHECK(plan.offsets(e) == 0);
}

TEST_CASE("TopK: k outside 1 … experts throws") {
  const auto rank = matrix<double>({{1, 2, 3}});
  CHECK(message_of([&] { select(TopK{.k = 4}, rank, rank); }) == "TopK: k: expected 1 <= k <= experts = 3, got 4");
  CHECK(message_of([&] { select(TopK{.k = 0}, rank, rank); }) == "TopK: k: expected 1 <= k <= experts = 3, got 0");
  CHECK(message_of([&] { select(TopK{.k = -1}, rank, rank); }) == "TopK: k: expected 1 <= k <= experts = 3, got -1");
}

TEST_CASE("TopK: saved values of another k throw") {
  Cpu::Context ctx(1);
  const auto layer = [](Index k) {
    return Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = k}}, Linear{.model_dim = 4}};
  };
  for (const Index k : {1, 3}) {
    auto p = pass<float>(ctx, layer(2), 8), other = pass<float>(ctx, layer(k), 8);
    other.forward();
    std::swap(p.saved, other.saved);
    CHECK(message_of([&] { p.backward(); }) ==
          "TopK.backward: saved picks: expected 16 (2 for each of 8 items), got " + std::to_string(8 * k));
  }
}

TEST_CASE("TopK: k = 1 with renormalise gives router gradient 0") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, mixture(4, 1, true), 9);
  p.forward();
  p.backward();
  for (const double g : values(p.grads.branch.gate)) CHECK(g == 0);
  const auto report = check::gradients(ctx, mixture(4, 1, true), {.zero = {"gate.scores.weight", "gate.scores.bias"}});
  CHECK_MESSAGE(report, report.str());
  // Without renormalisation the router learns.
  auto learning = pass<double>(ctx, mixture(4, 1, false), 9);
  learning.forward();
  learning.backward();
  for (const double g : values(learning.grads.branch.gate.scores.bias)) CHECK(g != 0);
}

TEST_CASE("TopK: ranks by logits if float probabilities underflow") {
  // x = 1, so the logits are the weights of the router. In float all probabilities but one are 0.
  Cpu::Context ctx(1);
  auto p = pass<float>(
      ctx, Mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = 3}}, Linear{.model_dim = 1}}, 1);
  const float logits[] = {-1000, -998, 1000, -999, -997};
  p.x(0, 0) = 1;
  fill(ctx, p.params.branch.gate.scores.bias.view(), 0);
  for (Index e = 0; e < 5; ++e) p.params.branch.gate.scores.weight(0, e) = logits[e];
  p.forward();
  const auto& plan = p.saved.branch.plan;
  REQUIRE(p.saved.branch.gate.probabilities(0, 1) == 0);
  REQUIRE(p.saved.branch.gate.probabilities(0, 4) == 0);
  CHECK(plan.expert(0) == 2);
  CHECK(plan.expert(1) == 4);
  CHECK(plan.expert(2) == 1);
  CHECK(plan.weight(0) == 1);
  CHECK(plan.weight(1) == 0);
}

TEST_CASE("TopK: gradients and conformance, with and without renormalising" * doctest::skip(support::slow_build)) {
  for (const bool renormalise : {false, true})
    for (const Index k : {2, 3}) {
      CAPTURE(renormalise);
      CAPTURE(k);
      const auto report = check::conformance<Cpu, double>(mixture(3, k, renormalise), {.items_are_independent = true});
      CHECK_MESSAGE(report, report.str());
    }
  const auto first = check::conformance<Cpu, double>(mixture(3, 1, false), {.items_are_independent = true});
  CHECK_MESSAGE(first, first.str());
  Cpu::Context ctx(1);
  const auto many = check::gradients(
      ctx, Mixture{SoftmaxTopK{.scores = {.experts = 257}, .selection = {.k = 2}}, Linear{.model_dim = 2}},
      {.items = 5});
  CHECK_MESSAGE(many, many.str());
}

TEST_CASE("TopK: picks follow a stable sort with many experts") {
  for (const Index experts : {63, 64, 65, 1000})
    for (const Index k : {1, 2, 8}) {
      std::mt19937 generator(static_cast<unsigned>(experts * k));
      std::normal_distribution<float> normal;
      Tensor<float, 2, Cpu> rank(30, experts);
      for (Index i = 0; i < rank.size(); ++i) rank.data()[i] = i % 7 == 3 ? 1.5f : normal(generator);
      const auto plan = select(TopK{.k = k}, rank, rank);
      Index wrong = 0;
      for (Index n = 0; n < 30; ++n) {
        const auto best = naive::best(naive::row(rank, n), k);
        for (Index j = 0; j < k; ++j) wrong += plan.expert(n * k + j) != best[static_cast<std::size_t>(j)];
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("TopK: sizes have 64 bits: item 2^31 + 1 works") {
  const Index items = (Index(1) << 31) + 2, experts = 2;
  const Reserved<float> rank(items * experts), weight(items);
  const Reserved<Index> item(items), expert(items);
  CHECK(sizeof(Index) == 8);
  if (!rank.data() || !weight.data() || !item.data() || !expert.data()) {
    MESSAGE("skipped: the system gives no addresses");
    return;
  }
  const View<float, 2, Cpu> scores(rank.data(), items, experts);
  const Index n = items - 1;
  scores(n, 0) = 0.25f;
  scores(n, 1) = 0.75f;
  const functor::PickTopK<float, Cpu> pick{
      scores, scores, 1, false, {item.data(), items}, {expert.data(), items}, {weight.data(), items}};
  pick(OneLane{}, n);
  CHECK(item.data()[n] == n);
  CHECK(expert.data()[n] == 1);
  CHECK(weight.data()[n] == 0.75f);
}
