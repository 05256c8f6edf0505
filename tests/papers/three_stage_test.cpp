#include "gatefold/papers/three_stage.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/attention_expert.hpp"
#include "gatefold/expert/hidden_dropout.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/expert/patch_cnn.hpp"
#include "gatefold/expert/transformer_expert.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/loss/logistic.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/papers/signal_mixture.hpp"
#include "support/allocations.hpp"
#include "support/counted_allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using support::same_bits;
using support::values;

namespace {

constexpr Index kDim = 8, kLength = 4, kItems = 24, kExperts = 3;

SignalMixture::Sample<double, Cpu> sample() {
  Cpu::Context ctx(1);
  const SignalMixture data{.clusters = 3, .model_dim = kDim, .length = kLength};
  return data.draw<double, Cpu>(ctx, data.signals<double, Cpu>(ctx, Seed{1}), Seed{2}, kItems);
}
SoftmaxNoisyTop1 gate() {
  return {.scores = {.experts = kExperts, .length = kLength, .bias = false, .initial = Initial::zero()}};
}
auto transformers() { return Mixture{gate(), AttentionExpert{.model_dim = kDim, .length = kLength}}; }
template <class M>
Extra<M, double, Cpu> noise(const M&, Index epoch) {
  Extra<M, double, Cpu> extra;
  extra.selection.random = Random{Seed{5}, static_cast<std::uint64_t>(epoch)};
  return extra;
}
/// Returns the names of the tensors that a call changes.
template <class P, class F>
std::set<std::string> moved(const P& params, const F& call) {
  std::vector<std::vector<double>> before;
  for_each_tensor([&](const Name&, const auto& t) { before.emplace_back(t.data(), t.data() + t.size()); }, params);
  call();
  std::set<std::string> names;
  std::size_t i = 0;
  for_each_tensor(
      [&](const Name& name, const auto& t) {
        if (std::vector<double>(t.data(), t.data() + t.size()) != before[i++]) names.insert(name.str());
      },
      params);
  return names;
}

}  // namespace

TEST_CASE("ThreeStage (1)-(4): epochs equal the written-out sequence") {
  Cpu::Context ctx(2);
  const auto s = sample();
  const auto mixture = transformers();
  const Stages<> stages{.first = 2,
                        .second = 4,
                        .ffn = {.lr = 0.1},
                        .attention = {.lr = 0.7},
                        .fine = {.lr = 0.3},
                        .router = {.lr = 0.5}};
  ThreeStage run{ctx, mixture, Logistic{}, stages, Seed{7}, Element<double>{}};

  RoutedTrainer by_hand{ctx, mixture, Logistic{}, Seed{7}, false, Element<double>{}};
  auto &w = by_hand.params.expert.value, &dw = by_hand.grads.expert.value;
  auto &k = by_hand.params.expert.key_query, &dk = by_hand.grads.expert.key_query;
  auto &theta = by_hand.params.gate, &dtheta = by_hand.grads.gate;
  auto ffn = stages.ffn.begin(ctx, w);
  auto attention = stages.attention.begin(ctx, k);
  auto fine = stages.fine.begin(ctx, w);
  auto router = stages.router.begin(ctx, theta);
  for (Index t = 1; t <= 6; ++t) {
    run.begin_epoch();
    CHECK(run.epoch() == t);
    CHECK(run.stage() == (t <= 2 ? 1 : t <= 4 ? 2 : 3));
    const auto losses = run.step(s.x, s.target, noise(mixture, t));
    const auto expected = by_hand.gradients(s.x, s.target, noise(mixture, t));
    if (t <= 2) stages.ffn.step(ctx, w, dw, ffn);
    if (t > 2 && t <= 4) stages.attention.step(ctx, k, dk, attention);
    if (t > 4) stages.fine.step(ctx, w, dw, fine);
    stages.router.step(ctx, theta, dtheta, router);
    CHECK((losses.router == expected.router && losses.experts == expected.experts));
    CHECK(same_bits(values(run.trainer.params), values(by_hand.params)));
  }
}

