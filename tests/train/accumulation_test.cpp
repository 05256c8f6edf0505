// A Trainer that gets a batch in parts.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/allocations.hpp"
#include "support/nan_of_nothing.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index vocabulary = 9, dim = 4, ignored = -1;

/// A model with a sparse gradient, a carry, dropout and experts. Its items do not interact.
auto model(double rate) {
  return Chain{
      Embedding{.vocabulary = vocabulary, .model_dim = dim},
      Residual{update::HeavyBall{.mu = 0.5},
               Dropout{rate, PreNorm{LayerNorm{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                          Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}}}}},
      LayerNorm{dim}};
}
const StreamedCrossEntropy loss{.vocabulary = vocabulary, .model_dim = dim, .ignore = ignored};

struct Part {
  std::vector<Index> ids{}, next{};
};
/// Returns parts of the given sizes. Some of their targets do not count.
std::vector<Part> parts_of(const std::vector<Index>& sizes) {
  std::vector<Part> parts;
  Index i = 1;
  for (const Index size : sizes) {
    Part& part = parts.emplace_back();
    for (Index n = 0; n < size; ++n, ++i) {
      part.ids.push_back(i * i % (vocabulary - 1));
      part.next.push_back(i % 5 == 3 ? ignored : i * 7 % vocabulary);
    }
  }
  return parts;
}
Part whole(const std::vector<Part>& parts) {
  Part all;
  for (const Part& part : parts) {
    all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
    all.next.insert(all.next.end(), part.next.begin(), part.next.end());
  }
  return all;
}
double counted(const Part& part) {
  return static_cast<double>(part.next.size()) -
         static_cast<double>(std::count(part.next.begin(), part.next.end(), ignored));
}

template <class T, class O = optim::AdamW>
auto trainer(Cpu::Context& ctx, const O& optimizer = {}, double rate = 0.3) {
  return Trainer{ctx, model(rate), loss, optimizer, Seed{3}, Element<T>{}};
}
template <class R>
using Value = std::remove_cvref_t<decltype(std::declval<R>().output()(0, 0))>;
/// Runs a step on parts. If draw >= 0, it selects the random numbers of dropout.
template <class R>
double step(R& run, const std::vector<Part>& parts, Index draw = -1) {
  const auto extra = [&](std::size_t i) {
    Segment<Value<R>, Cpu> segment;
    if (draw >= 0) segment.noise.random = Random{Seed{8}, static_cast<std::uint64_t>(draw) * 16 + i};
    return extra_of<typename R::Extra>(segment);
  };
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) run.accumulate(parts[i].ids, parts[i].next, extra(i));
  return run.step(parts.back().ids, parts.back().next, extra(parts.size() - 1));
}

/// Compares every third element of run.grads with central differences. value() returns the loss at run.params.
template <class R, class F>
void check_gradient(R& run, const F& value) {
  const auto gradient = values(run.grads);
  std::vector<double*> at;
  for_each_tensor(
      [&](const Name&, auto& t) {
        for (Index i = 0; i < t.size(); ++i) at.push_back(t.data() + i);
      },
      run.params);
  const double largest = *std::max_element(gradient.begin(), gradient.end());
  int wrong = 0, moved = 0;
  for (std::size_t i = 0; i < at.size(); i += 3) {
    const double before = *at[i], h = 1e-5;
    *at[i] = before + h;
    const double up = value();
    *at[i] = before - h;
    const double down = value();
    *at[i] = before;
    moved += gradient[i] != 0;
    wrong += !(std::abs((up - down) / (2 * h) - gradient[i]) <= 1e-6 * std::abs(gradient[i]) + 1e-9 * largest);
  }
  CHECK(moved > 40);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("accumulate (2): loss and gradient are means over counted targets") {
  Cpu::Context ctx(2);
  const auto parts = parts_of({5, 11, 2, 8});
  const optim::AdamW still{.lr = 0};
  auto run = trainer<double>(ctx, still), alone = trainer<double>(ctx, still);
  const double value = step(run, parts, 0);
  std::vector<double> sum(values(run.grads).size());
  double losses = 0, count = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Segment<double, Cpu> segment;
    segment.noise.random = Random{Seed{8}, i};
    const double of_part = alone.step(parts[i].ids, parts[i].next, extra_of<decltype(alone)::Extra>(segment)),
                 n = counted(parts[i]);
    losses += n * of_part;
    count += n;
    const auto gradient = values(alone.grads);
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += n * gradient[j];
  }
  for (double& v : sum) v /= count;
  // Four parts give about 12 roundings. The terms of a gradient are at most 100 times their sum.
  CHECK(std::abs(value - losses / count) <= 12 * 0x1p-53 * value);
  CHECK(difference(values(run.grads), sum) <= 12 * 100 * 0x1p-53);
  CHECK(run.state.step == 1);
}

