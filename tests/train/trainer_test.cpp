#include "gatefold/train/trainer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/hidden_dropout.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/relative_attention.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/counted_allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;

namespace {

using BalancedTopK = WithAuxiliary<SoftmaxTopK, Balance, ZLoss>;

constexpr Index kDim = 6, kItems = 20;

/// A stack of sparse layers with everything: carry, norm, auxiliary losses, two experts per item.
auto model() {
  return Stack{
      Residual{update::HeavyBall{.mu = 0.5, .gamma = 0.5},
               PreNorm{LayerNorm{}, Mixture{BalancedTopK{.scores = {.experts = 4},
                                                         .selection = {.k = 2},
                                                         .auxiliary = {Balance{.weight = 0.1}, ZLoss{.weight = 0.01}}},
                                            Mlp<Gelu>{.model_dim = kDim, .hidden_dim = 8}}}},
      3};
}

/// A Cpu backend that counts how often deferred zeros are written.
struct CountingZeros : cpu::Primitives<CountingZeros, AsTheyAre> {
  static inline int written = 0;
  static void write_zeros(Context& ctx, void* p, std::size_t bytes) {
    ++written;
    cpu::Primitives<CountingZeros, AsTheyAre>::write_zeros(ctx, p, bytes);
  }
};

template <class T>
struct Batch {
  Tensor<T, 2, Cpu> x, target;
  explicit Batch(Index items = kItems, std::uint64_t seed = 5) : x(items, kDim), target(items, kDim) {
    Cpu::Context ctx(1);
    fill_normal(ctx, Seed{seed}, 1, x);
    fill_normal(ctx, Seed{seed + 1}, 1, target);
  }
};

/// Returns every value of a pack.
template <class T, class P>
std::vector<T> flat(const P& p) {
  std::vector<T> all;
  for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); }, p);
  return all;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE_TEMPLATE("Trainer (1): steps equal the written-out sequence, bit for bit", T, float, double) {
  Cpu::Context ctx(2);
  const optim::AdamW adam{.lr = 0.01, .decay = 0.1};
  const MeanSquaredError mse;
  const auto stack = model();
  using Layer = decltype(model());
  const Batch<T> batch;
  Trainer trainer{ctx, stack, mse, adam, Seed{42}, Element<T>{}};

  auto params = stack.template init<T, Cpu>(ctx, Seed{42});
  auto grads = zeros_like(ctx, params);
  auto state = adam.begin(ctx, params);
  CHECK(same_bits(flat<T>(params), flat<T>(trainer.params)));
  for (int t = 0; t < 3; ++t) {
    Saved<Layer, T, Cpu> saved;
    Carry<Layer, T, Cpu> carry, dcarry;
    Tensor<T, 2, Cpu> y(kItems, kDim), dy(kItems, kDim), dx(kItems, kDim);
    Tensor<T, 1, Cpu> value(1);
    stack.begin(ctx, params, kItems, carry);
    stack.forward(ctx, params, batch.x, carry, y, saved);
    mse.forward<T, Cpu>(ctx, y, batch.target, value);
    mse.backward<T, Cpu>(ctx, y, batch.target, dy);
    set_zero(ctx, grads);
    set_zero(ctx, dx);
    stack.begin(ctx, params, kItems, dcarry);
    set_zero(ctx, dcarry);
    backward(stack, ctx, params, batch.x, saved, dy, dcarry, dx, grads);
    adam.step(ctx, params, grads, state);

    CHECK(trainer.step(batch.x, batch.target) == static_cast<double>(value(0)));
    CHECK(same_bits(flat<T>(trainer.grads), flat<T>(grads)));
    CHECK(same_bits(flat<T>(trainer.params), flat<T>(params)));
    CHECK(same_bits(flat<T>(trainer.state), flat<T>(state)));
    CHECK(std::memcmp(trainer.output().data(), y.data(), static_cast<std::size_t>(y.size()) * sizeof(T)) == 0);
  }
  CHECK(trainer.state.step == 3);
}

