#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/gatefold.hpp"
#include "gatefold/papers/three_stage.hpp"
#include "support/pass.hpp"
#include "support/second_thread.hpp"

using namespace gatefold;
using support::Interrupted;
using support::InterruptedLoss;
using support::Interruption;
using support::on_second_thread;
using support::on_this_thread;
using support::same_bits;
using support::values;

namespace {

constexpr Index kDim = 8, kItems = 24, kFew = 3;
const std::string refused = support::second_thread_refused;

auto mixture() {
  return Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                 Mlp<Gelu>{.model_dim = kDim, .hidden_dim = 7}};
}
/// A model of two layers that share one momentum, with the interruption between them.
auto model(Interruption& at) {
  const Residual layer{update::HeavyBall{.mu = 0.7, .gamma = 0.9}, mixture()};
  return Chain{layer, Interrupted{kDim, &at}, layer};
}

struct Batch {
  Tensor<float, 2, Cpu> x, target, y{kItems, kDim}, few{kFew, kDim}, y_few{kFew, kDim};
  Batch() {
    Cpu::Context ctx(1);
    x = uniform_tensor<float>(ctx, Seed{1}, 1, kItems, kDim);
    target = uniform_tensor<float>(ctx, Seed{2}, 1, kItems, kDim);
    few = uniform_tensor<float>(ctx, Seed{3}, 1, kFew, kDim);
  }
};

using Call = std::function<void()>;
struct Named {
  std::string name;
  Call call;
};

/// Checks that each function of `second` is refused in the middle of each function of `first`, whose results keep their
/// bits.
/// @param make  creates an object with members first() and second(), which return the functions, and results(), which
///              returns what to compare
template <class MakeF>
void check_second_thread(Interruption& at, const MakeF& make) {
  auto undisturbed = make();
  std::vector<std::vector<double>> expected;
  for (const Named& first : undisturbed->first()) {
    first.call();
    expected.push_back(undisturbed->results());
  }
  const std::size_t calls = make()->second().size();
  for (std::size_t i = 0; i < calls; ++i) {
    auto run = make();
    const Named second = run->second()[i];
    CAPTURE(second.name);
    std::size_t done = 0;
    for (const Named& first : run->first()) {
      CAPTURE(first.name);
      std::string said = "not reached";
      at.f = [&] { said = on_second_thread(second.call); };
      first.call();
      CHECK(said == refused);
      CHECK(same_bits(run->results(), expected[done++]));
    }
  }
}

/// An executor that reaches the interruption in its `place`-th call, in the middle of a primitive.
struct Calling {
  Interruption at{};
  int place = 0, calls = 0;
  void run(int, cpu::WorkerFunction) {
    if (calls++ == place) at.reach();
  }
};

}  // namespace

TEST_CASE("Trainer: a second thread is refused and changes no step") {
  Interruption at;
  struct Run {
    Cpu::Context ctx{1};
    Batch b{}, others{};
    Trainer<float, Cpu::Context, decltype(model(std::declval<Interruption&>())), MeanSquaredError, optim::AdamW>
        trainer;
    double value = 0;

    explicit Run(Interruption& place)
        : trainer(ctx, model(place), MeanSquaredError{}, optim::AdamW{.lr = 0.1}, Seed{1}) {}
    std::vector<Named> first() {
      return {{"accumulate", [&] { value = trainer.accumulate(b.x, b.target); }},
              {"step", [&] { value = trainer.step(b.few, b.target.view().rows(0, kFew)); }},
              {"step", [&] { value = trainer.step(b.x, b.target); }},
              {"infer", [&] { trainer.infer(b.x, b.y); }},
              {"evaluate", [&] { value = trainer.evaluate(b.x, b.target); }}};
    }
    std::vector<Named> second() {
      return {{"infer", [&] { trainer.infer(others.x, others.y); }},
              {"infer few", [&] { trainer.infer(others.few, others.y_few); }},
              {"step", [&] { trainer.step(others.x, others.target); }},
              {"accumulate", [&] { trainer.accumulate(others.x, others.target); }},
              {"evaluate", [&] { trainer.evaluate(others.x, others.target); }},
              {"forget", [&] { trainer.forget(); }},
              {"waiting", [&] { trainer.waiting(); }},
              {"auxiliary", [&] { trainer.auxiliary(); }},
              {"noise", [&] { trainer.noise(); }},
              {"output", [&] { trainer.output(); }}};
    }
    std::vector<double> results() {
      auto all = values(b.y, trainer.params, trainer.grads, trainer.state);
      all.push_back(value);
      all.push_back(static_cast<double>(trainer.waiting()));
      all.push_back(static_cast<double>(trainer.state.step));
      return all;
    }
  };
  check_second_thread(at, [&] { return std::make_unique<Run>(at); });
}