TEST_CASE("ThreeStage: stage I moves used experts by the learning rate") {
  Cpu::Context ctx(1);
  const auto s = sample();
  const auto mixture = transformers();
  ThreeStage run{ctx,     mixture,          Logistic{}, Stages<>{.first = 1, .second = 1, .ffn = {.lr = 0.25}},
                 Seed{7}, Element<double>{}};
  const auto before = values(run.trainer.params.expert.value);
  run.begin_epoch();
  run.step(s.x, s.target, noise(mixture, 1));
  const auto after = values(run.trainer.params.expert.value);
  for (Index e = 0; e < kExperts; ++e) {
    double squares = 0;
    for (Index j = 0; j < kDim; ++j) {
      const double d = after[std::size_t(e * kDim + j)] - before[std::size_t(e * kDim + j)];
      squares += d * d;
    }
    const auto& offsets = run.trainer.saved.plan.offsets;
    CHECK(std::sqrt(squares) == doctest::Approx(offsets(e + 1) > offsets(e) ? 0.25 : 0).epsilon(1e-12));
  }
}

TEST_CASE("ThreeStage: each stage moves its tensors, for any optimizer") {
  Cpu::Context ctx(1);
  const auto s = sample();
  Tensor<double, 2, Cpu> target(kItems, kDim * kLength);
  fill_normal(ctx, Seed{3}, 1, target);
  const Mixture mixture{gate(),
                        TransformerExpert<Gelu>{.model_dim = kDim, .hidden_dim = 4, .heads = 2, .length = kLength}};
  const optim::AdamW adam{.lr = 0.01, .decay = 0.1};
  ThreeStage run{ctx,     mixture,          MeanSquaredError{}, Stages{1, 2, adam, adam, adam, optim::Sgd{}},
                 Seed{7}, Element<double>{}};
  const std::set<std::string> attention{"attention_norm.gain", "attention_norm.bias", "attention.query",
                                        "attention.key",       "attention.value",     "attention.output"};
  std::set<std::string> rest;
  for_each_tensor(
      [&](const Name& name, const auto&) {
        if (!attention.contains(name.str())) rest.insert(name.str());
      },
      run.trainer.params.expert);
  CHECK(rest.size() == 6);  // mlp_norm and mlp
  for (int t = 1; t <= 3; ++t) {
    const auto router = values(run.trainer.params.gate);
    CHECK(moved(run.trainer.params.expert, [&] {
            run.begin_epoch();
            for (int batch = 0; batch < 2; ++batch) run.step(s.x, target, noise(mixture, 2 * t + batch));
          }) == (t == 2 ? attention : rest));
    CHECK_FALSE(same_bits(router, values(run.trainer.params.gate)));
  }
  // Each optimizer has moments only for the tensors that it steps.
  CHECK(count_values(run.state.ffn.m) + count_values(run.state.attention.m) == count_values(run.trainer.params.expert));
  CHECK(count_values(run.state.fine.m) == count_values(run.state.ffn.m));
  CHECK((run.state.ffn.step == 2 && run.state.attention.step == 2 && run.state.fine.step == 2));
}

TEST_CASE("ThreeStage: stage II moves separate keys and queries") {
  Cpu::Context ctx(1);
  const auto s = sample();
  const Mixture mixture{gate(), AttentionExpert{.model_dim = kDim, .length = kLength, .key_dim = 2}};
  ThreeStage run{ctx, mixture, Logistic{}, Stages<>{.first = 1, .second = 2}, Seed{7}, Element<double>{}};
  for (int t = 1; t <= 3; ++t)
    CHECK(moved(run.trainer.params.expert,
                [&] {
                  run.begin_epoch();
                  run.step(s.x, s.target, noise(mixture, t));
                }) == (t == 2 ? std::set<std::string>{"attention_key", "attention_query"}
                              : std::set<std::string>{"value", "output"}));
}

