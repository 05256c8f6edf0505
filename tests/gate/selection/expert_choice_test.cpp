#include "gatefold/gate/selection/expert_choice.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "support/naive_moe.hpp"
#include "support/selections.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Gate = ComposedGate<LinearScores, Independent, ExpertChoice>;
using Places = Sequence<double, Cpu>;

/// Returns the items of one sequence that expert e takes.
Ids taken_by(const SparsePlan<double, Cpu>& plan, Index e, Index first, Index length) {
  Ids items;
  for (Index s = plan.offsets(e); s < plan.offsets(e + 1); ++s)
    if (plan.rows(s) >= first && plan.rows(s) < first + length) items.push_back(plan.rows(s));
  return items;
}

}  // namespace

TEST_CASE("ExpertChoice (1): picks the C most probable items per sequence") {
  const std::vector<double> none;
  std::vector<double> mask(24, 1);
  for (const Index n : {0, 5, 6, 7, 13, 23}) mask[static_cast<std::size_t>(n)] = 0;
  for (const Index experts : {1, 3, 257})
    for (const Index length : {6, 24})
      for (const double factor : {0.7, 2.0, 300.0})
        for (const auto& valid : {none, mask}) {
          CAPTURE(experts);
          CAPTURE(length);
          CAPTURE(factor);
          Places extra{length};
          if (!valid.empty()) extra.valid = valid;
          const auto s = select(ExpertChoice{.factor = factor}, random_ranks(24, experts), extra);
          std::vector<naive::Row> all;
          for (Index n = 0; n < 24; ++n) all.push_back(naive::softmax(naive::row(s.rank, n)));
          for (Index first = 0; first < 24; first += length)
            for (Index e = 0; e < experts; ++e) {
              naive::Row probability;
              Ids real;
              for (Index n = first; n < first + length; ++n)
                if (valid.empty() || valid[static_cast<std::size_t>(n)] != 0) {
                  real.push_back(n);
                  probability.push_back(all[static_cast<std::size_t>(n)][static_cast<std::size_t>(e)]);
                }
              const double even = std::floor(double(real.size()) * factor / double(experts) + 0.5);
              const auto room = static_cast<Index>(std::clamp(even, 1.0, double(real.size())));
              Ids expected;
              for (const Index at : naive::best(probability, room))
                expected.push_back(real[static_cast<std::size_t>(at)]);
              CHECK(taken_by(s.plan, e, first, length) == expected);
            }
          for (Index p = 0; p < s.plan.expert.size(); ++p)
            CHECK(s.plan.weight(p) == (s.plan.expert(p) < 0 ? 0 : s.q(s.plan.item(p), s.plan.expert(p))));
        }
}

TEST_CASE("ExpertChoice: compares items by probability, not by logit") {
  // Item 1 has the larger logits, but item 0 has the larger probability of expert 0.
  const auto s = select(ExpertChoice{.factor = 1}, matrix<double>({{1, -3}, {8, 9}}));
  CHECK(taken_by(s.plan, 0, 0, 2) == Ids{0});
  CHECK(taken_by(s.plan, 1, 0, 2) == Ids{1});
}

TEST_CASE("ExpertChoice: orders items even if float probabilities underflow") {
  const auto s = select<float>(ExpertChoice{.factor = 1}, matrix<float>({{0, 1000}, {0, 500}, {0, 800}, {0, 700}}));
  REQUIRE(s.q(1, 0) == 0);
  CHECK(s.plan.rows(0) == 1);
  CHECK(s.plan.rows(1) == 3);
}

TEST_CASE_TEMPLATE("ExpertChoice: orders items of huge logits", T, float, double) {
  // q(·,0) is 1/2 and 1, then 1 - 2e-6 and 1 - 3e-7.
  const T large = sizeof(T) == 4 ? T(1e9) : T(1e17);
  CHECK(select<T>(ExpertChoice{.factor = 1}, matrix<T>({{large, large}, {large, 0}})).plan.rows(0) == 1);
  CHECK(select<T>(ExpertChoice{.factor = 1}, matrix<T>({{100, 87}, {100, 85}})).plan.rows(0) == 1);
}

TEST_CASE("ExpertChoice: capacity is rounded up, at most the sequence length") {
  CHECK(ExpertChoice{}.room(512, 8) == 128);
  CHECK(ExpertChoice{.factor = 1}.room(10, 4) == 3);
  CHECK(ExpertChoice{.factor = 0.29}.room(100, 1) == 29);
  CHECK(ExpertChoice{.factor = 0.1}.room(10, 64) == 1);
  CHECK(ExpertChoice{.factor = 9}.room(10, 4) == 10);
  CHECK(ExpertChoice{}.room(0, 4) == 0);
}

