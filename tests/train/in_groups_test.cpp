#include "gatefold/train/in_groups.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/learned_heavy_ball.hpp"
#include "support/allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index vocabulary = 7, dim = 4;

/// A model with a sparse gradient, gains, biases and a rule that learns.
auto model() {
  return Chain{Embedding{.vocabulary = vocabulary, .model_dim = dim},
               Residual{update::LearnedHeavyBall{},
                        PreNorm{LayerNorm{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                     Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}}}},
               LayerNorm{dim}};
}
const StreamedCrossEntropy loss{.vocabulary = vocabulary, .model_dim = dim};
const std::vector<Index> ids{1, 2, 5, 2, 0, 1}, next{2, 5, 2, 0, 1, 3};  // 4 and 6 do not occur

template <class O>
auto trained(Cpu::Context& ctx, const O& optimizer, int steps) {
  Trainer trainer{ctx, model(), loss, optimizer, Seed{3}};
  for (int t = 0; t < steps; ++t) trainer.step(ids, next);
  return trainer;
}
const optim::AdamW adam{.lr = 0.05}, decaying{.lr = 0.05, .decay = 0.3};

/// Returns the names of the tensors of a group that have elements.
template <class P>
std::vector<std::string> names(const P& pack, bool (*belongs)(const Name&)) {
  std::vector<std::string> all;
  for_each_tensor(
      [&](const Name& name, const auto& t) {
        if (t.size() > 0 && belongs(name)) all.push_back(name.str());
      },
      pack);
  return all;
}

}  // namespace

TEST_CASE("is_weight: excludes biases, gains and update rules") {
  Cpu::Context ctx(1);
  const auto run = trained(ctx, adam, 0);
  CHECK(names(run.params, is_weight) ==
        std::vector<std::string>{"model.layers.0.weight", "model.layers.1.branch.branch.gate.scores.weight",
                                 "model.layers.1.branch.branch.expert.up", "model.layers.1.branch.branch.expert.down",
                                 "loss.weight"});
  CHECK(names(run.params, [](const Name& name) { return !is_weight(name); }) ==
        std::vector<std::string>{
            "model.layers.1.rule.mu", "model.layers.1.rule.gamma", "model.layers.1.branch.norm.gain",
            "model.layers.1.branch.norm.bias", "model.layers.1.branch.branch.gate.scores.bias",
            "model.layers.1.branch.branch.expert.up_bias", "model.layers.1.branch.branch.expert.down_bias",
            "model.layers.2.gain", "model.layers.2.bias", "loss.bias"});
}

TEST_CASE("InGroups (1): groups with equal optimizers step like one optimizer") {
  Cpu::Context ctx(2);
  const auto alone = trained(ctx, decaying, 4);
  const auto grouped = trained(ctx, InGroups{is_weight, decaying, decaying}, 4);
  CHECK(same_bits(values(grouped.params), values(alone.params)));
  CHECK(grouped.state.step == 4);
  CHECK(count_values(grouped.state.first.m) + count_values(grouped.state.rest.m) == count_values(alone.state.m));
  // A Clipped around the groups uses the gradients of both groups, and a schedule scales the rates of both groups.
  const auto around = [](const auto& optimizer) {
    return optim::Scheduled{optim::Clipped{optimizer, 0.1}, optim::Warmup{.warmup = 3}};
  };
  CHECK(same_bits(values(trained(ctx, around(InGroups{is_weight, decaying, decaying}), 5).params),
                  values(trained(ctx, around(decaying), 5).params)));
  // An InGroups inside another gives a third group.
  const InGroups three{[](const Name& name) { return name.part == "gain"; }, decaying,
                       InGroups{is_weight, decaying, decaying}};
  CHECK(same_bits(values(trained(ctx, three, 4).params), values(alone.params)));
}

TEST_CASE("InGroups (1): each group follows its own optimizer") {
  Cpu::Context ctx(1);
  const optim::Sgd sgd{.lr = 0.2, .momentum = 0.5};
  const InGroups both{is_weight, decaying, sgd};
  auto run = trained(ctx, adam, 1);
  const auto step_thrice = [&](const auto& optimizer) {
    auto params = zeros_like(ctx, run.params), grads = zeros_like(ctx, run.params);
    copy_pack(ctx, run.params, params);
    copy_pack(ctx, run.grads, grads);
    auto state = optimizer.begin(ctx, params);
    for (int t = 0; t < 3; ++t) optimizer.step(ctx, params, grads, state);
    return params;
  };
  const auto grouped = step_thrice(both), as_first = step_thrice(decaying), as_rest = step_thrice(sgd);
  int weights = 0, others = 0;
  for_each_tensor(
      [&](const Name& name, const auto& t, const auto& of_first, const auto& of_rest) {
        const auto& expected = is_weight(name) ? of_first : of_rest;
        const auto& other = is_weight(name) ? of_rest : of_first;
        for (Index i = 0; i < t.size(); ++i) CHECK(t.data()[i] == expected.data()[i]);
        (is_weight(name) ? weights : others) += values(t) != values(other);
      },
      grouped, as_first, as_rest);
  CHECK(weights == 5);
  CHECK(others >= 8);
}

TEST_CASE("InGroups: a function of names excludes the embedding from decay") {
  Cpu::Context ctx(1);
  const InGroups optimizer{[](const Name& name) { return is_weight(name) && name.str() != "model.layers.0.weight"; },
                           optim::AdamW{.lr = 0.5, .decay = 1}, optim::AdamW{.lr = 0}};
  const auto before = trained(ctx, optimizer, 0), after = trained(ctx, optimizer, 1);
  for_each_tensor(
      [&](const Name& name, const auto& a, const auto& b) {
        if (a.size() > 0)
          CHECK((values(a) == values(b)) == !(is_weight(name) && name.str() != "model.layers.0.weight"));
      },
      before.params, after.params);
}