TEST_CASE("accumulate: a part without counted targets adds nothing") {
  Cpu::Context ctx(1);
  const auto make = [&] {
    return Trainer{ctx, Mixture{SoftmaxTopK{.scores = {.experts = 3}}, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}},
                   NanOfNothing{}, optim::AdamW{}, Seed{3}};
  };
  auto run = make(), alone = make();
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, 3, dim);
  const std::vector<Index> labels{0, 3, -1}, none{-1, -1, -1};
  CHECK(std::isnan(run.accumulate(x, none)));
  run.accumulate(x, labels);
  CHECK(std::isnan(run.accumulate(x, none)));
  CHECK(run.step(x, none) == alone.step(x, labels));
  CHECK(values(run.params) == values(alone.params));
}

TEST_CASE("accumulate: parts equal the whole batch up to rounding") {
  Cpu::Context ctx(2);
  for (const std::vector<Index>& sizes :
       std::vector<std::vector<Index>>{{26}, {13, 13}, {1, 25}, {7, 7, 7, 5}, {2, 3, 5, 7, 9}}) {
    const auto parts = parts_of(sizes);
    const optim::Clipped clipped{optim::AdamW{.lr = 1e-2, .epsilon = 1e-3}, 0.05};
    auto run = trainer<double>(ctx, clipped, 0), batch = trainer<double>(ctx, clipped, 0);
    for (int t = 0; t < 3; ++t) {
      const double value = step(run, parts), expected = step(batch, {whole(parts)});
      // A sum has at most 52 terms, one for each pick. The terms of a gradient are at most 100 times their sum.
      CHECK(std::abs(value - expected) <= 52 * 0x1p-53 * expected);
      CHECK(difference(values(run.grads), values(batch.grads)) <= 52 * 100 * 0x1p-53);
    }
    CHECK(difference(values(run.params), values(batch.params)) <= 1e-11);
    if (sizes.size() == 1) CHECK(same_bits(values(run.params), values(batch.params)));
  }
}

TEST_CASE("accumulate: two equal parts give the mean of their gradients") {
  Cpu::Context ctx(1);
  const optim::AdamW adam{.lr = 0.01};
  const MeanSquaredError mse;
  const auto layer = as_layer<float, Cpu>(Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                  Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}});
  Trainer run{ctx, layer, mse, adam, Seed{4}};
  auto params = init_params<float, Cpu>(layer, ctx, Seed{4});
  auto grads = zeros_like(ctx, params);
  auto state = adam.begin(ctx, params);
  for (std::uint64_t t = 0; t < 3; ++t) {
    set_zero(ctx, grads);
    for (std::uint64_t i = 0; i < 2; ++i) {
      const auto x = uniform_tensor<float>(ctx, Seed{t}.fork(i), 1, 6, dim);
      i == 0 ? run.accumulate(x, x) : run.step(x, x);
      Saved<decltype(layer), float, Cpu> saved;
      Nothing<float, Cpu> carry;
      Tensor<float, 2, Cpu> y(6, dim), dy(6, dim), dx(6, dim);
      layer.forward(ctx, params, x, carry, y, saved);
      mse.backward<float, Cpu>(ctx, y, x, dy);
      set_zero(ctx, dx);
      backward(layer, ctx, params, x, saved, dy, carry, dx, grads);
    }
    for_each_tensor(
        [](const Name&, auto& g) {
          for (Index i = 0; i < g.size(); ++i) g.data()[i] *= 0.5f;
        },
        grads);
    CHECK(same_bits(values(run.grads), values(grads)));
    adam.step(ctx, params, grads, state);
    CHECK(same_bits(values(run.params), values(params)));
  }
}

TEST_CASE("accumulate: gradients with dropout equal central differences") {
  Cpu::Context ctx(1);
  const auto parts = parts_of({4, 7, 3});
  auto run = trainer<double>(ctx, optim::AdamW{.lr = 0});
  step(run, parts, 2);
  check_gradient(run, [&] { return step(run, parts, 2); });
}

