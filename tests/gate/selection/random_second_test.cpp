#include "gatefold/gate/selection/random_second.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/messages.hpp"
#include "support/naive_moe.hpp"
#include "support/selections.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Noise noise{Random{Seed{5}, 2}};
using Gate = ComposedGate<LinearScores, Independent, RandomSecond>;
struct WithNoise {
  template <class T>
  Gate::Extra<T, Cpu> operator()(Element<T>, Index, Index) const {
    return {.selection = noise};
  }
};

}  // namespace

TEST_CASE("RandomSecond (1): keeps the second pick if certain · r < w") {
  for (const Index experts : {2, 3, 257})
    for (const double certain : {0.01, 0.5, 3.0}) {
      const auto s = select(RandomSecond{.certain = certain}, random_ranks(60, experts), noise);
      int dropped = 0;
      for (Index n = 0; n < 60; ++n) {
        const auto z = naive::row(s.rank, n);
        const auto best = naive::best(z, 2);
        const auto q = naive::softmax(z);
        const double first = q[std::size_t(best[0])], second = q[std::size_t(best[1])], w = second / (first + second);
        const bool kept = certain * uniform<double>(Seed{5}, 2, std::uint64_t(n)) < w;
        CHECK(s.plan.item(2 * n) == n);
        CHECK(s.plan.item(2 * n + 1) == n);
        CHECK(s.plan.expert(2 * n) == best[0]);
        CHECK(s.plan.expert(2 * n + 1) == (kept ? best[1] : ~best[1]));
        CHECK(s.plan.weight(2 * n) == doctest::Approx(1 - w).epsilon(1e-14));
        CHECK(s.plan.weight(2 * n + 1) == doctest::Approx(w).epsilon(1e-13));
        dropped += !kept;
      }
      CHECK((dropped > 0) == (certain > 0.1));
      CHECK(dropped < 60);
    }
}

TEST_CASE("RandomSecond: the share of kept picks is w / certain") {
  // Two experts with logits 0 and −ln 4: w = 0.2, so w / certain = 0.4 of the second picks are kept. The standard
  // deviation of this share is √(0.4 · 0.6 / 20,000).
  const Index items = 20000;
  Tensor<double, 2, Cpu> rank(items, 2);
  for (Index n = 0; n < items; ++n) {
    rank(n, 0) = 0;
    rank(n, 1) = -std::log(4.0);
  }
  const auto s = select(RandomSecond{}, std::move(rank), noise);
  Index kept = 0;
  for (Index n = 0; n < items; ++n) kept += s.plan.expert(2 * n + 1) >= 0;
  CHECK(std::abs(double(kept) / double(items) - 0.4) < 4 * std::sqrt(0.4 * 0.6 / double(items)));
  CHECK(s.plan.offsets(2) == items + kept);
}

TEST_CASE("RandomSecond: without noise it equals TopK of 2") {
  const auto top = select(TopK{}, random_ranks(20, 5));
  const auto quiet = select(RandomSecond{}, random_ranks(20, 5));
  CHECK(quiet.experts() == top.experts());
  CHECK(same_bits(values(quiet.plan.weight), values(top.plan.weight)));
}

TEST_CASE("RandomSecond: gradients equal finite differences; threads change no bit") {
  GateAlone<Gate> a({.scores = {.experts = 4}}, 9, {.selection = noise});
  const auto report = a.gradients();
  CHECK_MESSAGE(report, report.str());
  CHECK(a.keeps_promises());
  const auto one = select(RandomSecond{}, random_ranks(40000, 3), noise),
             three = select(RandomSecond{}, random_ranks(40000, 3), noise, {}, 3);
  CHECK(one.experts() == three.experts());
  CHECK(same_bits(values(one.plan.weight), values(three.plan.weight)));
}

TEST_CASE("RandomSecond: Capacity limits the picks that are kept") {
  const Index items = 400, room = 60;
  const auto s = select(Capacity<RandomSecond>{.slots = room}, random_ranks(items, 4), noise);
  const auto alone = select(RandomSecond{}, random_ranks(items, 4), noise);
  std::vector<Index> load(4, 0);
  Index full = 0;
  for (const Index choice : {0, 1})  // first choices take their places before second choices
    for (Index n = 0; n < items; ++n) {
      const Index p = 2 * n + choice, e = alone.plan.expert(p);
      const bool fits = e >= 0 && load[std::size_t(e)] < room;
      if (fits) ++load[std::size_t(e)];
      full += e >= 0 && !fits;
      CHECK(s.plan.expert(p) == (fits || e < 0 ? e : ~e));
    }
  CHECK(full > 20);
}

TEST_CASE("RandomSecond: a gate in a Mixture passes conformance with noise") {
  const auto report =
      check::conformance<Cpu, double>(Mixture{Gate{.scores = {.experts = 3}}, Linear{.model_dim = 4}}, {}, WithNoise{});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("RandomSecond: one pick is never dropped") {
  const auto one = select(RandomSecond{.k = 1, .certain = 1e9}, random_ranks(20, 3), noise);
  CHECK(one.experts() == select(TopK{.k = 1}, random_ranks(20, 3)).experts());
}

TEST_CASE("RandomSecond: messages name wrong options") {
  CHECK(message_of([] { select(RandomSecond{.certain = 0}, random_ranks(3, 4)); }) ==
        "RandomSecond: certain: expected more than 0, got 0");
  CHECK(message_of([] { select(RandomSecond{.k = 3}, random_ranks(3, 4)); }) ==
        "RandomSecond: k: expected 1 or 2, at most experts = 4, got 3");
  CHECK(message_of([] { select(RandomSecond{}, random_ranks(3, 1)); }) ==
        "RandomSecond: k: expected 1 or 2, at most experts = 1, got 2");
}
