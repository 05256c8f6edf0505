#include "gatefold/gate/selection/noisy_top_1.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "support/larger.hpp"
#include "support/naive_moe.hpp"
#include "support/selections.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Noise noise{Random{Seed{5}, 2}};
using Gate = ComposedGate<LinearScores, Independent, NoisyTop1<>>;

Gate gate(const NoisyTop1<>& selection = {}) { return {.scores = {.experts = 3}, .selection = selection}; }

}  // namespace

TEST_CASE("NoisyTop1 (1), (2): picks the argmax of rank + noise") {
  for (const Index experts : {1, 2, 5, 257})
    for (const bool noisy_weight : {false, true}) {
      const auto s = select(NoisyTop1<>{.scale = 1.5, .noisy_weight = noisy_weight}, random_ranks(40, experts), noise);
      bool noise_decides = false;
      for (Index n = 0; n < 40; ++n) {
        naive::Row value;
        for (Index e = 0; e < experts; ++e)
          value.push_back(s.rank(n, e) +
                          1.5 * uniform<double>(Seed{5}, 2, static_cast<std::uint64_t>(n * experts + e)));
        const auto z = naive::row(s.rank, n);
        const Index e = naive::best(value, 1)[0];
        noise_decides = noise_decides || e != naive::best(z, 1)[0];
        const auto at = static_cast<std::size_t>(e);
        CHECK(s.plan.item(n) == n);
        CHECK(s.plan.expert(n) == e);
        CHECK(s.plan.weight(n) == doctest::Approx(noisy_weight ? value[at] : naive::softmax(z)[at]).epsilon(1e-14));
      }
      CHECK(noise_decides == (experts > 1));
    }
}

TEST_CASE("NoisyTop1: the noise law is a template argument") {
  const auto gumbel = select(NoisyTop1<GumbelNoise>{.noisy_weight = true}, equal_ranks(9, 4, 0), noise);
  for (Index n = 0; n < 9; ++n) {
    double top = -infinity;
    for (Index e = 0; e < 4; ++e) top = std::max(top, GumbelNoise::sample<double>(*noise.random, n * 4 + e));
    CHECK(gumbel.plan.weight(n) == top);
  }
}

TEST_CASE("NoisyTop1: without noise it equals TopK of 1") {
  const auto top = select(TopK{.k = 1, .renormalise = false}, random_ranks(20, 5));
  const auto quiet = select(NoisyTop1<>{}, random_ranks(20, 5)),
             still = select(NoisyTop1<>{.scale = 0}, random_ranks(20, 5), noise);
  CHECK(quiet.experts() == top.experts());
  CHECK(still.experts() == top.experts());
  CHECK(same_bits(values(quiet.plan.weight), values(top.plan.weight)));
  CHECK(same_bits(values(still.plan.weight), values(top.plan.weight)));
}

TEST_CASE("NoisyTop1: router gradients sum to 0 (papers 000 and 003)") {
  GateAlone<Gate> a(gate(), 30, {.selection = noise});
  a.backward();
  double sum = 0, largest = 0;
  for (Index e = 0; e < 3; ++e) {
    sum += a.grads.scores.bias(e);
    largest = support::larger(largest, std::abs(a.grads.scores.bias(e)));
  }
  CHECK(largest > 0.01);
  CHECK(std::abs(sum) < 1e-14);
  for (Index d = 0; d < 4; ++d) {
    double row = 0;
    for (Index e = 0; e < 3; ++e) row += a.grads.scores.weight(d, e);
    CHECK(std::abs(row) < 1e-14);
  }
}

TEST_CASE("NoisyTop1: a noisy weight's gradient reaches only the winning logit") {
  GateAlone<Gate> a(gate(NoisyTop1<>::reference()), 9, {.selection = noise});
  a.backward();
  double expected[3] = {}, largest = 0;
  for (Index n = 0; n < 9; ++n) expected[a.plan.expert(n)] += a.cotangent(n);
  for (Index e = 0; e < 3; ++e) {
    CHECK(a.grads.scores.bias(e) == doctest::Approx(expected[e]).epsilon(1e-14));
    largest = support::larger(largest, std::abs(expected[e]));
  }
  CHECK(largest > 0);
}

TEST_CASE("NoisyTop1: gradients equal finite differences; threads change no bit") {
  for (const bool noisy_weight : {false, true}) {
    GateAlone<Gate> a(gate({.noisy_weight = noisy_weight}), 7, {.selection = noise});
    const auto report = a.gradients();
    CHECK_MESSAGE(report, report.str());
    CHECK(a.keeps_promises());
  }
  const auto one = select(NoisyTop1<>{}, random_ranks(40000, 3), noise),
             three = select(NoisyTop1<>{}, random_ranks(40000, 3), noise, {}, 3);
  CHECK(one.experts() == three.experts());
  CHECK(same_bits(values(one.plan.weight), values(three.plan.weight)));
}

TEST_CASE("NoisyTop1: ties go to the lower index; NaN ranks last") {
  const auto quiet = [](const Tensor<double, 2, Cpu>& rank) {
    Tensor<double, 2, Cpu> copy(rank.extent(0), rank.extent(1));
    for (Index i = 0; i < rank.size(); ++i) copy.data()[i] = rank.data()[i];
    return select(NoisyTop1<>{}, std::move(copy)).experts();
  };
  CHECK(quiet(matrix<double>({{2, 2, 2}, {1, 3, 3}})) == Ids{0, 1});
  CHECK(quiet(matrix<double>({{quiet_nan, quiet_nan, quiet_nan}, {quiet_nan, -5, quiet_nan}})) == Ids{0, 1});
  const auto rank = [] {
    return matrix<double>({{quiet_nan, quiet_nan, quiet_nan}, {quiet_nan, -5, quiet_nan}, {-infinity, -3, -infinity}});
  };
  CHECK(select(NoisyTop1<>{}, rank(), noise).experts() == Ids{0, 1, 1});
}

TEST_CASE("NoisyTop1: empty batches, one expert and one used expert work") {
  const auto none = select(NoisyTop1<>{}, random_ranks(0, 4), noise);
  CHECK(none.plan.expert.size() == 0);
  CHECK(none.plan.offsets(4) == 0);
  const auto one = select(NoisyTop1<>{}, random_ranks(3, 1), noise);
  CHECK(one.experts() == Ids{0, 0, 0});
  CHECK(values(one.plan.weight) == std::vector<double>{1, 1, 1});
  auto rank = random_ranks(6, 4);
  for (Index n = 0; n < 6; ++n) rank(n, 2) = 9;
  const auto hot = select(NoisyTop1<>{}, std::move(rank), noise);
  CHECK(hot.experts() == Ids(6, 2));
  CHECK(hot.plan.offsets(2) == 0);
  CHECK(hot.plan.offsets(3) == 6);
  CHECK(hot.plan.offsets(4) == 6);
}

TEST_CASE("NoisyTop1: a negative scale throws") {
  CHECK(message_of([] { select(NoisyTop1<>{.scale = -1}, random_ranks(1, 2)); }) ==
        "NoisyTop1: scale: expected at least 0, got -1");
}