TEST_CASE("ExpertChoice: sequences are independent; padding does not count") {
  const std::vector<double> mask{1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1};
  Places extra{6};
  extra.valid = mask;
  auto rank = random_ranks(12, 3);
  Tensor<double, 2, Cpu> packed(4, 3);
  const Index real[] = {0, 2, 3, 5};
  for (Index n = 0; n < 4; ++n)
    for (Index e = 0; e < 3; ++e) packed(n, e) = rank(real[n], e);
  for (const Index n : {1, 4})
    for (Index e = 0; e < 3; ++e) rank(n, e) = quiet_nan;
  const auto padded = select(ExpertChoice{}, std::move(rank), extra);
  const auto alone = select(ExpertChoice{}, std::move(packed));
  for (Index e = 0; e < 3; ++e) {
    Ids items;
    for (const Index n : taken_by(alone.plan, e, 0, 4)) items.push_back(real[n]);
    CHECK(taken_by(padded.plan, e, 0, 6) == items);
  }
  // An expert's list may still contain padding, but as dropped picks, so that auxiliary losses do not count it.
  for (Index p = 0; p < padded.plan.expert.size(); ++p)
    CHECK((padded.plan.expert(p) < 0) == (mask[static_cast<std::size_t>(padded.plan.item(p))] == 0));
  // If the sequence has no mask, that of the gate is used.
  Cpu::Context ctx(1);
  const auto through = select(ExpertChoice{}, random_ranks(12, 3), Places{6}, mask);
  for (Index p = 0; p < through.plan.expert.size(); ++p)
    if (through.plan.expert(p) >= 0) CHECK(mask[static_cast<std::size_t>(through.plan.item(p))] == 1);
}

TEST_CASE("ExpertChoice: an item without picks has output 0") {
  auto s = select(ExpertChoice{.factor = 0.5}, random_ranks(8, 2));
  const auto z = constant_tensor<double>(s.ctx, 1, s.plan.expert.size(), 3);
  auto u = constant_tensor<double>(s.ctx, 7, 8, 3);
  s.plan.combine(s.ctx, z, u);
  Index without = 0;
  for (Index n = 0; n < 8; ++n) {
    const auto items = s.items();
    const bool taken = std::find(items.begin(), items.end(), n) != items.end();
    without += !taken;
    for (Index d = 0; d < 3; ++d) CHECK((u(n, d) != 0) == taken);
  }
  CHECK(without >= 4);
}

TEST_CASE("ExpertChoice: gradients agree with padding; threads change no bit") {
  const std::vector<double> mask{1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0};
  for (const double factor : {0.8, 2.0, 9.0}) {
    GateAlone<Gate> a({.scores = {.experts = 3}, .selection = {.factor = factor}}, 12,
                      {.selection = {.length = 4}, .valid = mask});
    const auto report = a.gradients();
    CHECK_MESSAGE(report, report.str());
    CHECK(a.keeps_promises());
    CHECK(a.plan.offsets(3) > 0);
  }
  const auto one = select(ExpertChoice{}, random_ranks(6000, 5), Places{60}),
             three = select(ExpertChoice{}, random_ranks(6000, 5), Places{60}, {}, 3);
  CHECK(one.items() == three.items());
}

TEST_CASE("ExpertChoice: equal logits, NaN, empty batches and one expert work") {
  const auto ties = select(ExpertChoice{.factor = 1}, equal_ranks(6, 3));
  for (Index e = 0; e < 3; ++e) CHECK(taken_by(ties.plan, e, 0, 6) == Ids{0, 1});
  auto rank = random_ranks(6, 3);
  for (const Index n : {0, 2, 3, 4}) rank(n, 1) = quiet_nan;
  const auto nan = select(ExpertChoice{}, std::move(rank));
  for (Index e = 0; e < 3; ++e) {
    const auto items = taken_by(nan.plan, e, 0, 6);
    CHECK(std::set<Index>(items.begin(), items.end()).size() == 4);
    CHECK(std::set<Index>(items.begin(), items.begin() + 2) == std::set<Index>{1, 5});
    CHECK(Ids(items.begin() + 2, items.end()) == Ids{0, 2});
  }
  const auto none = select(ExpertChoice{}, random_ranks(0, 4));
  CHECK(none.plan.expert.size() == 0);
  CHECK(none.plan.offsets(4) == 0);
  const auto empty = select(ExpertChoice{}, random_ranks(0, 4), Places{5});
  CHECK(empty.plan.expert.size() == 0);
  const auto one = select(ExpertChoice{.factor = 1}, random_ranks(3, 1));
  CHECK(values(one.plan.weight) == std::vector<double>{1, 1, 1});
  // With factor = experts every item goes to every expert, as with Dense.
  CHECK(select(ExpertChoice{.factor = 4}, random_ranks(5, 4)).plan.offsets(4) == 20);
  const auto padding = select(ExpertChoice{}, random_ranks(4, 2), {}, std::vector<double>(4, 0));
  CHECK(padding.plan.offsets(2) == 0);
}

TEST_CASE("ExpertChoice: wrong options and sequences throw") {
  CHECK(message_of([] { select(ExpertChoice{.factor = 0}, random_ranks(4, 2)); }) ==
        "ExpertChoice: factor: expected more than 0, got 0");
  CHECK(message_of([] { select(ExpertChoice{}, random_ranks(4, 2), Places{3}); }) ==
        "ExpertChoice: sequence.length: expected a divisor of the number of items 4, got 3");
}