TEST_CASE("RoutedTrainer: a second thread is refused and changes no gradient") {
  Interruption at;
  struct Run {
    Cpu::Context ctx{1};
    Batch b{}, others{};
    RoutedTrainer<float, Cpu::Context, decltype(mixture()), InterruptedLoss> trainer;
    RoutedTrainer<float, Cpu::Context, decltype(mixture()), InterruptedLoss>::Losses value{};

    explicit Run(Interruption& place) : trainer(ctx, mixture(), InterruptedLoss{place}, Seed{1}) {}
    std::vector<Named> first() {
      return {{"gradients", [&] { value = trainer.gradients(b.x, b.target); }},
              {"evaluate", [&] { value = trainer.evaluate(b.x, b.target); }}};
    }
    std::vector<Named> second() {
      return {{"gradients", [&] { trainer.gradients(others.few, others.target.view().rows(0, kFew)); }},
              {"evaluate", [&] { trainer.evaluate(others.few, others.target.view().rows(0, kFew)); }},
              {"output", [&] { trainer.output(); }},
              {"expert_output", [&] { trainer.expert_output(); }}};
    }
    std::vector<double> results() {
      auto all = values(trainer.params, trainer.grads);
      all.push_back(value.router);
      all.push_back(value.experts);
      return all;
    }
  };
  check_second_thread(at, [&] { return std::make_unique<Run>(at); });
}

TEST_CASE("ThreeStage: a second thread is refused and changes no step") {
  Interruption at;
  using M = decltype(Mixture{SoftmaxTopK{}, AttentionExpert{}});
  struct Run {
    Cpu::Context ctx{1};
    Batch b{}, others{};
    ThreeStage<float, Cpu::Context, M, InterruptedLoss, Stages<>> trainer;
    typename decltype(trainer)::Losses value{};

    explicit Run(Interruption& place)
        : trainer(ctx,
                  M{{.scores = {.experts = 3}, .selection = {.k = 1}}, AttentionExpert{.model_dim = 4, .length = 2}},
                  InterruptedLoss{place}, Stages<>{.first = 1, .second = 2}, Seed{1}) {
      trainer.begin_epoch();
    }
    std::vector<Named> first() {
      return {{"step", [&] { value = trainer.step(b.x, out(b, kItems)); }}};
    }
    std::vector<Named> second() {
      return {{"step", [&] { trainer.step(others.few, out(others, kFew)); }},
              {"begin_epoch", [&] { trainer.begin_epoch(); }},
              {"resume_after", [&] { trainer.resume_after(7); }},
              {"epoch", [&] { trainer.epoch(); }},
              {"stage", [&] { trainer.stage(); }}};
    }
    View<const float, 2, Cpu> out(Batch& of, Index items) {
      const Index width = trainer.trainer.mixture.out_dim();
      return View<const float, 2, Cpu>(of.target.data(), items, width);
    }
    std::vector<double> results() {
      auto all = values(trainer.trainer.params, trainer.trainer.grads, trainer.state);
      for (const double v : {value.router, value.experts, static_cast<double>(trainer.epoch())}) all.push_back(v);
      return all;
    }
  };
  check_second_thread(at, [&] { return std::make_unique<Run>(at); });
}

