#include "gatefold/optim/averaged.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/check/optimizer_steps.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/papers/in_stages.hpp"
#include "gatefold/train/in_groups.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/plain.hpp"
#include "support/optimized.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index vocabulary = 7, dim = 4;
/// A model with a sparse gradient and a load bias that no optimizer steps. Its loss has learned parameters.
auto model() {
  return Chain{Embedding{.vocabulary = vocabulary, .model_dim = dim},
               Residual{update::Plain{}, Mixture{ComposedGate<LinearScores, Independent, SigmoidBias>{
                                                     .scores = {.experts = 3}, .selection = {.k = 2}},
                                                 Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}}},
               LayerNorm{dim}};
}
const StreamedCrossEntropy of_tokens{.vocabulary = vocabulary, .model_dim = dim};
const std::vector<Index> ids{1, 2, 5, 2, 0, 1}, next{2, 5, 2, 0, 1, 3};

template <class O>
auto trainer(Cpu::Context& ctx, const O& optimizer) {
  return Trainer{ctx, model(), of_tokens, optimizer, Seed{3}, Element<double>{}};
}
/// Returns the values of learned tensors, one after the other.
template <class P>
std::vector<double> learned(const P& pack) {
  std::vector<double> all;
  for_each_learned([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); }, pack);
  return all;
}
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}
const optim::AdamW adam{.lr = 0.05, .decay = 0.1};

}  // namespace

TEST_CASE_TEMPLATE("Averaged (1): the average equals the weighted sum of parameters", T, float, double) {
  const double d = 0.7;
  const int steps = 9;
  const auto check = [&](const auto& optimizer, const auto& average) {
    Cpu::Context ctx(2);
    optimized::Pack<T> params = optimized::random_pack<T>(1);
    auto state = optimizer.begin(ctx, params);
    std::vector<std::vector<double>> history{optimized::flat(params)};
    for (int t = 0; t < steps; ++t) {
      optimized::Pack<T> grads = optimized::random_pack<T>(static_cast<unsigned>(10 + t));
      auto mark = ctx.mark();
      optim::measured_step(optimizer, ctx, params, grads, state, optim::measure_gradients(optimizer, ctx, grads));
      history.push_back(optimized::flat(params));
    }
    std::vector<double> expected(history[0].size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = std::pow(d, steps) * history[0][i];
      for (int t = 1; t <= steps; ++t)
        expected[i] += (1 - d) * std::pow(d, steps - t) * history[static_cast<std::size_t>(t)][i];
    }
    // Each step rounds an average of order 1.
    CHECK(optimized::worst(optimized::flat(average(state)), expected) <= (sizeof(T) == 4 ? 1e-5 : 1e-14));
    CHECK(optimized::worst(optimized::flat(params), expected) > 1e-3);
  };
  const auto own = [](const auto& state) -> auto& { return state.average; };
  check(optim::Averaged{optim::Sgd{.lr = 0.1, .momentum = 0.5}, d}, own);
  check(optim::Averaged{optim::Scheduled{optim::Clipped{adam, 0.5}, optim::Warmup{4}}, d}, own);
  check(optim::Scheduled{optim::Clipped{optim::Averaged{adam, d}, 0.5}, optim::Warmup{4}}, own);
  check(optim::Averaged{InGroups{is_weight, adam, optim::Sgd{}}, d}, own);
}

TEST_CASE("Averaged: parameters have the bits of the inner optimizer") {
  Cpu::Context ctx(2);
  auto alone = trainer(ctx, optim::Clipped{adam, 0.3});
  auto averaged = trainer(ctx, optim::Averaged{optim::Clipped{adam, 0.3}, 0.9});
  for (int t = 0; t < 4; ++t) CHECK(alone.step(ids, next) == averaged.step(ids, next));
  CHECK(same_bits(values(alone.params), values(averaged.params)));
  CHECK(averaged.state.step == 4);
  // The average also has embeddings that no batch uses and the optimizer does not change.
  CHECK(largest_difference(learned(averaged.params), learned(averaged.state.average)) > 1e-3);
  CHECK(count_values(averaged.state.average) < count_values(averaged.params));  // it lacks the load bias
}

TEST_CASE("swap_averages: a run can evaluate averages, swap back, and continue") {
  Cpu::Context ctx(2);
  auto never = trainer(ctx, optim::Averaged{adam, 0.9}), run = trainer(ctx, optim::Averaged{adam, 0.9});
  for (int t = 0; t < 3; ++t) {
    never.step(ids, next);
    run.step(ids, next);
    const auto params = learned(run.params), averages = learned(run.state.average);
    const double of_params = run.evaluate(ids, next);
    const auto view = run.params.loss.weight.view();
    swap_averages(run);
    CHECK(same_bits(learned(run.params), averages));
    CHECK(same_bits(learned(run.state.average), params));
    CHECK(view.data() == run.params.loss.weight.data());
    CHECK(run.evaluate(ids, next) != of_params);
    const std::string message =
        "Averaged.step: params: expected the learned parameters (call swap_averages once more), got their averages";
    CHECK(message_of([&] { run.step(ids, next); }) == message);
    CHECK(same_bits(learned(run.params), averages));
    swap_averages(run);
    CHECK(run.evaluate(ids, next) == of_params);
  }
  never.step(ids, next);
  run.step(ids, next);
  CHECK(same_bits(values(never.params), values(run.params)));
  CHECK(same_bits(values(never.state), values(run.state)));
}

