#include "gatefold/gate/auxiliary/gshard.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "support/selections.hpp"

using namespace gatefold;
using namespace gatefold::support;

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

TEST_CASE("GShard: a selection without picks by item throws") {
  CHECK(GShard::needs_picks_by_item);
  CHECK_FALSE(ExpertChoice::picks_by_item);
  using Wrong = ComposedGate<LinearScores, Independent, Unaware, GShard>;
  const std::string message = message_of([] { GateAlone<Wrong>{{.scores = {.experts = 3}}, 7, {}}; });
  CHECK(message.rfind("Gate: the item of pick ", 0) == 0);
  CHECK(message.find(" (an auxiliary loss needs picks in the order of the items; a selection with another order must "
                     "declare `static constexpr bool picks_by_item = false`), got ") != std::string::npos);
}

TEST_CASE("GShard (1): equals loops with padding and dropped picks") {
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

TEST_CASE("GShard: gradients through the gate, with and without padding") {
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