TEST_CASE("ThreeStage: a stage without tensors throws") {
  Cpu::Context ctx(1);
  const auto s = sample();
  const Mixture mixture{gate(), PatchCnn<Identity>{.model_dim = kDim, .patches = kLength, .filters = 1}};
  const auto with = [&](const auto& stages) {
    return ThreeStage{ctx, mixture, Logistic{}, stages, Seed{7}, Element<double>{}};
  };
  CHECK_THROWS_WITH_AS(with(Stages<>{.first = 1, .second = 2}),
                       "InStages.begin: stage II: expected at least one tensor of an attention (named `key_query`, "
                       "below a part named `attention`, or selected by `attends`), got none",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(
      with(Stages<>{.second = 2, .attends = [](const Name&) { return true; }}),
      "InStages.begin: stages I and III: expected at least one tensor that does not belong to an attention, got none",
      ArgumentError);
  CHECK_THROWS_WITH_AS(with(Stages<>{.second = 2, .attends = nullptr}),
                       "ThreeStage: stages.attends: expected a function of names, got null", ArgumentError);
  const std::set<std::string> router{"gate.scores.weight"}, both{"gate.scores.weight", "expert.weight"};
  auto run = with(Stages<>{.first = 1, .second = 1});
  for (int t = 1; t <= 3; ++t)
    CHECK(moved(run.trainer.params, [&] {
            run.begin_epoch();
            run.step(s.x, s.target, noise(mixture, t));
          }) == both);
}

TEST_CASE("ThreeStage: attention can be found by user-defined names") {
  Cpu::Context ctx(1);
  const auto s = sample();
  const auto mixture = transformers();
  const Stages<> swapped{.first = 1, .second = 2, .attends = [](const Name& name) { return !is_attention(name); }};
  ThreeStage run{ctx, mixture, Logistic{}, swapped, Seed{7}, Element<double>{}};
  for (int t = 1; t <= 3; ++t)
    CHECK(moved(run.trainer.params, [&] {
            run.begin_epoch();
            run.step(s.x, s.target, noise(mixture, t));
          }) == std::set<std::string>{"gate.scores.weight", t == 2 ? "expert.value" : "expert.key_query"});
}

TEST_CASE("ThreeStage: shared attention sums the gradients of all experts") {
  Cpu::Context ctx(1);
  const auto s = sample();
  const auto mixture = transformers();
  ThreeStage run{ctx,        mixture,
                 Logistic{}, Stages<>{.first = 1, .second = 3, .attention = {.lr = 2}, .shared_attention = true},
                 Seed{7},    Element<double>{}};
  const auto slice = [](const Tensor<double, 3, Cpu>& t, Index e) {
    const Index size = t.size() / kExperts;
    return std::vector<double>(t.data() + e * size, t.data() + (e + 1) * size);
  };
  const auto alike = [&] {
    const auto& k = run.trainer.params.expert.key_query;
    return same_bits(slice(k, 0), slice(k, 1)) && same_bits(slice(k, 0), slice(k, 2));
  };
  CHECK(alike());
  CHECK_FALSE(same_bits(slice(run.trainer.params.expert.value, 0), slice(run.trainer.params.expert.value, 1)));
  for (Index t = 1; t <= 4; ++t) {
    run.begin_epoch();
    if (t == 2) {
      run.trainer.gradients(s.x, s.target, noise(mixture, t));
      const auto& g = run.trainer.grads.expert.key_query;
      std::vector<double> expected = slice(run.trainer.params.expert.key_query, 0);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        double sum = 0;
        for (Index e = 0; e < kExperts; ++e) sum += slice(g, e)[i];
        expected[i] -= 2 * sum;
      }
      run.step(s.x, s.target, noise(mixture, t));
      for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK(slice(run.trainer.params.expert.key_query, 0)[i] == doctest::Approx(expected[i]).epsilon(1e-13));
    } else {
      run.step(s.x, s.target, noise(mixture, t));
    }
    CHECK(alike());
  }
}

