#include "gatefold/layer/recompute.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/model/language_model.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/adam.hpp"
#include "gatefold/update/first.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "gatefold/update/scheduled_momentum.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "support/allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 6, items = 12;

/// Noise decides the routing and what is dropped. A balance loss adds its own gradient.
const Dropout branch{
    0.3, PreNorm{LayerNorm{},
                 Mixture{WithAuxiliary<SoftmaxNoisyTopK, Balance>{
                             .scores = {.experts = 4}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 0.1}}},
                         Mlp<Gelu>{.model_dim = dim, .hidden_dim = 7}}}};

/// Checks that three layers that save their values and three that recompute them have the same bits everywhere.
template <class L>
void check_same_bits(const L& layer) {
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads, true);
    auto keeps = pass<float>(ctx, Stack{layer, 3}, items);
    auto again = pass<float>(ctx, Stack{Recompute{layer}, 3}, items);
    REQUIRE(same_bits(values(again.params), values(keeps.params)));
    Segment<float, Cpu> segment{.length = 4, .noise = {Random{Seed{5}, 2}}};
    keeps.extra = extra_of<decltype(keeps.extra)>(segment);
    again.extra = extra_of<decltype(again.extra)>(segment);
    for_each_tensor([&](const Name&, auto& t) { fill_uniform(ctx, Seed{9}, -1, 1, t); }, keeps.dcarry);
    copy_pack(ctx, keeps.dcarry, again.dcarry);
    keeps.forward();
    again.forward();
    keeps.backward();
    again.backward();
    CHECK(same_bits(again.outcome(), keeps.outcome()));
    auto neither = pass<float>(ctx, Stack{Recompute{layer, false}, 3}, items);
    neither.extra = extra_of<decltype(neither.extra)>(segment);
    for_each_tensor([&](const Name&, auto& t) { fill_uniform(ctx, Seed{9}, -1, 1, t); }, neither.dcarry);
    neither.forward();
    neither.backward();
    CHECK(same_bits(neither.outcome(), keeps.outcome()));
    int shown = 0;
    for_each_mixture(neither.saved, [&](const auto&) { ++shown; });
    for_each_mixture(again.saved, [&](const auto& mixture) { shown -= mixture.plan.items() > 0; });
    CHECK(shown >= 3);
    CHECK(values(keeps.grads) != std::vector<double>(values(keeps.grads).size()));
  }
}

}  // namespace

TEST_CASE("Recompute (1): equals the layer for any rule and noise") {
  check_same_bits(Residual{update::Plain{}, branch});
  check_same_bits(Residual{update::HeavyBall{.mu = 0.5}, branch});
  // The next two rules depend on the layer's number, which must be right in recomputed layers, too.
  check_same_bits(Residual{update::TimeVarying{}, branch});
  check_same_bits(Residual{update::First{update::Adam{.epsilon = 0.1}, update::HeavyBall{}}, branch});
  check_same_bits(Residual{update::SharpnessAware{.rho = 0.2}, branch});
}

TEST_CASE("Recompute (1): equals chains, and blocks with attention-aware gates") {
  check_same_bits(Chain{Residual{update::HeavyBall{}, branch}, Residual{update::TimeVarying{}, branch}});
  const Mixture attentive{AttentionAware<SoftmaxTopK>{.scores = {.experts = 3}, .selection = {.k = 2}},
                          Linear{.model_dim = dim}};
  check_same_bits(Block{Residual{update::Plain{}, Attention{.model_dim = dim, .heads = 2}},
                        Residual{update::HeavyBall{}, attentive}});
}

TEST_CASE("Recompute: gradients and conformance in a stack") {
  const Recompute layer{
      Residual{update::TimeVarying{}, PreNorm{LayerNorm{}, OneExpert{Mlp<Gelu>{.model_dim = 4, .hidden_dim = 3}}}}};
  const auto report = check::conformance<Cpu, double>(
      Stack{layer, 2}, {.gradients = {.zero = {"carry.p"}}, .items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Recompute: changes no bit of a trained language model") {
  const LanguageSizes sizes{.vocabulary = 11, .model_dim = 4, .heads = 2, .window = 6, .depth = 2, .dropout = 0.2};
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Mlp<Relu>{4, 5}};
  const auto plain = switch_model(sizes, update::HeavyBall{}, mixture);
  const auto train = [&](const auto& model) {
    Cpu::Context ctx(2);
    Trainer trainer{ctx, model, sizes.loss(), optim::AdamW{.lr = 0.01}, Seed{3}};
    std::vector<Index> ids, next;
    for (Index n = 0; n < 24; ++n) ids.push_back(n * n % 11), next.push_back((n + 1) * (n + 1) % 11);
    std::vector<double> all;
    for (std::uint64_t t = 0; t < 3; ++t) {
      const Segment<float, Cpu> segment{.length = 8, .noise = {Random{Seed{1}, t}}};
      all.push_back(trainer.step(ids, next, extra_of<typename decltype(trainer)::Extra>(segment)));
    }
    const auto params = values(trainer.params);
    all.insert(all.end(), params.begin(), params.end());
    return all;
  };
  const auto expected = train(plain);
  CHECK(same_bits(train(Recompute{plain}), expected));
  CHECK(same_bits(
      train(Chain{std::get<0>(plain.layers), Recompute{std::get<1>(plain.layers)}, std::get<2>(plain.layers)}),
      expected));
}

TEST_CASE("Recompute: keeps only the carry; later steps do not allocate") {
  Cpu::Context ctx(1);
  const Residual residual{update::HeavyBall{}, OneExpert{Mlp<Gelu>{.model_dim = dim, .hidden_dim = 7}}};
  auto p = pass<float>(ctx, Recompute{residual}, items);
  p.forward();
  CHECK(count_values(p.saved.carry) == items * dim);
  auto q = pass<float>(ctx, Recompute{OneExpert{Linear{.model_dim = dim}}}, items);
  q.forward();
  CHECK(count_values(q.saved.carry) == 0);
#if GATEFOLD_TEST_COUNTS
  Trainer trainer{ctx, Stack{Recompute{residual}, 3}, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  trainer.step(p.x, p.dy);
  const int before = support::allocations;
  trainer.step(p.x, p.dy);
  const int after = support::allocations;
  CHECK(before > 0);
  CHECK(after == before);
#endif
}

TEST_CASE("Recompute: wrong shapes or carries throw before any write") {
  Cpu::Context ctx(1);
  const Recompute layer{Residual{update::HeavyBall{}, OneExpert{Linear{.model_dim = dim}}}};
  auto p = pass<float>(ctx, layer, items);
  p.x.resize(items, 3);
  CHECK(message_of([&] { p.forward(); }) == "Recompute.forward: x: expected [?, 6], got [12, 3]");
  CHECK(p.untouched());
  auto q = pass<float>(ctx, layer, items);
  CHECK(message_of([&] { q.backward(); }) == "Recompute.backward: saved: x of forward: expected [12, 6], got [0, 0]");
#ifndef NDEBUG
  q.forward();
  q.x(0, 0) += 1;
  CHECK(message_of([&] { q.backward(); }) ==
        "Recompute.backward: saved: expected the values that forward saved for this x, got values of another batch, "
        "or x has changed since forward");
#endif
}
