#include "gatefold/gate/selection/scheduled_top_k.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using ScheduledGate = ComposedGate<LinearScores, Independent, ScheduledTopK>;

/// Extra inputs with k = 3.
struct Three {
  template <class T>
  ScheduledGate::Extra<T, Cpu> operator()(Element<T>, Index, Index) const {
    return {.selection = {.k = 3}};
  }
};

}  // namespace

TEST_CASE("ScheduledTopK (1): k in the extra inputs replaces the option") {
  Cpu::Context ctx(1);
  for (const bool renormalise : {false, true})
    for (const Index k : {0, 1, 4, 2, 5}) {
      CAPTURE(k);
      auto scheduled = pass<double>(
          ctx,
          Mixture{ScheduledGate{.scores = {.experts = 5}, .selection = {.k = 3, .renormalise = renormalise}},
                  Linear{.model_dim = 4}},
          6);
      auto fixed = pass<double>(
          ctx,
          Mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = k == 0 ? 3 : k, .renormalise = renormalise}},
                  Linear{.model_dim = 4}},
          6);
      scheduled.extra.selection.k = k;
      scheduled.forward();
      fixed.forward();
      scheduled.backward();
      fixed.backward();
      CHECK(scheduled.saved.branch.plan.expert.size() == 6 * (k == 0 ? 3 : k));
      CHECK(same_bits(scheduled.outcome(), fixed.outcome()));
    }
}

TEST_CASE("ScheduledTopK: gradients and conformance with k from extra inputs") {
  const auto report = check::conformance<Cpu, double>(
      Mixture{ScheduledGate{.scores = {.experts = 4}, .selection = {.k = 1}}, Linear{.model_dim = 3}},
      {.items_are_independent = true}, Three{});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("ScheduledTopK: k outside 1 … experts throws") {
  Cpu::Context ctx(1);
  const auto mixture = [](Index k) {
    return Mixture{ScheduledGate{.scores = {.experts = 3}, .selection = {.k = k}}, Linear{.model_dim = 2}};
  };
  auto wide = pass<double>(ctx, mixture(4), 2);  // forward checks k, because the extra inputs can replace it
  CHECK(message_of([&] { wide.forward(); }) == "TopK: k: expected 1 <= k <= experts = 3, got 4");
  CHECK(wide.untouched());
  wide.extra.selection.k = 3;
  wide.forward();
  CHECK_FALSE(wide.untouched());
  auto p = pass<double>(ctx, mixture(2), 2);
  p.extra.selection.k = 5;
  CHECK(message_of([&] { p.forward(); }) == "TopK: k: expected 1 <= k <= experts = 3, got 5");
  CHECK(p.untouched());
  p.extra.selection.k = -1;
  CHECK(message_of([&] { p.forward(); }) == "TopK: k: expected 1 <= k <= experts = 3, got -1");
}

TEST_CASE("ScheduledTopK: k is checked before the first write") {
  Cpu::Context ctx(1);
  const ScheduledGate gate = with_model_dim(ScheduledGate{.scores = {.experts = 3}}, 2);
  const auto params = gate.init<double, Cpu>(ctx, Seed{1});
  CHECK(message_of([&] { gate.validate(params, 2, ScheduledGate::Extra<double, Cpu>{.selection = {.k = 5}}); }) ==
        "TopK: k: expected 1 <= k <= experts = 3, got 5");
}

TEST_CASE("ScheduledTopK: with k in extra inputs, the option is unchecked") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Mixture{ScheduledGate{.scores = {.experts = 1}}, Linear{.model_dim = 2}}, 3);
  p.extra.selection.k = 1;
  p.forward();
  CHECK(p.saved.branch.plan.expert.size() == 3);
}

namespace {

std::vector<Index> counts(const Annealed& schedule, Index steps) {
  std::vector<Index> all;
  for (Index t = 0; t <= steps; ++t) all.push_back(schedule.count_at(t));
  return all;
}

}  // namespace

