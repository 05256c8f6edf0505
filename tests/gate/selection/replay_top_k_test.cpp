#include "gatefold/gate/selection/replay_top_k.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using ReplayGate = ComposedGate<LinearScores, Independent, ReplayTopK>;
using BestGate = ComposedGate<LinearScores, Independent, TopK>;
constexpr Index items = 7, experts = 5, width = 4;

auto replayed(bool renormalise) {
  return Mixture{ReplayGate{.scores = {.experts = experts}, .selection = {.k = 2, .renormalise = renormalise}},
                 Linear{.model_dim = width}};
}
View<const Index, 2, Cpu> recording(const std::vector<Index>& picks, Index layers = 1) {
  return {picks.data(), layers, Index(picks.size()) / layers};
}
/// Returns the pass of a layer with recorded picks.
template <class T, class L>
Pass<T, L> replay(Cpu::Context& ctx, const L& layer, View<const Index, 2, Cpu> picks) {
  auto p = pass<T>(ctx, layer, items);
  p.extra.selection.recorded = picks;
  return p;
}

}  // namespace

TEST_CASE("ReplayTopK (1), (2): weights recorded experts by their probabilities") {
  Cpu::Context ctx(2);
  const std::vector<Index> picks{4, 0, 1, 2, 3, 1, 0, 4, 2, 3, 1, 0, 4, 3};
  for (const bool renormalise : {false, true}) {
    auto p = replay<double>(ctx, replayed(renormalise), recording(picks));
    p.forward();
    const auto& plan = p.saved.branch.plan;
    const auto& q = p.saved.branch.gate.probabilities;
    REQUIRE(plan.expert.size() == items * 2);
    for (Index n = 0; n < items; ++n)
      for (Index j = 0; j < 2; ++j) {
        const Index at = n * 2 + j, e = picks[std::size_t(at)];
        const double total = q(n, picks[std::size_t(n * 2)]) + q(n, picks[std::size_t(n * 2 + 1)]);
        CHECK(plan.item(at) == n);
        CHECK(plan.expert(at) == e);
        CHECK(plan.weight(at) == doctest::Approx(q(n, e) / (renormalise ? total : 1)).epsilon(1e-14));
      }
  }
}

TEST_CASE("ReplayTopK: replaying the picks of TopK gives its bits") {
  Cpu::Context ctx(2);
  const Mixture best{BestGate{.scores = {.experts = experts}, .selection = {.k = 2}}, Linear{.model_dim = width}};
  auto first = pass<float>(ctx, best, items);
  first.forward();
  first.backward();
  const auto& expert = first.saved.branch.plan.expert;
  const std::vector<Index> picks(expert.data(), expert.data() + expert.size());
  auto again = replay<float>(ctx, replayed(true), recording(picks));
  again.forward();
  again.backward();
  CHECK(same_bits(again.outcome(), first.outcome()));
}

TEST_CASE("ReplayTopK: each layer replays its own rows; gradients agree") {
  Cpu::Context ctx(1);
  std::vector<Index> picks;
  for (Index i = 0; i < 2 * items; ++i) picks.insert(picks.end(), {i % experts, (i + 1 + i / items) % experts});
  const Stack stack{Residual{update::Plain{}, replayed(true)}, 2};
  auto p = replay<double>(ctx, stack, recording(picks, 2));
  p.forward();
  Index layer = 0;
  for_each_mixture(p.saved, [&](const auto& mixture) {
    for (Index i = 0; i < 2 * items; ++i) CHECK(mixture.plan.expert(i) == picks[std::size_t(layer * 2 * items + i)]);
    ++layer;
  });
  CHECK(layer == 2);
  const auto report = check::gradients(ctx, stack, {.items = items}, p.extra);
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("ReplayTopK: wrong recordings are refused") {
  Cpu::Context ctx(1);
  auto none = pass<double>(ctx, replayed(true), items);
  CHECK(message_of([&] { none.forward(); }) ==
        "ReplayTopK: extra.recorded: expected the recorded experts [layers, items · k] in the extra inputs, got none");
  const auto message = [&](const std::vector<Index>& picks) {
    auto p = replay<double>(ctx, replayed(true), recording(picks));
    return message_of([&] { p.forward(); });
  };
  CHECK(message(std::vector<Index>(6, 0)) ==
        "ReplayTopK: extra.recorded: expected rows of 14 experts (7 items, k = 2), got rows of 6");
  CHECK(message(std::vector<Index>(14, 5)) ==
        "ReplayTopK: extra.recorded(0, 0): expected an expert from 0 to 4 that item 0 has not picked yet, got 5");
  CHECK(message(std::vector<Index>(14, 3)) ==
        "ReplayTopK: extra.recorded(0, 1): expected an expert from 0 to 4 that item 0 has not picked yet, got 3");
}