TEST_CASE("InputGradient: a second thread is refused and changes no gradient") {
  Interruption at;
  struct Run {
    Cpu::Context ctx{1};
    Batch b{}, others{};
    decltype(model(std::declval<Interruption&>())) layer;
    Params<decltype(layer), float, Cpu> params;
    InputGradient<float, Cpu::Context, decltype(layer), MeanSquaredError> gradient;

    explicit Run(Interruption& place)
        : layer(model(place)), params(layer.init<float, Cpu>(ctx, Seed{1})), gradient(ctx, layer, MeanSquaredError{}) {}
    std::vector<Named> first() {
      return {{"gradient", [&] { gradient(params, b.x, b.target, b.y); }}};
    }
    std::vector<Named> second() {
      return {{"gradient", [&] { gradient(params, others.few, others.target.view().rows(0, kFew), others.y_few); }}};
    }
    std::vector<double> results() { return values(b.y); }
  };
  check_second_thread(at, [&] { return std::make_unique<Run>(at); });
}

TEST_CASE("free functions: a second thread is refused and changes nothing") {
  Interruption at;
  struct Run {
    Cpu::Context ctx{1};
    Batch b{}, others{};
    decltype(model(std::declval<Interruption&>())) layer;
    using L = decltype(layer);
    Params<L, float, Cpu> params, other_params, grads;
    Carry<L, float, Cpu> carry, dcarry, other_carry;
    Saved<L, float, Cpu> saved, other_saved;
    Tensor<float, 2, Cpu> dx{kItems, kDim};
    FrozenParams<Params<L, float, Cpu>, Cpu> frozen;
    optim::AdamW adamw{.lr = 0.1};
    decltype(adamw.begin(ctx, params)) state;

    explicit Run(Interruption& place)
        : layer(model(place)),
          params(layer.template init<float, Cpu>(ctx, Seed{1})),
          other_params(layer.template init<float, Cpu>(ctx, Seed{2})),
          grads(zeros_like(ctx, params)),
          frozen(freeze(ctx, layer.template init<float, Cpu>(ctx, Seed{1}))),
          state(adamw.begin(ctx, params)) {
      layer.begin(ctx, params, kItems, dcarry);
      layer.begin(ctx, params, kFew, other_carry);
      fill(ctx, dx, 0);
      fill(ctx, others.y_few, 5);
    }
    std::vector<Named> first() {
      return {{"infer",
               [&] {
                 layer.begin(ctx, params, kItems, carry);
                 infer(layer, ctx, params, b.x, carry, b.y);
               }},
              {"infer frozen",
               [&] {
                 layer.begin(ctx, params, kItems, carry);
                 infer(layer, ctx, frozen, b.x, carry, b.y);
               }},
              {"forward",
               [&] {
                 layer.begin(ctx, params, kItems, carry);
                 layer.forward(ctx, params, b.x, carry, b.y, saved);
               }},
              {"backward", [&] { backward(layer, ctx, params, b.x, saved, b.target, dcarry, dx, grads); }}};
    }
    std::vector<Named> second() {
      return {{"infer", [&] { infer(layer, ctx, params, others.few, other_carry, others.y_few); }},
              {"infer frozen", [&] { infer(layer, ctx, frozen, others.few, other_carry, others.y_few); }},
              {"begin", [&] { layer.begin(ctx, params, kItems, other_carry); }},
              {"forward", [&] { layer.forward(ctx, params, others.few, other_carry, others.y_few, other_saved); }},
              {"backward",
               [&] {
                 backward(layer, ctx, params, others.few, other_saved, others.y_few, other_carry, others.y_few, grads);
               }},
              {"freeze", [&] { freeze(ctx, std::move(other_params)); }},
              {"use", [&] { const auto use = ctx.use(frozen.packed); }},
              {"copy_pack", [&] { copy_pack(ctx, params, other_params); }},
              {"step", [&] { adamw.step(ctx, other_params, grads, state); }},
              {"step", [&] {
                 optim::Clipped{adamw, 1e-9}.step(ctx, other_params, grads, state);
               }}};
    }
    std::vector<double> results() {
      auto all = values(b.y, others.y_few, carry, dcarry, other_carry, dx, grads, other_params, state);
      all.push_back(static_cast<double>(state.step));
      return all;
    }
  };
  check_second_thread(at, [&] { return std::make_unique<Run>(at); });
}