TEST_CASE("ThreeStage: a copied run continues bit for bit, any threads") {
  const auto s = sample();
  const auto mixture = transformers();
  const optim::AdamW adam{.lr = 0.05};
  const Stages stages{2, 4, adam, adam, adam, optim::Sgd{.lr = 0.1, .momentum = 0.9}};
  const auto train = [&](auto& run, Index last) {
    while (run.epoch() < last) {
      run.begin_epoch();
      run.step(s.x, s.target, noise(mixture, run.epoch()));
    }
  };
  Cpu::Context one(1), three(3);
  ThreeStage whole{one, mixture, Logistic{}, stages, Seed{7}, Element<double>{}},
      first{three, mixture, Logistic{}, stages, Seed{7}, Element<double>{}},
      rest{three, mixture, Logistic{}, stages, Seed{8}, Element<double>{}};
  train(whole, 6);
  train(first, 3);  // in the middle of stage II
  copy_pack(three, first.trainer.params, rest.trainer.params);
  copy_pack(three, first.state, rest.state);
  rest.state.ffn.step = first.state.ffn.step;
  rest.state.attention.step = first.state.attention.step;
  rest.state.router.step = first.state.router.step;
  rest.resume_after(first.epoch());
  train(rest, 6);
  CHECK(same_bits(values(whole.trainer.params), values(rest.trainer.params)));
}

TEST_CASE("ThreeStage: the loss falls in every stage") {
  Cpu::Context ctx(2);
  const auto s = sample();
  const auto mixture = transformers();
  ThreeStage run{
      ctx,        mixture,
      Logistic{}, Stages<>{.first = 40, .second = 200, .ffn = {.lr = 0.05}, .attention = {.lr = 2}, .fine = {.lr = 1}},
      Seed{7},    Element<double>{}};
  double last = run.trainer.evaluate(s.x, s.target).experts;
  for (int stage = 1; stage <= 3; ++stage) {
    do {
      run.begin_epoch();
      run.step(s.x, s.target, noise(mixture, 1));  // equal noise: only the router changes which items an expert gets
    } while (run.epoch() != 40 && run.epoch() != 200 && run.epoch() != 300);
    const double now = run.trainer.evaluate(s.x, s.target).experts;
    CAPTURE(stage);
    CHECK(now < last);
    last = now;
  }
}

TEST_CASE("ThreeStage: an empty batch takes no step, even with decay") {
  Cpu::Context ctx(1);
  const auto s = sample();
  const optim::AdamW adam{.lr = 0.01, .decay = 0.1};
  ThreeStage run{ctx, transformers(), Logistic{}, Stages{1, 2, adam, adam, adam, adam}, Seed{7}, Element<double>{}};
  for (int stage = 1; stage <= 3; ++stage) {
    run.begin_epoch();
    CHECK(run.stage() == stage);
    run.step(s.x, s.target, noise(run.trainer.mixture, 1));
    const auto params = values(run.trainer.params), state = values(run.state);
    const auto losses = run.step(s.x.view().rows(0, 0), s.target.view().rows(0, 0), noise(run.trainer.mixture, 2));
    CHECK(losses.router == 0);
    CHECK(losses.experts == 0);
    CHECK(same_bits(values(run.trainer.params), params));
    CHECK(same_bits(values(run.state), state));
    CHECK(run.state.step == stage);
  }
}

TEST_CASE("ThreeStage: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  const auto s = sample();
  const auto with = [&](Index first, Index second) {
    return ThreeStage{ctx,     transformers(),   Logistic{}, Stages<>{.first = first, .second = second},
                      Seed{7}, Element<double>{}};
  };
  CHECK_THROWS_WITH_AS(with(-1, 2), "ThreeStage: stages.first: expected at least 0, got -1", ArgumentError);
  CHECK_THROWS_WITH_AS(with(3, 2), "ThreeStage: stages.second: expected at least stages.first = 3, got 2",
                       ArgumentError);
  auto run = with(0, 0);
  CHECK_THROWS_WITH_AS(run.step(s.x, s.target),
                       "ThreeStage.step: epoch: expected at least 1 (call begin_epoch first), got 0", ArgumentError);
  run.begin_epoch();
  CHECK(run.stage() == 3);

  // If one optimizer cannot step, no other optimizer does.
  const auto extra = noise(run.trainer.mixture, 1);
  run.step(s.x, s.target, extra);
  const auto params = values(run.trainer.params), state = values(run.state);
  for (double* lr : {&run.stages.router.lr, &run.stages.fine.lr}) {
    const double kept = std::exchange(*lr, -1);
    CHECK_THROWS_WITH_AS(run.step(s.x, s.target, extra), "Sgd: lr: expected a finite number, at least 0, got -1",
                         ArgumentError);
    *lr = kept;
  }
  run.stages.shared_attention = true;
  CHECK_THROWS_WITH_AS(run.step(s.x, s.target, extra),
                       "ThreeStage.step: stages.shared_attention: expected 0, as in the constructor, got 1",
                       ArgumentError);
  CHECK(same_bits(values(run.trainer.params), params));
  CHECK(same_bits(values(run.state), state));
  CHECK(run.state.step == 1);
  CHECK(run.state.fine.step == 1);
  CHECK(run.state.router.step == 1);
}