TEST_CASE("accumulate: the gradient is readable before step; forget clears it") {
  Cpu::Context ctx(1);
  const auto parts = parts_of({14, 6});
  auto run = trainer<double>(ctx), expected = trainer<double>(ctx);
  const auto value = [&] { return run.evaluate(parts[0].ids, parts[0].next); };
  CHECK(run.accumulate(parts[0].ids, parts[0].next) == value());
  check_gradient(run, value);
  run.forget();
  CHECK(run.waiting() == 0);
  CHECK(step(run, {parts[1]}, 0) == step(expected, {parts[1]}, 0));
  CHECK(same_bits(values(run.params), values(expected.params)));
  CHECK(run.state.step == 1);
}

TEST_CASE("accumulate: empty parts add nothing, in any order") {
  Cpu::Context ctx(1);
  const auto parts = parts_of({5, 9});
  const Part none{{1, 2, 8}, {ignored, ignored, ignored}}, empty{};
  auto expected = trainer<float>(ctx, {}, 0);
  const double value = step(expected, parts);
  for (const Part& nothing : {none, empty})
    for (std::size_t place = 0; place <= parts.size(); ++place) {
      auto with = parts;
      with.insert(with.begin() + static_cast<std::ptrdiff_t>(place), nothing);
      auto run = trainer<float>(ctx, {}, 0);
      CHECK(step(run, with) == value);
      CHECK(same_bits(values(run.params), values(expected.params)));
    }
  auto run = trainer<float>(ctx, {}, 0);
  CHECK(step(run, {none, none}) == 0);
  CHECK(values(run.grads) == std::vector<double>(values(run.grads).size()));
  CHECK(run.accumulate(empty.ids, empty.next) == 0);
  CHECK(run.step(empty.ids, empty.next) == 0);
  CHECK(run.state.step == 1);
  CHECK(run.step(none.ids, none.next) == 0);
  CHECK(run.state.step == 2);
}

TEST_CASE("accumulate: the number of threads changes no bit") {
  const auto parts = parts_of({40, 65, 31});
  const auto learn = [&](int threads) {
    Cpu::Context ctx(threads, true);
    auto run = trainer<float>(ctx, optim::Clipped{optim::AdamW{.lr = 0.01}, 0.5});
    for (Index t = 0; t < 3; ++t) step(run, parts, t);
    return values(run.params);
  };
  const auto expected = learn(1);
  for (const int threads : {2, 3}) CHECK(same_bits(learn(threads), expected));
}

TEST_CASE("accumulate: errors keep earlier parts; NaN makes step throw") {
  Cpu::Context ctx(1);
  const auto parts = parts_of({5, 9});
  auto expected = trainer<float>(ctx, {}, 0), run = trainer<float>(ctx, {}, 0);
  step(expected, parts);
  run.accumulate(parts[0].ids, parts[0].next);
  const Part wrong{{1, vocabulary}, {1, 2}}, unlike{{1, 2}, {1}};
  CHECK(message_of([&] { run.accumulate(wrong.ids, wrong.next); }) ==
        "Trainer.accumulate: x[1]: expected an id from 0 to 8, got 9");
  CHECK(message_of([&] { run.step(unlike.ids, unlike.next); }) ==
        "Trainer.step: x and target: expected the same number of items, got 2 and 1");
  run.step(parts[1].ids, parts[1].next);
  CHECK(same_bits(values(run.params), values(expected.params)));

  const auto before = values(run.params);
  float& weight = run.params.loss.bias(0);
  const float kept = std::exchange(weight, std::nanf(""));
  CHECK(std::isnan(run.accumulate(parts[0].ids, parts[0].next)));
  weight = kept;
  CHECK_THROWS_AS(run.step(parts[1].ids, parts[1].next), NotFiniteError);
  CHECK(same_bits(values(run.params), before));
  step(run, parts);
  step(expected, parts);
  CHECK(same_bits(values(run.params), values(expected.params)));

  run.accumulate(parts[0].ids, parts[0].next);
  run.forget();
  step(run, parts);
  step(expected, parts);
  CHECK(same_bits(values(run.params), values(expected.params)));
}

#if GATEFOLD_TEST_COUNTS
TEST_CASE("accumulate: no step after the first allocates") {
  Cpu::Context ctx(2);
  const auto parts = parts_of({5, 9, 4});
  auto run = trainer<float>(ctx, optim::Clipped{optim::AdamW{.lr = 0.01}, 0.5}, 0);
  const auto all = [&] {
    for (std::size_t i = 0; i < 2; ++i) run.accumulate(parts[i].ids, parts[i].next);
    run.step(parts[2].ids, parts[2].next);
  };
  all();
  const int before = support::allocations;
  all();
  const int after = support::allocations;
  CHECK(before > 0);
  CHECK(after == before);
}
#endif