TEST_CASE("Trainer: does not fill stored gradients with zeros") {
  CountingZeros::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, kItems, kDim),
             target = uniform_tensor<float>(ctx, Seed{2}, 1.0, kItems, kDim);
  const auto written_by = [&](const auto& layer) {
    Trainer trainer{ctx, layer, MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{42}};
    CountingZeros::written = 0;
    trainer.step(x, target);
    trainer.accumulate(x, target);
    trainer.step(x, target);
    return CountingZeros::written;
  };
  CHECK(written_by(model()) == 0);
  CHECK(written_by(Stack{Residual{update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                                           GatedMlp<Silu>{.model_dim = kDim, .hidden_dim = 8}}},
                         2}) == 0);
  CHECK(written_by(
            Chain{Linear{.model_dim = kDim, .output_dim = kDim}, Linear{.model_dim = kDim, .output_dim = kDim}}) == 0);
}

TEST_CASE("Trainer: the loss falls") {
  Cpu::Context ctx(2);
  const Batch<float> batch;
  Trainer trainer{ctx, model(), MeanSquaredError{}, optim::AdamW{.lr = 0.02}, Seed{1}};
  const double first = trainer.step(batch.x, batch.target);
  double last = first;
  for (int t = 0; t < 300; ++t) last = trainer.step(batch.x, batch.target);
  CAPTURE(first);
  CAPTURE(last);
  CHECK(std::isfinite(last));
  CHECK(last < first / 4);
}

TEST_CASE("Trainer: learns labels") {
  Cpu::Context ctx(1);
  const Index items = 40, classes = 3;
  Tensor<float, 2, Cpu> x(items, 2);
  std::vector<Index> label;
  fill_normal(ctx, Seed{3}, 1, x);
  for (Index n = 0; n < items; ++n) label.push_back(x(n, 0) > 0.3f ? 2 : x(n, 1) > 0 ? 1 : 0);
  Trainer trainer{ctx, Linear{.model_dim = 2, .output_dim = classes}, CrossEntropy{},
                  optim::Sgd{.lr = 1.0, .momentum = 0.9}, Seed{1}};
  for (int t = 0; t < 200; ++t) trainer.step(x, label);
  CHECK(trainer.evaluate(x, label) < 0.3);
  CHECK(trainer.output().extent(1) == classes);
}

TEST_CASE("Trainer: every step and part draws its own noise") {
  Cpu::Context ctx(1);
  Trainer trainer{ctx, model(), MeanSquaredError{}, optim::Sgd{.lr = 0.01}, Seed{42}};
  const Batch<float> batch;
  const Random first = trainer.noise();
  for (std::uint64_t part = 0; part < 1000; ++part) CHECK(!(first.seed == trainer.seed.fork(part)));
  trainer.accumulate(batch.x, batch.target);
  CHECK(!(trainer.noise().seed == first.seed));
  CHECK(trainer.noise().step == first.step);
  trainer.step(batch.x, batch.target);
  CHECK(trainer.noise().seed == first.seed);
  CHECK(trainer.noise().step == first.step + 1);
}

TEST_CASE("Trainer: the seed determines all bits, on any threads") {
  auto run = [](int threads, Seed seed) {
    Cpu::Context ctx(threads);
    Trainer trainer{ctx, model(), MeanSquaredError{}, optim::Clipped{optim::AdamW{.lr = 0.01}, 0.5}, seed};
    const Batch<float> batch(150);
    for (int t = 0; t < 4; ++t) trainer.step(batch.x, batch.target);
    return flat<float>(trainer.params);
  };
  const auto once = run(1, Seed{9});
  CHECK(same_bits(once, run(1, Seed{9})));
  CHECK(same_bits(once, run(2, Seed{9})));
  CHECK(same_bits(once, run(3, Seed{9})));
  CHECK_FALSE(same_bits(once, run(1, Seed{10})));
}