TEST_CASE("Annealed (1)-(3): start, middle, end and later values equal formulas") {
  using enum Annealed::Shape;
  for (const auto shape : {linear, cosine, geometric}) {
    const Annealed tau{.from = 10, .to = 0.01, .total = 100, .shape = shape};
    CHECK(tau.at(0) == rounded(10));
    CHECK(tau.at(100) == rounded(0.01));
    CHECK(tau.at(1000) == tau.at(100));
    for (Index t = 1; t <= 100; ++t) CHECK(tau.at(t) < tau.at(t - 1));
  }
  const double d = 0.01 - 10;
  CHECK(Annealed{.from = 10, .to = 0.01, .total = 4}.at(1) == rounded(10 + d / 4));
  CHECK(Annealed{.from = 10, .to = 0.01, .total = 4, .shape = cosine}.at(1) ==
        rounded(10 + d * (1 - std::cos(std::acos(-1.0) / 8))));
  CHECK(Annealed{.from = 10, .to = 0.01, .total = 4, .shape = cosine}.at(2) == rounded(10 + d * (1 - std::sqrt(0.5))));
  CHECK(Annealed{.from = 10, .to = 0.01, .total = 4, .shape = geometric}.at(2) == rounded(std::sqrt(0.1)));
  CHECK(Annealed{.from = -1, .to = -4, .total = 2, .shape = geometric}.at(1) == rounded(-2));
}

TEST_CASE("Annealed (4): levels have equal length") {
  const Annealed k{.total = 10, .shape = Annealed::Shape::levels, .levels = {1, 2, 4, 8, 16}};
  CHECK(counts(k, 11) == std::vector<Index>{1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 16, 16});
  const Annealed odd{.total = 3, .shape = Annealed::Shape::levels, .levels = {0.5, 7}};
  CHECK(odd.at(0) == 0.5);
  CHECK(odd.at(1) == 0.5);
  CHECK(odd.at(2) == 7);
  CHECK(odd.count_at(0) == 0);
}

TEST_CASE("Annealed (5): each update covers 1% of the remainder") {
  const Annealed k{.from = 8, .to = 16, .total = 600, .shape = Annealed::Shape::saturating};
  CHECK(k.at(0) == 8);
  CHECK(k.at(1) == 8);
  CHECK(k.at(2) == rounded(8.08));
  CHECK(k.at(5) == rounded(16 - 8 * 0.99 * 0.99));
  CHECK(k.at(600) == rounded(16 - 8 * std::exp(300 * std::log(0.99))));
  CHECK(k.count_at(600) == 16);
  CHECK(Annealed{.from = 1, .to = 2, .total = 10, .shape = Annealed::Shape::saturating}.at(1) == rounded(1.01));
}

TEST_CASE("Annealed (6): K grows as in SMoE-dropout; halves become even") {
  // (Kmax − Kmin) · step / total = 0, 0.5, 1, 1.5, …; rounded it is 0, 0, 1, 2, 2, 2, 3, 4, 4, to which Kmin is added.
  const Annealed up{.from = 8, .to = 12, .total = 8};
  CHECK(counts(up, 9) == std::vector<Index>{8, 8, 9, 10, 10, 10, 11, 12, 12, 12});
  const Annealed odd{.from = 1, .to = 3, .total = 4};
  CHECK(counts(odd, 4) == std::vector<Index>{1, 1, 2, 3, 3});
  const Annealed down{.from = 4, .to = 1, .total = 6};
  CHECK(counts(down, 6) == std::vector<Index>{4, 4, 3, 2, 2, 2, 1});
  // The value is rounded, then kept within the two ends.
  CHECK(Annealed{.from = 1, .to = 1.6, .total = 1}.at(1) == 1.6);
  CHECK(Annealed{.from = 1, .to = 1.6, .total = 1}.count_at(1) == 1);
}

TEST_CASE("Annealed: invalid schedules throw") {
  using enum Annealed::Shape;
  CHECK(message_of([] { (void)Annealed{.total = 0}.at(0); }) == "Annealed: total: expected at least 1, got 0");
  CHECK(message_of([] { (void)Annealed{}.at(-1); }) == "Annealed: step: expected at least 0, got -1");
  CHECK(message_of([] { (void)Annealed{.from = 1, .to = 0, .shape = geometric}.at(0); }) ==
        "Annealed: from, to: expected numbers of the same sign, not 0, got 1, 0");
  CHECK(message_of([] { (void)Annealed{.shape = levels}.at(0); }) == "Annealed: levels: expected at least one, got 0");
  const Annealed long_run{.total = Index(1) << 62, .shape = levels, .levels = {1, 2, 3, 4}};
  CHECK(message_of([&] { (void)long_run.at(Index(1) << 62); }) ==
        "Annealed: total: expected at most 2305843009213693951 for this number of levels, got 4611686018427387904");
}
