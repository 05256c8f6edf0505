#include "gatefold/papers/in_stages.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/loss/logistic.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/papers/merged_transformer.hpp"
#include "gatefold/papers/signal_mixture.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/allocations.hpp"
#include "support/larger.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using support::same_bits;
using support::values;

namespace {

using Matrix = Tensor<double, 2, Cpu>;

struct Attention {
  Matrix query, output;
  GATEFOLD_PACK(query, output)
};
/// Tensors of an attention, named `attention.…` and `key_query`, and the tensor `value`, which is not of an attention.
struct Model {
  Attention attention;
  Matrix key_query, value;
  GATEFOLD_PACK(attention, key_query, value)
};
Model model(std::uint64_t seed) {
  Cpu::Context ctx(1);
  Model m;
  for_each_tensor(
      [&](const Name&, auto& t) {
        t.resize(3, 4);
        fill_normal(ctx, Seed{seed++}, 1, t);
      },
      m);
  return m;
}
/// In each epoch, calls optimizer.step twice, with random gradients.
template <class O>
void train(const O& optimizer, Model& params, Index first, Index last, auto& state) {
  Cpu::Context ctx(1);
  for (state.epoch = first; state.epoch <= last; ++state.epoch)
    for (const std::uint64_t batch : {0, 10}) {
      Model grads = model(100 * static_cast<std::uint64_t>(state.epoch) + batch);
      optimizer.step(ctx, params, grads, state);
    }
}
const optim::AdamW ffn{.lr = 0.1, .decay = 0.1}, attention{.lr = 0.2, .decay = 0.2};
const optim::Sgd fine{.lr = 0.3, .momentum = 0.9};
const InStages stages{2, 4, ffn, attention, fine};

}  // namespace

TEST_CASE("is_attention: recognises tensors by name") {
  std::vector<std::string> names;
  Model m = model(1);
  for_each_tensor(
      [&](const Name& name, auto&) {
        if (is_attention(name)) names.push_back(name.str());
      },
      m);
  CHECK(names == std::vector<std::string>{"attention.query", "attention.output", "key_query"});
  const Name norm{nullptr, "attention_norm"}, other{nullptr, "self_attention"};
  CHECK(is_attention(Name{&norm, "gain"}));
  CHECK_FALSE(is_attention(other));
}

TEST_CASE("InStages (1)-(3): each optimizer steps its tensors in its epochs") {
  Cpu::Context ctx(1);
  Model params = model(1), expected = model(1);
  auto state = stages.begin(ctx, params);
  CHECK(same_bits(values(params), values(expected)));
  auto of_ffn = ffn.begin(ctx, expected.value);
  auto of_attention = attention.begin(ctx, expected.attention);
  auto of_key_query = attention.begin(ctx, expected.key_query);
  auto of_fine = fine.begin(ctx, expected.value);
  for (Index epoch = 1; epoch <= 6; ++epoch) {
    CHECK(stages.stage(epoch) == (epoch <= 2 ? 1 : epoch <= 4 ? 2 : 3));
    train(stages, params, epoch, epoch, state);
    for (const std::uint64_t batch : {0, 10}) {
      Model grads = model(100 * static_cast<std::uint64_t>(epoch) + batch);
      if (epoch <= 2) ffn.step(ctx, expected.value, grads.value, of_ffn);
      if (epoch > 2 && epoch <= 4) {
        attention.step(ctx, expected.attention, grads.attention, of_attention);
        attention.step(ctx, expected.key_query, grads.key_query, of_key_query);
      }
      if (epoch > 4) fine.step(ctx, expected.value, grads.value, of_fine);
    }
    CHECK(same_bits(values(params), values(expected)));
  }
  CHECK((state.step == 12 && state.ffn.step == 4 && state.attention.step == 4 && state.fine.step == 4));
  // each optimizer has moments only for the tensors that it steps
  std::vector<std::string> names;
  for_each_tensor(
      [&](const Name& name, const auto& t) {
        if (t.size() > 0) names.push_back(name.str());
      },
      state);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"attention.m.attention.output", "attention.m.attention.query",
                                          "attention.m.key_query", "attention.v.attention.output",
                                          "attention.v.attention.query", "attention.v.key_query", "ffn.m.value",
                                          "ffn.v.value", "fine.m.value"});
}

TEST_CASE("InStages: a run continues from a copied state") {
  Cpu::Context ctx(1);
  Model whole = model(1), first = model(1), rest = model(2);
  auto state = stages.begin(ctx, whole), before = stages.begin(ctx, first), after = stages.begin(ctx, rest);
  train(stages, whole, 1, 6, state);
  train(stages, first, 1, 3, before);
  decltype(before) aside;
  shape_like(aside, before);
  copy_pack(ctx, before, aside);
  copy_pack(ctx, first, rest);
  copy_pack(ctx, aside, after);
  after.ffn.step = before.ffn.step;
  after.attention.step = before.attention.step;
  train(stages, rest, 4, 6, after);
  CHECK(same_bits(values(whole), values(rest)));
}

