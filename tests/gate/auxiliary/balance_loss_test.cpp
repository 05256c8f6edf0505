#include "gatefold/gate/auxiliary/balance_loss.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "support/gate_outcome.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"
#include "support/selections.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Equation (1) in loops.
double balance(const Outcome& o, double weight, bool per_pick) {
  const Index items = o.q.extent(0), experts = o.q.extent(1);
  double sum = 0;
  for (Index e = 0; e < experts; ++e) {
    double mine = 0, picks = 0, probability = 0, real = 0;
    for (Index p = 0; p < o.plan.expert.size(); ++p)
      if (o.is_valid(o.plan.item(p))) {
        picks += 1;
        mine += o.plan.expert(p) == e ? 1 : 0;
      }
    for (Index n = 0; n < items; ++n)
      if (o.is_valid(n)) {
        real += 1;
        probability += o.q(n, e);
      }
    sum += mine / picks * (probability / (per_pick ? picks : real));
  }
  return weight * double(experts) * sum;
}

}  // namespace

TEST_CASE("Balance (1): multiplies shares of picks and mean probabilities") {
  for (const bool per_pick : {false, true})
    for (const auto& mask : {std::vector<double>{}, std::vector<double>{1, 0, 1, 1, 0, 1}}) {
      auto o = random_outcome(mask);
      CHECK(o.value(Balance{.weight = 0.3, .per_pick = per_pick}) ==
            doctest::Approx(balance(o, 0.3, per_pick)).epsilon(1e-14));
    }
}

TEST_CASE("Balance: perfect balance gives the weight, or weight/K per pick") {
  for (const Index k : {1, 2}) {
    Cpu::Context ctx(1);
    std::vector<Index> picks;
    for (Index p = 0; p < 8 * k; ++p) picks.push_back(p % 4);
    Outcome o(constant_tensor<double>(ctx, 0.25, 8, 4), picks);
    CHECK(o.value(Balance{.weight = 0.01}) == doctest::Approx(0.01).epsilon(1e-15));
    CHECK(o.value(Balance{.weight = 0.01, .per_pick = true}) == doctest::Approx(0.01 / double(k)).epsilon(1e-15));
    CHECK(o.value(Balance::reference()) == doctest::Approx(0.01 / double(k)).epsilon(1e-15));
  }
}

TEST_CASE("Balance: one used expert costs E times perfect balance") {
  Cpu::Context ctx(1);
  auto q = constant_tensor<double>(ctx, 0, 6, 4);
  for (Index n = 0; n < 6; ++n) q(n, 2) = 1;
  Outcome o(std::move(q), std::vector<Index>(6, 2));
  CHECK(o.value(Balance{.weight = 1}) == doctest::Approx(4).epsilon(1e-15));
}

TEST_CASE("Balance (1): sums P in double for a million items") {
  Cpu::Context ctx(1);
  const Index items = Index(1) << 20;
  auto q = constant_tensor<float>(ctx, 0.1, items, 2);
  for (Index n = 0; n < items; ++n) q(n, 1) = 0.9f;
  SparsePlan<float, Cpu> plan;
  plan.resize(items, 2, items);
  for (Index n = 0; n < items; ++n) plan.item(n) = n, plan.expert(n) = n % 4 == 0, plan.weight(n) = 1;
  Tensor<float, 1, Cpu> value(1);
  Balance{.weight = 1}.forward<float, Cpu>(ctx, GateOutcome<float, Cpu>{q, q, plan, {}}, value);
  CHECK(value(0) == rounded<float>(2 * (0.75 * 0.1 + 0.25 * 0.9)));
}