TEST_CASE("Trainer: a second thread inside the executor changes no step") {
  Interruption unused;
  Batch b;
  const auto train = [&](Calling executor, bool interrupt, std::string& said) {
    Cpu::Context ctx(executor, 2, true);
    Trainer trainer{ctx, model(unused), MeanSquaredError{}, optim::AdamW{.lr = 0.1}, Seed{1}};
    executor.calls = 0;
    if (interrupt) executor.at.f = [&] { said = on_second_thread([&] { trainer.infer(b.few, b.y_few); }); };
    const double loss = trainer.step(b.x, b.target);
    auto all = values(trainer.params);
    all.push_back(loss);
    return all;
  };
  std::string said;
  const auto expected = train({}, false, said);
  int place = 0;
  for (;; ++place) {
    CAPTURE(place);
    said = "not reached";
    CHECK(same_bits(train({.place = place}, true, said), expected));
    if (said == "not reached") break;
    CHECK(said == refused);
  }
  CHECK(place > 20);
}

TEST_CASE("Trainer: calls of other threads do not race with steps") {
  Interruption unused;
  Batch b, others;
  const auto train = [&](bool disturbed) {
    Cpu::Context ctx(1);
    Trainer trainer{ctx, model(unused), MeanSquaredError{}, optim::AdamW{.lr = 0.1}, Seed{1}};
    std::atomic<bool> done = false;
    const auto call = [&] {
      trainer.infer(others.few, others.y_few);
      trainer.evaluate(others.few, others.target.view().rows(0, kFew));
      trainer.output();
      trainer.waiting();
      trainer.auxiliary();
    };
    std::thread other([&] {
      while (disturbed && !done) {
        on_this_thread(call);
        std::this_thread::yield();
      }
    });
    std::vector<double> losses;
    while (losses.size() < 20) on_this_thread([&] { losses.push_back(trainer.step(b.x, b.target)); });
    done = true;
    other.join();
    return losses;
  };
  CHECK(same_bits(train(true), train(false)));
}

TEST_CASE("contexts: several threads share parameters, plain and frozen") {
  Interruption unused;
  const auto layer = model(unused);
  using L = std::remove_const_t<decltype(layer)>;
  Cpu::Context ctx(1);
  Batch b;
  const auto params = layer.init<float, Cpu>(ctx, Seed{1});
  const auto frozen = freeze(ctx, layer.init<float, Cpu>(ctx, Seed{1}));
  const auto run = [&](Cpu::Context& own, const auto& weights) {
    Carry<L, float, Cpu> carry;
    Tensor<float, 2, Cpu> y(kItems, kDim);
    layer.begin(own, model_params(weights), kItems, carry);
    infer(layer, own, weights, b.x, carry, y);
    return values(y);
  };
  const auto expected = run(ctx, params);
  constexpr int threads = 4, runs = 10;
  std::vector<std::vector<double>> results(threads * runs);
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i)
    all.emplace_back([&, i] {
      Cpu::Context own(1);
      for (int r = 0; r < runs; ++r)
        results[static_cast<std::size_t>(i * runs + r)] = i % 2 ? run(own, frozen) : run(own, params);
    });
  for (auto& thread : all) thread.join();
  for (const auto& result : results) CHECK(same_bits(result, expected));
}