TEST_CASE("InStages: a Trainer trains neurons, then attention, then neurons") {
  Cpu::Context ctx(1);
  const SignalMixture data{.clusters = 4, .model_dim = 20, .length = 5};
  const auto items = data.draw<double, Cpu>(ctx, data.signals<double, Cpu>(ctx, Seed{1}), Seed{2}, 16);
  const MergedTransformer<> expert{.model_dim = 20, .length = 5, .heads = 2, .filters = 4};
  Trainer trainer{
      ctx,
      NoResidual{OneExpert{expert}},
      Logistic{},
      InStages<>{.first = 1, .second = 2, .ffn = {.lr = 0.25}, .attention = {.lr = 0.5}, .fine = {.lr = 0.125}},
      Seed{2},
      Element<double>{}};
  for (int epoch = 1; epoch <= 3; ++epoch) {
    auto before = zeros_like(ctx, trainer.params);
    copy_pack(ctx, trainer.params, before);
    ++trainer.state.epoch;
    trainer.step(items.x, items.target);
    for_each_tensor(
        [&](const Name& name, const auto& now, const auto& was, const auto& g) {
          double moved = 0, wrong = 0, largest = 0;
          for (Index i = 0; i < now.size(); ++i) {
            const double step = now.data()[i] - was.data()[i], slope = g.data()[i];
            moved += step * step;
            wrong = support::larger(wrong, std::abs(step + (epoch == 2 ? 0.5 : 0.125) * slope));
            largest = support::larger(largest, std::abs(slope));
          }
          CAPTURE(name.str());
          CHECK(largest > 0);
          if (is_attention(name) != (epoch == 2)) {
            CHECK(moved == 0);
          } else if (epoch == 1) {
            CHECK(std::sqrt(moved) == doctest::Approx(0.25).epsilon(1e-12));
          } else {
            CHECK(wrong <= 1e-14 * std::max(1.0, largest));
          }
        },
        trainer.params, before, trainer.grads);
  }
}

TEST_CASE("InStages: wrong options throw") {
  Cpu::Context ctx(1);
  Model params = model(1), grads = model(2);
  const auto with = [&](Index first, Index second) {
    return InStages<>{.first = first, .second = second}.begin(ctx, params);
  };
  CHECK_THROWS_WITH_AS(with(-1, 2), "InStages: first: expected at least 0, got -1", ArgumentError);
  CHECK_THROWS_WITH_AS(with(3, 2), "InStages: second: expected at least first = 3, got 2", ArgumentError);
  const auto named = [&](bool (*attends)(const Name&), Index second) {
    return InStages<>{.second = second, .attends = attends}.begin(ctx, params);
  };
  const auto none = [](const Name&) { return false; };
  CHECK_THROWS_WITH_AS(named(none, 1),
                       "InStages.begin: stage II: expected at least one tensor of an attention (named `key_query`, "
                       "below a part named `attention`, or selected by `attends`), got none",
                       ArgumentError);
  named(none, 0);
  CHECK_THROWS_WITH_AS(
      named([](const Name&) { return true; }, 1),
      "InStages.begin: stages I and III: expected at least one tensor that does not belong to an attention, got none",
      ArgumentError);
  CHECK_THROWS_WITH_AS(named(nullptr, 1), "InStages: attends: expected a function of names, got null", ArgumentError);
  auto state = with(0, 0);
  CHECK_THROWS_WITH_AS(InStages<>{}.step(ctx, params, grads, state),
                       "InStages.step: state.epoch: expected at least 1, got 0", ArgumentError);
  state.epoch = 1;
  InStages<> options;
  options.fine.lr = -1;
  CHECK_THROWS_WITH_AS(options.step(ctx, params, grads, state), "Sgd: lr: expected a finite number, at least 0, got -1",
                       ArgumentError);
  // The options of the step differ from the options of begin.
  options.fine.lr = 0.1;
  options.attends = none;
  CHECK_THROWS_WITH_AS(options.step(ctx, params, grads, state),
                       "InStages.step: attends: expected the function that chose the groups in begin, got another "
                       "function",
                       ArgumentError);
  state = named(none, 0);
  state.epoch = 1;
  options.second = 1;
  CHECK_THROWS_WITH_AS(options.step(ctx, params, grads, state),
                       "InStages.step: stage II: expected at least one tensor of an attention (named `key_query`, "
                       "below a part named `attention`, or selected by `attends`), got none",
                       ArgumentError);
  CHECK(state.step == 0);
  CHECK(same_bits(values(params), values(model(1))));
  CHECK(InStages<>{}.stage(1) == 3);
}

#if GATEFOLD_TEST_COUNTS
TEST_CASE("InStages: after the first step of a stage nothing allocates") {
  Cpu::Context ctx(1);
  Model params = model(1), grads = model(2);
  auto state = stages.begin(ctx, params);
  for (int t = 1; t <= 6; ++t) {
    ++state.epoch;
    const int before = support::allocations;
    stages.step(ctx, params, grads, state);
    const int after = support::allocations;
    CAPTURE(t);
    if (t % 2 == 0) CHECK(after == before);
    CHECK(after > 0);
  }
}
#endif
