#include "streamed.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <gatefold/papers/routed_trainer.hpp>
#include <gatefold/papers/signal_mixture.hpp>

using namespace gatefold;
using namespace studies::expert_count;

namespace {

/// Trains a mixture without and with the wrappers of streamed.hpp, with and without noise. Checks that losses, outputs,
/// choices and gradients have the same bits.
template <class GateA, class GateB, class ExpertA, class ExpertB>
void same_bits(const GateA& gate, const GateB& streamed_gate, const ExpertA& expert, const ExpertB& streamed_expert,
               Index items) {
  Cpu::Context ctx(1);
  const SignalMixture law{.length = expert.patches, .scale = 10};
  const auto signals = law.signals<float, Cpu>(ctx, Seed{1});
  const auto data = law.draw<float, Cpu>(ctx, signals, Seed{2}, items);
  RoutedTrainer a{ctx, Mixture{gate, expert}, Logistic{}, Seed{3}, true};
  RoutedTrainer b{ctx, Mixture{streamed_gate, streamed_expert}, Logistic{}, Seed{3}, true};
  const auto compare = [&] {
    for (Index n = 0; n < items; ++n) {
      REQUIRE(a.saved.plan.expert(n) == b.saved.plan.expert(n));
      REQUIRE(a.output()(n, 0) == b.output()(n, 0));
    }
    for_each_learned(
        [](const Name&, auto& x, auto& y) {
          REQUIRE(x.size() == y.size());
          CHECK(std::equal(x.data(), x.data() + x.size(), y.data()));
        },
        a.grads, b.grads);
  };
  const optim::Sgd of_router{.lr = 0.5};
  const optim::NormalizedGd of_experts{.lr = 0.05};
  auto router_a = of_router.begin(ctx, a.params.gate);
  auto router_b = of_router.begin(ctx, b.params.gate);
  auto experts_a = of_experts.begin(ctx, a.params.expert);
  auto experts_b = of_experts.begin(ctx, b.params.expert);
  // Training moves the scores apart, so fewer and fewer experts can win.
  for (Index t = 0; t < 6; ++t) {
    typename decltype(a)::Extra noise;
    typename decltype(b)::Extra streamed_noise;
    if (t != 4) noise.selection.random = streamed_noise.selection.random = Random{Seed{4}, std::uint64_t(t)};
    CHECK(a.gradients(data.x, data.target, noise).router == b.gradients(data.x, data.target, streamed_noise).router);
    compare();
    of_router.step(ctx, a.params.gate, a.grads.gate, router_a);
    of_router.step(ctx, b.params.gate, b.grads.gate, router_b);
    of_experts.step(ctx, a.params.expert, a.grads.expert, experts_a);
    of_experts.step(ctx, b.params.expert, b.grads.expert, experts_b);
  }
}

template <class ScoresT>
using Plain = ComposedGate<ScoresT, Independent, NoisyTop1<>>;
template <class ScoresT>
using Near = ComposedGate<StreamedScores<ScoresT>, Independent, FewDraws>;

}  // namespace

TEST_CASE("streamed policies: PatchScores and PatchMlp keep the library's bits") {
  for (const Index experts : {2, 4, 20, 64})
    for (const Index patches : {3, 8}) {
      CAPTURE(experts);
      CAPTURE(patches);
      const PatchScores scores{.model_dim = 50, .experts = experts, .length = patches};
      const PatchMlp<Cubic> expert{.model_dim = 50, .patches = patches, .filters = 8, .initial = Initial::normal(0.01)};
      same_bits(Plain<PatchScores>{.scores = scores}, Near<PatchScores>{.scores = {scores}}, expert, Streamed{expert},
                700);
    }
}

TEST_CASE("streamed policies: LinearScores and PatchCnn keep the library's bits") {
  for (const Index experts : {3, 32}) {
    CAPTURE(experts);
    PatchSums<float> sums;
    const LinearScores scores{
        .model_dim = 50, .experts = experts, .length = 4, .bias = false, .initial = Initial::zero()};
    const PatchCnn<Relu> expert{.model_dim = 50, .patches = 4, .filters = 8, .initial = Initial::normal(0.01)};
    same_bits(Plain<LinearScores>{.scores = scores}, Near<LinearScores>{.scores = {scores, &sums}}, expert,
              Streamed{expert}, 531);
  }
}

TEST_CASE("Streamed: an unsupported expert has the library's bits") {
  const PatchScores scores{.model_dim = 50, .experts = 3, .length = 3};
  const PatchCnn<Identity> expert{.model_dim = 50, .patches = 3, .filters = 5, .bias = true, .initial = {}};
  same_bits(Plain<PatchScores>{.scores = scores}, Near<PatchScores>{.scores = {scores}}, expert, Streamed{expert}, 90);
}

TEST_CASE("FewDraws: picks the same expert as NoisyTop1 for NaN scores") {
  Cpu::Context ctx(1);
  Tensor<float, 2, Cpu> rank(3, 20);
  fill(ctx, rank.view(), 1.f);
  for (Index e = 0; e < 20; ++e) rank(0, e) = NAN;
  rank(1, 7) = NAN;
  rank(1, 19) = 5;
  rank(2, 3) = -INFINITY;
  rank(2, 11) = INFINITY;
  const Candidates<float, Cpu> candidates{rank, rank, rank};
  const Noise noise{Random{Seed{5}, 6}};
  SparsePlan<float, Cpu> one, other;
  Nothing<float, Cpu> none;
  NoisyTop1<>{}.forward<float, Cpu>(ctx, none, candidates, one, none, noise);
  const auto pick = FewDraws{}.rows<float, Cpu>(candidates, other, noise);
  for (Index n = 0; n < 3; ++n) {
    pick.choose(cpu::RowLanes{}, n);
    CHECK(one.expert(n) == other.expert(n));
  }
}
