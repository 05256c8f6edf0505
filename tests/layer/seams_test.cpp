// Tests each extension point of the design with a policy of support/seam_policies.hpp. All features that the policies
// in docs/reference/catalogue.md need must fit the existing interfaces, with checked gradients.

#include <doctest/doctest.h>

#include <cstring>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
#include <type_traits>

#include "support/seam_policies.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;

namespace {

template <class Mixing, class Selection = TopK>
using GateOf = ComposedGate<LinearScores, Mixing, Selection>;

const SoftmaxTopK top2{.scores = {.experts = 4}, .mixing = {}, .selection = {.k = 2}};
const Mlp<Gelu> mlp{5, 6};

template <class L>
void check_gradients(const L& layer, const check::GradientOptions& options = {},
                     const Extra<AsLayer<L, double, Cpu>, double, Cpu>& extra = {}) {
  Cpu::Context ctx(2);
  const auto report = check::gradients(ctx, layer, options, extra);
  CHECK_MESSAGE(report, report.str());
}

}  // namespace

TEST_CASE("rule: may evaluate its branch ahead of x" * doctest::skip(support::slow_build)) {
  check_gradients(Stack{Residual{seams::LookAhead{}, Mixture{top2, mlp}}, 3});
}

TEST_CASE("rule: may evaluate its branch twice") {
  check_gradients(Stack{Residual{seams::Twice{}, Mixture{top2, mlp}}, 2});
}

TEST_CASE("rule: auxiliary losses count once if the branch runs twice") {
  const WithAuxiliary<SoftmaxTopK, Balance, ZLoss> gate{.scores = {.experts = 4},
                                                        .mixing = {},
                                                        .selection = {.k = 2},
                                                        .auxiliary = {Balance{.weight = 0.5}, ZLoss{.weight = 0.3}}};
  check_gradients(Residual{seams::Twice{}, Mixture{gate, mlp}});

  Cpu::Context ctx;
  const Residual twice{seams::Twice{}, Mixture{gate, mlp}};
  auto params = twice.init<double, Cpu>(ctx, Seed{1});
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 7, 5);
  Tensor<double, 2, Cpu> y(7, 5);
  Saved<decltype(twice), double, Cpu> saved;
  Carry<decltype(twice), double, Cpu> carry;
  twice.forward(ctx, params, x, carry, y, saved);
  CHECK(saved.calls[0].gate.auxiliary.size() == 2);
  CHECK(saved.calls[1].gate.auxiliary.size() == 0);
}

TEST_CASE("rule: may have parameters and count layers in its carry") {
  check_gradients(Stack{Residual{seams::LearnedFading{}, Mixture{top2, mlp}}, 3});
}

TEST_CASE("mixing: may use sequences, have parameters, rank by log q") {
  const GateOf<seams::Similarity> gate{.scores = {.experts = 4}, .mixing = {.causal = true}, .selection = {.k = 2}};
  check_gradients(Stack{Residual{update::HeavyBall{}, Mixture{gate, mlp}}, 2}, {.items = 8},
                  {.mixing = {.length = 4}, .selection = {}});
  GateOf<seams::Similarity> full = gate;
  full.mixing.causal = false;
  check_gradients(Residual{seams::LookAhead{}, Mixture{full, mlp}}, {.items = 6});
}

TEST_CASE("causal mixing: a later item never changes an earlier output") {
  const Residual layer{
      update::Plain{},
      Mixture{GateOf<seams::Similarity>{.scores = {.experts = 4}, .mixing = {}, .selection = {.k = 2}}, mlp}};
  Cpu::Context ctx(2);
  const auto params = layer.init<float, Cpu>(ctx, Seed{1});
  auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 6, 5);
  Tensor<float, 2, Cpu> y(6, 5), changed(6, 5);
  Saved<decltype(layer), float, Cpu> saved;
  Carry<decltype(layer), float, Cpu> carry;
  layer.forward(ctx, params, x, carry, y, saved);
  for (Index d = 0; d < 5; ++d) x(5, d) += 3;
  layer.forward(ctx, params, x, carry, changed, saved);
  CHECK(std::memcmp(y.data(), changed.data(), 25 * sizeof(float)) == 0);
  CHECK(std::memcmp(&y(5, 0), &changed(5, 0), 5 * sizeof(float)) != 0);
}