#if GATEFOLD_TEST_COUNTS
TEST_CASE("ThreeStage: after the first step of a stage nothing allocates") {
  const auto s = sample();
  const auto mixture = transformers();
  const auto extra = noise(mixture, 1);
  Cpu::Context ctx(2);
  ThreeStage run{ctx, mixture, Logistic{}, Stages<>{.first = 2, .second = 4}, Seed{7}, Element<double>{}};
  for (int t = 1; t <= 6; ++t) {
    run.begin_epoch();
    const int before = support::allocations;
    run.step(s.x, s.target, extra);
    const int after = support::allocations;
    CAPTURE(t);
    if (t % 2 == 0) CHECK(after == before);
    CHECK(after > 0);
  }
}
#endif

TEST_CASE("ThreeStage: a non-finite loss or gradient takes no step") {
  for (const NotFinite what : {NotFinite::throws, NotFinite::skips})
    for (const bool shared : {false, true}) {
      Cpu::Context ctx(2);
      auto s = sample();
      ThreeStage run{
          ctx,        transformers(),
          Logistic{}, Stages{0, 0, optim::NormalizedGd{}, optim::Sgd{}, optim::AdamW{}, optim::Sgd{}, shared},
          Seed{7},    Element<double>{}};
      run.not_finite = what;
      run.begin_epoch();
      const auto extra = noise(run.trainer.mixture, 1);
      run.step(s.x, s.target, extra);
      const auto params = values(run.trainer.params), state = values(run.state);
      const double kept = s.x(0, 0);
      s.x(0, 0) = std::numeric_limits<double>::quiet_NaN();
      if (what == NotFinite::throws) {
        CHECK_THROWS_WITH_AS(run.step(s.x, s.target, extra),
                             "ThreeStage.step: loss: expected a finite number, got nan; no parameter was changed",
                             NotFiniteError);
      } else {
        run.step(s.x, s.target, extra);
      }
      s.x(0, 0) = kept;
      CHECK(run.skipped == (what == NotFinite::skips ? 1 : 0));
      CHECK(run.state.step == 1);
      CHECK(run.state.fine.step == 1);
      CHECK(run.state.router.step == 1);
      CHECK(same_bits(values(run.state), state));
      CHECK(same_bits(values(run.trainer.params), params));
      run.step(s.x, s.target, extra);
      CHECK(run.state.step == 2);
      CHECK_FALSE(same_bits(values(run.trainer.params), params));
    }
}

TEST_CASE("ThreeStage: dropout without noise is refused in steps") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, 6, 4);
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 2}}, HiddenDropout{0.5, Mlp<Gelu>{4, 5}}};
  ThreeStage run{ctx, mixture, MeanSquaredError{}, Stages<>{.first = 1, .second = 1}, Seed{7}};
  run.begin_epoch();
  const auto before = values(run.trainer.params);
  CHECK(support::message_of([&] { run.step(x, x); }) ==
        "HiddenDropout: extra.noise: expected random numbers in a training step (for example trainer.noise()), or rate "
        "0, got "
        "none");
  CHECK(same_bits(values(run.trainer.params), before));
  run.step(x, x, {.noise = {Random{Seed{2}, 1}}});
  run.trainer.gradients(x, x);
}