#if GATEFOLD_TEST_COUNTS
TEST_CASE("Trainer: no step after the first allocates") {
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads);
    const Batch<float> batch(64), smaller(10, 8);
    const optim::Scheduled scheduled{optim::Clipped{optim::AdamW{.lr = 0.01}, 1.0},
                                     optim::WarmupCosine{.warmup = 3, .total = 9}};
    Trainer trainer{ctx, model(), MeanSquaredError{}, scheduled, Seed{2}};
    trainer.step(batch.x, batch.target);
    const int before = support::allocations;
    for (int t = 0; t < 5; ++t) trainer.step(batch.x, batch.target);
    const int after_same = support::allocations;
    for (int t = 0; t < 3; ++t) trainer.step(smaller.x, smaller.target);
    trainer.step(batch.x, batch.target);
    const double auxiliary = trainer.auxiliary();
    const int after_all = support::allocations;
    CAPTURE(threads);
    CHECK(before > 0);
    CHECK(after_same == before);
    CHECK(after_all == before);
    CHECK(auxiliary > 0);
  }
}
#endif

TEST_CASE("Trainer: auxiliary losses of all layers are separate from loss") {
  Cpu::Context ctx(1);
  const Batch<double> batch;
  const auto stack = model();
  Trainer trainer{ctx, stack, MeanSquaredError{}, optim::Sgd{.lr = 0}, Seed{4}, Element<double>{}};
  const double value = trainer.step(batch.x, batch.target);

  double squares = 0;
  for (Index i = 0; i < kItems * kDim; ++i) {
    const double v = trainer.output().data()[i] - batch.target.data()[i];
    squares += v * v / static_cast<double>(kItems * kDim);
  }
  CHECK(value == doctest::Approx(squares).epsilon(1e-12));

  double expected = 0;
  int mixtures = 0;
  for_each_mixture(trainer.saved, [&](const auto& mixture) {
    ++mixtures;
    const auto& q = mixture.gate.probabilities;
    const auto& z = mixture.gate.logits;
    for (Index e = 0; e < 4; ++e) {
      double picks = 0, mean = 0;
      for (Index p = 0; p < mixture.plan.expert.size(); ++p) picks += mixture.plan.expert(p) == e;
      for (Index n = 0; n < kItems; ++n) mean += q(n, e) / static_cast<double>(kItems);
      expected += 0.1 * 4 * picks / static_cast<double>(2 * kItems) * mean;
    }
    for (Index n = 0; n < kItems; ++n) {
      double total = 0;
      for (Index e = 0; e < 4; ++e) total += std::exp(z(n, e));
      expected += 0.01 * std::log(total) * std::log(total) / static_cast<double>(kItems);
    }
  });
  CHECK(mixtures == 3);
  CHECK(trainer.auxiliary() == doctest::Approx(expected).epsilon(1e-12));

  Trainer without{ctx, Linear{.model_dim = kDim}, MeanSquaredError{}, optim::Sgd{}, Seed{4}, Element<double>{}};
  without.step(batch.x, batch.target);
  CHECK(without.auxiliary() == 0);
}

// Compares gradients of f = loss + auxiliary losses with central differences in single parameters.
TEST_CASE("Trainer: gradients are those of loss plus auxiliary losses") {
  Cpu::Context ctx(1);
  const Batch<double> batch;
  Trainer trainer{ctx, model(), MeanSquaredError{}, optim::Sgd{.lr = 0}, Seed{4}, Element<double>{}};
  trainer.step(batch.x, batch.target);
  const auto gradient = flat<double>(trainer.grads);
  std::vector<double*> value;
  for_each_tensor(
      [&](const Name&, auto& t) {
        for (Index i = 0; i < t.size(); ++i) value.push_back(t.data() + i);
      },
      trainer.params);
  REQUIRE(value.size() == gradient.size());
  auto f = [&] { return trainer.step(batch.x, batch.target) + trainer.auxiliary(); };
  const double largest = std::abs(*std::max_element(gradient.begin(), gradient.end(),
                                                    [](double a, double b) { return std::abs(a) < std::abs(b); }));
  int checked = 0, wrong = 0;
  for (std::size_t i = 0; i < value.size(); i += 11) {
    const double at = *value[i], h = 1e-5;
    *value[i] = at + h;
    const double up = f();
    *value[i] = at - h;
    const double down = f();
    *value[i] = at;
    ++checked;
    wrong += !(std::abs((up - down) / (2 * h) - gradient[i]) <= 1e-6 * std::abs(gradient[i]) + 1e-9 * largest);
  }
  CHECK(checked > 50);
  CHECK(wrong == 0);
}