TEST_CASE("selection: may use noise and parameters, and pass gradients on" * doctest::skip(support::slow_build)) {
  const GateOf<Independent, seams::NoisyPick> gate{
      .scores = {.experts = 4}, .mixing = {}, .selection = {.model_dim = 5}};
  const Residual layer{update::HeavyBall{}, Mixture{gate, mlp}};
  check_gradients(Stack{layer, 3}, {}, {.mixing = {}, .selection = {Random{Seed{77}, 1}}});
  check_gradients(layer, {}, {.mixing = {}, .selection = {}});
  const GateOf<seams::Similarity, seams::NoisyPick> mixed{
      .scores = {.experts = 4}, .mixing = {}, .selection = {.model_dim = 5}};
  check_gradients(Mixture{mixed, mlp}, {.items = 6}, {.mixing = {}, .selection = {Random{Seed{77}, 1}}});
}

TEST_CASE("at_layer: forks the noise of a selection per layer") {
  const GateOf<Independent, seams::NoisyPick>::Extra<float, Cpu> extra{.mixing = {},
                                                                       .selection = {Random{Seed{77}, 1}}};
  const auto first = at_layer(extra, 0).selection.random, second = at_layer(extra, 1).selection.random;
  CHECK(first->seed != second->seed);
  CHECK(first->step == 1);
}

TEST_CASE("Mixture: items may be sequences, and experts may return scalars") {
  check_gradients(Mixture{
      SoftmaxTopK{.scores = {.experts = 3, .length = 4}, .mixing = {}, .selection = {.k = 1, .renormalise = false}},
      seams::PairExpert{3, 4}});
}

TEST_CASE("Mixture: one layer may have experts of two kinds") {
  check_gradients(Stack{
      Residual{update::HeavyBall{}, Mixture{top2, seams::TwoKinds<Mlp<Gelu>, GatedMlp<Silu>>{3, 4, {5, 6}, {5, 3}}}},
      2});
}

TEST_CASE("gate: may define a dense plan for the same experts" * doctest::skip(support::slow_build)) {
  check_gradients(Stack{Residual{update::HeavyBall{}, Mixture{seams::SoftSlots{5, 4, 2}, mlp}}, 3});
}

TEST_CASE("Stack: gradients with attention-aware gates and momentum are correct" * doctest::skip(support::slow_build)) {
  const Residual attention{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = 6, .heads = 2}}};
  const GateOf<seams::Posterior> gate{.scores = {.experts = 4}, .mixing = {.sigma = 1.5}, .selection = {.k = 2}};
  const Residual mixture{update::HeavyBall{}, PreNorm{LayerNorm{}, Mixture{gate, Mlp<Gelu>{6, 5}}}};
  Cpu::Context ctx(2);
  check::GradientOptions options{.items = 8};
  const auto report =
      check::gradients(ctx, Stack{Block{attention, mixture}, 2}, options, {.attention = {.length = 4}, .layer = {}});
  CHECK_MESSAGE(report, report.str());
  CHECK(report.skipped * 20 <= report.checked);
}

TEST_CASE("policies: are plain aggregates of options") {
  static_assert(std::is_aggregate_v<SoftmaxTopK> && std::is_aggregate_v<update::HeavyBall> &&
                std::is_aggregate_v<Mlp<Gelu>>);
  static_assert(std::is_trivially_copyable_v<GateOf<seams::Similarity>>);
  CHECK(std::is_trivially_copyable_v<update::HeavyBall>);
}