TEST_CASE("swap_averages: the loss equals the loss of the averaged model") {
  Cpu::Context ctx(1);
  auto run = trainer(ctx, optim::Averaged{adam, 0.5});
  auto other = trainer(ctx, adam);
  for (int t = 0; t < 3; ++t) run.step(ids, next);
  copy_pack(ctx, run.params, other.params);  // the load bias too
  for_each_learned(
      [](const Name&, auto& to, const auto& from) { std::copy(from.data(), from.data() + from.size(), to.data()); },
      other.params, std::as_const(run.state.average));
  swap_averages(run);
  CHECK(run.evaluate(ids, next) == other.evaluate(ids, next));
}

TEST_CASE("swap_averages: swaps the only averaged group and no other group") {
  Cpu::Context ctx(1);
  auto run = trainer(ctx, optim::Clipped{InGroups{is_weight, optim::Averaged{adam, 0.5}, optim::Sgd{.lr = 0.1}}, 1.0});
  for (int t = 0; t < 3; ++t) run.step(ids, next);
  auto kept = zeros_like(ctx, run.params);
  copy_pack(ctx, run.params, kept);
  swap_averages(run);
  int moved = 0;
  for_each_tensor(
      [&](const Name& name, const auto& now, const auto& then) {
        const bool same = same_bits(values(now), values(then));
        if (now.size() > 0) CHECK(same == (!is_weight(name) || name.part == "speed"));
        moved += !same;
      },
      run.params, kept);
  CHECK(moved == 5);
  swap_averages(ctx, run.params, run.state);
  CHECK(same_bits(values(run.params), values(kept)));
  run.step(ids, next);
}

TEST_CASE("swap_averages: no average, or two of one tensor, throw") {
  Cpu::Context ctx(1);
  auto without = trainer(ctx, optim::Clipped{adam});
  CHECK(message_of([&] { swap_averages(without); }) ==
        "swap_averages: optimizer: expected one with an optim::Averaged around or inside it, got one without");
  auto twice = trainer(ctx, optim::Averaged{optim::Averaged{adam, 0.9}, 0.5});
  twice.step(ids, next);
  const auto before = values(twice.params);
  CHECK(message_of([&] { swap_averages(twice); }) ==
        "swap_averages: model.layers.0.weight: expected an average in one optim::Averaged, got averages in two; remove "
        "one of them from the optimizer");
  CHECK(same_bits(values(twice.params), before));
  // Each of two groups has its own average.
  auto groups = trainer(ctx, InGroups{is_weight, optim::Averaged{adam, 0.5}, optim::Averaged{optim::Sgd{}, 0.9}});
  groups.step(ids, next);
  const auto params = learned(groups.params);
  swap_averages(groups);
  CHECK(largest_difference(learned(groups.params), params) > 0);
  swap_averages(groups);
  CHECK(same_bits(learned(groups.params), params));
}

TEST_CASE("Averaged: wrong options are refused") {
  Cpu::Context ctx(1);
  auto run = trainer(ctx, optim::Averaged{adam});
  CHECK(run.optimizer.decay == 0.999);
  const auto before = values(run.state);
  for (const double decay : {-0.1, 1.0, std::nan("")}) {
    run.optimizer.decay = decay;
    CHECK(message_of([&] { run.step(ids, next); }).starts_with("Averaged: decay: expected 0 <= decay < 1, got "));
  }
  run.optimizer.decay = 0.5;
  run.optimizer.optimizer.beta1 = 1;
  CHECK(message_of([&] { run.step(ids, next); }) == "AdamW: beta1: expected 0 <= beta1 < 1, got 1");
  CHECK(same_bits(values(run.state), before));
  CHECK(run.state.step == 0);
  run.optimizer.optimizer.beta1 = 0;
  run.optimizer.optimizer.lr = 0;  // the next step reads it
  run.step(ids, next);
  CHECK(same_bits(learned(run.params), learned(run.state.average)));
}

TEST_CASE("Averaged: passes check::optimizer_steps") {
  const Mlp<Gelu> mlp{.model_dim = 5, .hidden_dim = 7};
  CHECK(check::optimizer_steps<Cpu>(optim::Averaged{adam, 0.9}, mlp).empty());
  CHECK(check::optimizer_steps<Cpu>(optim::Averaged{optim::Clipped{adam, 0.1}, 0.9}, mlp).empty());
  CHECK(check::optimizer_steps<Cpu>(InGroups{is_weight, optim::Averaged{adam, 0.9}, optim::Sgd{}}, mlp).empty());
  const Mixture mixture{ComposedGate<LinearScores, Independent, SigmoidBias>{.scores = {.experts = 3}}, mlp};
  CHECK(check::optimizer_steps<Cpu>(optim::Clipped{optim::Averaged{adam, 0.9}, 0.1}, mixture).empty());
}