TEST_CASE("Trainer: a wrong target throws before the forward pass") {
  Cpu::Context ctx(1);
  const Batch<float> batch;
  Trainer trainer{ctx, Linear{.model_dim = kDim, .output_dim = 3}, CrossEntropy{}, optim::Sgd{}, Seed{4}};
  std::vector<Index> label(static_cast<std::size_t>(kItems), 2);
  trainer.step(batch.x, label);
  label.back() = 3;
  const auto params = flat<float>(trainer.params);
  CHECK_THROWS_WITH_AS(trainer.step(batch.x, label), "CrossEntropy: target: expected labels from 0 to 2, got 3",
                       ArgumentError);
  CHECK(same_bits(flat<float>(trainer.params), params));
}

TEST_CASE("Trainer: wrong arguments throw; parameters and state stay") {
  Cpu::Context ctx(1);
  const Batch<float> batch;
  Trainer trainer{ctx, model(), MeanSquaredError{}, optim::AdamW{}, Seed{4}};
  trainer.step(batch.x, batch.target);
  const auto params = flat<float>(trainer.params), state = flat<float>(trainer.state);
  const Tensor<float, 2, Cpu> narrow(kItems, kDim - 1), short_target(kItems - 1, kDim);
  CHECK_THROWS_WITH_AS(trainer.step(batch.x, narrow), "MeanSquaredError: target: expected [20, 6], got [20, 5]",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(trainer.step(batch.x, short_target),
                       "Trainer.step: x and target: expected the same number of items, got 20 and 19", ArgumentError);
  CHECK_THROWS_WITH_AS(trainer.evaluate(short_target, batch.target),
                       "Trainer.evaluate: x and target: expected the same number of items, got 19 and 20",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(trainer.step(narrow, batch.target), "Trainer.step: x: expected [?, 6], got [20, 5]",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(trainer.step(narrow, short_target), "Trainer.step: x: expected [?, 6], got [20, 5]",
                       ArgumentError);
  const View<const float, 2, Cpu> negative(batch.x.data(), -20, kDim), nowhere(nullptr, kItems, kDim);
  CHECK_THROWS_WITH_AS(trainer.step(negative, batch.target), "Trainer.step: x: expected [?, 6], got [-20, 6]",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(trainer.step(nowhere, batch.target),
                       "Trainer.step: x: expected memory of 120 elements, got a null pointer", ArgumentError);
  CHECK_THROWS_WITH_AS(trainer.step(batch.x, nowhere),
                       "MeanSquaredError: target: expected memory of 120 elements, got a null pointer", ArgumentError);
  Tensor<float, 2, Cpu> y(kItems, kDim);
  CHECK_THROWS_WITH_AS(trainer.infer(negative, y), "Trainer.infer: x: expected [?, 6], got [-20, 6]", ArgumentError);
  CHECK_THROWS_WITH_AS(trainer.evaluate(negative, batch.target), "Trainer.evaluate: x: expected [?, 6], got [-20, 6]",
                       ArgumentError);
  // A batch without items makes no step, but must have the right shape.
  const Tensor<float, 2, Cpu> none(0, kDim), none_narrow(0, kDim - 1);
  CHECK_THROWS_WITH_AS(trainer.step(none_narrow, none), "Trainer.step: x: expected [?, 6], got [0, 5]", ArgumentError);
  CHECK_THROWS_WITH_AS(trainer.step(none, none_narrow), "MeanSquaredError: target: expected [0, 6], got [0, 5]",
                       ArgumentError);
  CHECK(trainer.step(none, none) == 0);
  CHECK(same_bits(flat<float>(trainer.params), params));
  CHECK(same_bits(flat<float>(trainer.state), state));
  CHECK(trainer.state.step == 1);
  CHECK(std::isfinite(trainer.step(batch.x, batch.target)));
}

TEST_CASE_TEMPLATE("Trainer: infer and evaluate change nothing and use current parameters", T, float, double) {
  Cpu::Context ctx(2);
  const Batch<T> batch;
  Trainer trainer{ctx, model(), MeanSquaredError{}, optim::AdamW{.lr = 0.05}, Seed{4}, Element<T>{}};
  const auto params = flat<T>(trainer.params);
  const double before = trainer.evaluate(batch.x, batch.target);
  Tensor<T, 2, Cpu> y(kItems, kDim);
  trainer.infer(batch.x, y);
  CHECK(same_bits(flat<T>(trainer.params), params));
  CHECK(trainer.step(batch.x, batch.target) == before);
  CHECK(std::memcmp(trainer.output().data(), y.data(), static_cast<std::size_t>(y.size()) * sizeof(T)) == 0);
  CHECK(trainer.evaluate(batch.x, batch.target) != before);
}

TEST_CASE("Trainer: a batch without items takes no step") {
  Cpu::Context ctx(1);
  const Batch<float> none(0), batch;
  Trainer trainer{ctx, model(), MeanSquaredError{}, optim::AdamW{.decay = 0.5}, Seed{4}};
  trainer.step(batch.x, batch.target);
  const auto params = flat<float>(trainer.params), state = flat<float>(trainer.state);
  CHECK(trainer.step(none.x, none.target) == 0);
  CHECK(same_bits(flat<float>(trainer.params), params));
  CHECK(same_bits(flat<float>(trainer.state), state));
  CHECK(trainer.state.step == 1);
  CHECK(trainer.evaluate(none.x, none.target) == 0);
}

TEST_CASE("Trainer: dropout without noise is refused in steps") {
  Cpu::Context ctx(1);
  const Batch<float> batch;
  const auto message = [](const char* where) {
    return std::string(where) +
           ": extra.noise: expected random numbers in a training step (for example trainer.noise()), or rate 0, got "
           "none";
  };
  const auto check = [&](const char* where, const auto& layer, auto&& set_noise) {
    Trainer trainer{ctx, layer, MeanSquaredError{}, optim::Sgd{}, Seed{4}};
    const auto params = flat<float>(trainer.params);
    typename decltype(trainer)::Extra extra{};
    Tensor<float, 2, Cpu> y(kItems, kDim);
    const std::string expected = where ? message(where) : "no ArgumentError";
    CHECK(support::message_of([&] { trainer.step(batch.x, batch.target, extra); }) == expected);
    if (where) CHECK(same_bits(flat<float>(trainer.params), params));
    trainer.accumulate(batch.x, batch.target, extra);  // without a step this is an evaluation
    CHECK(support::message_of([&] { trainer.step(batch.x, batch.target, extra); }) == expected);
    CHECK(trainer.waiting() == (where ? 1 : 0));
    trainer.infer(batch.x, y, extra);
    trainer.evaluate(batch.x, batch.target, extra);
    set_noise(extra, trainer.noise());
    trainer.step(batch.x, batch.target, extra);
  };
  const auto with_rate = [](double rate) {
    return Stack{Residual{update::Plain{}, Dropout{rate, OneExpert{Linear{.model_dim = kDim}}}}, 2};
  };
  const auto of_branch = [](auto& extra, Random random) { extra.noise.random = random; };
  const auto of_expert = [](auto& extra, Random random) { extra.random = random; };
  const Mlp<Gelu> mlp{.model_dim = kDim, .hidden_dim = 8};
  check("Dropout", with_rate(0.5), of_branch);
  check(nullptr, with_rate(0), of_branch);
  check("HiddenDropout", HiddenDropout{0.5, mlp}, of_expert);
  check("HiddenDropout", Mixture{SoftmaxTopK{.scores = {.experts = 4}}, HiddenDropout{0.5, mlp}}, of_branch);
  check(nullptr, Mixture{SoftmaxTopK{.scores = {.experts = 4}}, HiddenDropout{0, mlp}}, of_branch);
  check("RelativeAttention", RelativeAttention{.model_dim = kDim, .heads = 2, .window = 4, .dropout = 0.1}, of_branch);
}

TEST_CASE("Trainer: the default element type is float") {
  Cpu::Context ctx(1);
  Trainer single{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  Trainer twice{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}, Element<double>{}};
  static_assert(std::is_same_v<decltype(single.output()), View<const float, 2, Cpu>>);
  static_assert(std::is_same_v<decltype(twice.output()), View<const double, 2, Cpu>>);
  CHECK(&single.context() == &ctx);
  CHECK(single.layer().in_dim() == 2);
}