namespace {

using Gate = ComposedGate<LinearScores, Independent, Capacity<>, GShard, Balance>;
const std::vector<double> mask{1, 0, 1, 1, 0, 1, 1};

GateAlone<Gate> alone(Index k, double factor = infinity, Index items = 7, View<const double, 1, Cpu> valid = {}) {
  return {{.scores = {.experts = 3},
           .selection = {.selection = {.k = k, .renormalise = false}, .factor = factor, .multiple_of = 1},
           .auxiliary = {GShard{.weight = 3}, Balance{.weight = 3}}},
          items,
          {.valid = valid}};
}
/// Equation (1) in loops.
double gshard(const GateAlone<Gate>& a, Index k) {
  const auto& q = a.saved.probabilities;
  double mean = 0, items = 0;
  for (Index n = 0; n < q.extent(0); ++n) items += !a.extra.valid.data() || a.extra.valid(n) != 0;
  for (Index e = 0; e < q.extent(1); ++e) {
    double c = 0, m = 0;
    for (Index n = 0; n < q.extent(0); ++n) {
      if (a.extra.valid.data() && a.extra.valid(n) == 0) continue;
      const Index first = a.plan.expert(n * k);
      c += (first < 0 ? -first - 1 : first) == e ? 1 / items : 0;
      m += q(n, e) / items;
    }
    mean += c * m / double(q.extent(1));
  }
  return 3 * mean * double(q.extent(1) * q.extent(1));
}

/// An ExpertChoice that wrongly says that its picks are by item.
struct Unaware : ExpertChoice {
  static constexpr bool picks_by_item = true;
  Unaware with_experts(Index) const { return *this; }
};

}  // namespace

TEST_CASE("GShard: picks that are not ordered by item throw") {
  CHECK(GShard::needs_picks_by_item);
  CHECK_FALSE(ExpertChoice::picks_by_item);
  using Wrong = ComposedGate<LinearScores, Independent, Unaware, GShard>;
  const std::string message = message_of([] { GateAlone<Wrong>{{.scores = {.experts = 3}}, 7, {}}; });
  CHECK(message.rfind("Gate: the item of pick ", 0) == 0);
  CHECK(message.find(" (an auxiliary loss needs picks in the order of the items; a selection with another order must "
                     "declare `static constexpr bool picks_by_item = false`), got ") != std::string::npos);
}

TEST_CASE("GShard (1): counts first choices, also dropped, but not padding") {
  for (const Index k : {1, 2, 3})
    for (const double factor : {infinity, 0.5})
      for (const auto& valid : {View<const double, 1, Cpu>{}, View<const double, 1, Cpu>(mask)}) {
        const auto a = alone(k, factor, 7, valid);
        CHECK(a.saved.auxiliary(0) == doctest::Approx(gshard(a, k)).epsilon(1e-13));
        CHECK((a.saved.auxiliary(0) == a.saved.auxiliary(1)) == (k == 1));
      }
}

TEST_CASE("GShard, Balance: dropped picks count too") {
  const auto roomy = alone(2), tight = alone(2, 0.5);
  REQUIRE(tight.plan.offsets(3) < roomy.plan.offsets(3));
  CHECK(tight.saved.auxiliary(0) == roomy.saved.auxiliary(0));
  CHECK(tight.saved.auxiliary(1) == roomy.saved.auxiliary(1));
}

TEST_CASE("GShard: gradients through the gate equal finite differences") {
  for (const auto& valid : {View<const double, 1, Cpu>{}, View<const double, 1, Cpu>(mask)}) {
    auto a = alone(2, 0.5, 7, valid);
    const auto report = a.gradients();
    CHECK_MESSAGE(report, report.str());
    CHECK(a.keeps_promises());
  }
}

TEST_CASE("GShard: perfect balance gives the weight; no items give 0") {
  Cpu::Context ctx(1);
  const auto q = constant_tensor<double>(ctx, 0.25, 8, 4);
  SparsePlan<double, Cpu> plan;
  plan.resize(8, 4, 16);
  for (Index p = 0; p < 16; ++p) {
    plan.item(p) = p / 2;
    plan.expert(p) = p % 2 == 0 ? p / 2 % 4 : 0;  // second choices all go to expert 0
    plan.weight(p) = 1;
  }
  plan.build(ctx);
  Tensor<double, 1, Cpu> value(1);
  GShard{.weight = 0.01}.forward<double, Cpu>(ctx, {q, q, plan, {}}, value);
  CHECK(value(0) == doctest::Approx(0.01).epsilon(1e-15));
  CHECK(alone(2, infinity, 0).saved.auxiliary(0) == 0);
  const std::vector<double> padding(4, 0);
  CHECK(alone(2, infinity, 4, padding).saved.auxiliary(0) == 0);
}