TEST_CASE("InGroups: wrong options throw before the step") {
  Cpu::Context ctx(1);
  auto run = trained(ctx, InGroups{is_weight, decaying, adam}, 1);
  const auto before = values(run.params);
  run.optimizer.rest.beta1 = 1;
  CHECK(message_of([&] { run.step(ids, next); }) == "AdamW: beta1: expected 0 <= beta1 < 1, got 1");
  run.optimizer.rest.beta1 = 0.9;
  run.optimizer.lr = -1;
  CHECK(message_of([&] { run.step(ids, next); }) == "InGroups: lr: expected a finite number, at least 0, got -1");
  run.optimizer.lr = 1;
  run.optimizer.belongs = [](const Name&) { return true; };
  CHECK(message_of([&] { run.step(ids, next); }) ==
        "InGroups.step: belongs: expected the function that chose the groups in begin, got another function");
  run.optimizer.belongs = nullptr;
  CHECK(message_of([&] { run.step(ids, next); }) == "InGroups: belongs: expected a function of names, got null");
  CHECK(same_bits(values(run.params), before));
  CHECK(run.state.step == 1);
}

TEST_CASE("InGroups: a group without a tensor is refused") {
  Cpu::Context ctx(1);
  const auto refuses = [&](const auto& optimizer, const std::string& message) {
    CHECK(message_of([&] { trained(ctx, optimizer, 0); }) == message);
    CHECK(message_of([&] { trained(ctx, optim::Clipped{optimizer}, 0); }) == message);
  };
  const auto nothing = [](const Name& name) { return name.str().starts_with("experts."); };
  const auto everything = [](const Name&) { return true; };
  const auto of = [&](bool (*belongs)(const Name&)) {  // absent biases have names, so they count
    Index tensors = 0;
    const auto run = trained(ctx, adam, 0);
    for_each_tensor([&](const Name& name, const auto&) { tensors += belongs(name); }, run.params);
    return " for the name of at least one of " + std::to_string(tensors) + " tensors, got ";
  };
  refuses(InGroups{nothing, adam, decaying},
          "InGroups.begin: belongs: expected true" + of(everything) + "false for all");
  refuses(InGroups{everything, adam, decaying},
          "InGroups.begin: belongs: expected false" + of(everything) + "true for all");
  // The groups of an inner InGroups divide the tensors that the outer one gives it.
  refuses(InGroups{is_weight, adam, InGroups{is_weight, adam, decaying}},
          "InGroups.begin: belongs: expected true" + of([](const Name& name) { return !is_weight(name); }) +
              "false for all");
  refuses(InGroups{is_weight, optim::Clipped{InGroups{is_weight, adam, decaying}}, decaying},
          "InGroups.begin: belongs: expected false" + of(is_weight) + "true for all");
}

TEST_CASE("InGroups: a rate changed during a run takes effect") {
  Cpu::Context ctx(1);
  auto run = trained(ctx, InGroups{is_weight, optim::Clipped{decaying}, adam}, 1);
  const auto before = values(run.params);
  run.optimizer.first.optimizer.lr = run.optimizer.rest.lr = 0;
  run.step(ids, next);
  CHECK(same_bits(values(run.params), before));
  run.optimizer.first.optimizer.lr = 0.1;
  run.step(ids, next);
  CHECK_FALSE(same_bits(values(run.params), before));
}

/// A schedule that is negative from step 3 on.
struct Falling {
  double factor(Index t) const { return 2.5 - static_cast<double>(t); }
};
TEST_CASE("InGroups: if one optimizer cannot step, neither steps") {
  const auto refuses = [](const auto& optimizer, int steps, const std::string& message) {
    CAPTURE(message);
    Cpu::Context ctx(1);
    auto run = trained(ctx, optimizer, steps);
    const auto params = values(run.params), state = values(run.state);
    for (int again = 0; again < 2; ++again) CHECK(message_of([&] { run.step(ids, next); }) == message);
    CHECK(same_bits(values(run.params), params));
    CHECK(same_bits(values(run.state), state));
    CHECK(run.state.step == steps);
    return run;
  };
  const std::string falls = "AdamW: lr: expected a finite number, at least 0, got -0.025";
  const optim::Scheduled falling{adam, Falling{}};
  for (const auto& run : {refuses(InGroups{is_weight, falling, adam}, 2, falls)}) {
    CHECK(run.state.first.step == 2);
    CHECK(run.state.rest.step == 2);
  }
  refuses(InGroups{is_weight, adam, falling}, 2, falls);
  refuses(InGroups{is_weight, adam, optim::Clipped{falling}}, 2, falls);
  refuses(InGroups{is_weight, adam, InGroups{[](const Name& name) { return name.part == "gain"; }, adam, falling}}, 2,
          falls);
  refuses(InGroups{[](const Name& name) { return name.part == "gain"; }, adam, optim::NormalizedGd{}}, 0,
          "NormalizedGd.step: model.layers.1.rule.mu: expected a first extent (experts) of 7, as model.layers.0.weight "
          "has, got 1");
}

#if GATEFOLD_TEST_COUNTS
TEST_CASE("InGroups: no step after the first allocates") {
  Cpu::Context ctx(2);
  auto run = trained(ctx, optim::Clipped{InGroups{is_weight, decaying, adam}, 1.0}, 1);
  const int before = support::allocations;
  for (int t = 0; t < 3; ++t) run.step(ids, next);
  const int after = support::allocations;
  CHECK(before > 0);
  CHECK(after == before);
}
#endif
