#include "gatefold/gate/selection/scheduled_top_k.hpp"

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
  const auto report = check::conformance<Cpu>(
      Mixture{ScheduledGate{.scores = {.experts = 4}, .selection = {.k = 1}}, Linear{.model_dim = 3}},
      {.items_are_independent = true}, Three{});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("ScheduledTopK: k outside 1 … experts throws") {
  Cpu::Context ctx(1);
  const auto mixture = [](Index k) {
    return Mixture{ScheduledGate{.scores = {.experts = 3}, .selection = {.k = k}}, Linear{.model_dim = 2}};
  };
  auto wide = pass<double>(ctx, mixture(4), 2);  // K is given with every call
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
