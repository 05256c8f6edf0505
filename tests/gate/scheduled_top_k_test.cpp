#include "gatefold/gate/scheduled_top_k.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using ScheduledGate = ComposedGate<LinearScores, Independent, ScheduledTopK>;

/// Extra inputs that ask for 3 experts.
struct Three {
  template <class T>
  ScheduledGate::Extra<T, Cpu> operator()(Element<T>, Index, Index) const {
    return {.selection = {.k = 3}};
  }
};

}  // namespace

TEST_CASE("ScheduledTopK (1): k of the call has the bits of TopK of that k; 0 is the option") {
  Cpu::Context ctx(1);
  for (const bool renormalise : {false, true})
    for (const Index k : {0, 1, 4, 2, 5}) {
      CAPTURE(k);
      auto scheduled = pass<double>(
          ctx,
          Mixture{ScheduledGate{.scores = {.experts = 5}, .selection = {.k = 3, .renormalise = renormalise}},
                  Linear{.model_dim = 4}},
          6);
      auto fixed = pass<double>(ctx,
                                Mixture{SoftmaxTopK{.scores = {.experts = 5},
                                                    .selection = {.k = k == 0 ? 3 : k, .renormalise = renormalise}},
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

TEST_CASE("ScheduledTopK: gradients and promises where k differs from the option") {
  const auto report = check::conformance<Cpu>(
      Mixture{ScheduledGate{.scores = {.experts = 4}, .selection = {.k = 1}}, Linear{.model_dim = 3}},
      {.items_are_independent = true}, Three{});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("ScheduledTopK: k outside 1 … experts says so, as option and as input") {
  Cpu::Context ctx(1);
  const auto mixture = [](Index k) {
    return Mixture{ScheduledGate{.scores = {.experts = 3}, .selection = {.k = k}}, Linear{.model_dim = 2}};
  };
  CHECK(message_of([&] { pass<double>(ctx, mixture(4), 2); }) == "TopK: k: expected 1 <= k <= experts = 3, got 4");
  auto p = pass<double>(ctx, mixture(2), 2);
  p.extra.selection.k = 5;
  CHECK(message_of([&] { p.forward(); }) == "TopK: k: expected 1 <= k <= experts = 3, got 5");
  CHECK(p.untouched());
  p.extra.selection.k = -1;
  CHECK(message_of([&] { p.forward(); }) == "TopK: k: expected 1 <= k <= experts = 3, got -1");
}
