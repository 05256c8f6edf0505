#include "gatefold/layer/with_shared.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Linear linear{.model_dim = 4};
const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .mixing = {}, .selection = {.k = 2}}, linear};

}  // namespace

TEST_CASE("WithShared (1): adds the weighted shared expert to the mixture") {
  Cpu::Context ctx(2);
  auto alone = pass<double>(ctx, WithShared{mixture, linear, 0}, 9);
  alone.forward();
  for (const double weight : {1.0, 0.25}) {
    auto both = pass<double>(ctx, WithShared{mixture, linear, weight}, 9);
    const auto& shared = both.params.branch.shared.expert;
    both.forward();
    auto expected = values(alone.y);
    for (Index n = 0; n < 9; ++n)
      for (Index o = 0; o < 4; ++o) {
        double sum = shared.bias(0, o);
        for (Index d = 0; d < 4; ++d) sum += both.x(n, d) * shared.weight(0, d, o);
        expected[std::size_t(n * 4 + o)] += weight * sum;
      }
    CHECK(difference(values(both.y), expected) <= 1e-14);
    Index experts = 0;
    for_each_mixture(both.saved, [&](const auto& m) { experts += m.plan.experts(); });
    CHECK(experts == 3);
  }
  CHECK(WithShared{mixture, linear}.weight == 1);
}

TEST_CASE("WithShared: weight 0 returns the branch's output") {
  Cpu::Context ctx(1);
  const OneExpert branch{linear};
  auto both = pass<double>(ctx, WithShared{branch, linear, 0}, 9);
  Tensor<double, 2, Cpu> u(9, 4);
  Nothing<double, Cpu> none;
  both.forward();
  branch.forward(ctx, both.params.branch.branch, both.x, u, none, none);
  CHECK(values(both.y) == values(u));
}

TEST_CASE("WithShared: gradients through a mixture equal finite differences") {
  Cpu::Context ctx(1);
  const auto report = check::gradients(ctx, WithShared{mixture, linear, 0.5});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("WithShared: passes conformance around one expert") {
  const auto report =
      check::conformance<Cpu, double>(WithShared{OneExpert{linear}, linear, 0.5}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("WithShared: wrong widths throw before any write") {
  Cpu::Context ctx(1);
  const auto message = [&](const Linear& shared) {
    return message_of([&] { (void)WithShared{mixture, shared}.init<double, Cpu>(ctx, {}); });
  };
  CHECK(message({.model_dim = 5}) == "WithShared: shared.in_dim: expected 4 (from branch.in_dim), got 5");
  CHECK(message({.model_dim = 4, .output_dim = 1}) ==
        "WithShared: shared.out_dim: expected 4 (from branch.out_dim), got 1");
  auto p = pass<double>(ctx, WithShared{mixture, linear}, 9);
  p.params.branch.shared.expert.weight.resize(2, 4, 4);
  CHECK(message_of([&] { p.forward(); }) == "Linear: params.weight: expected [1, 4, 4], got [2, 4, 4]");
  CHECK(p.untouched());
}
