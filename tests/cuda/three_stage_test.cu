// The data of the theory papers and their three-stage training. The device gives the same results as the host.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "gatefold/gatefold.cuh"
#include "gatefold/papers/signal_mixture.hpp"
#include "gatefold/papers/three_stage.hpp"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index experts = 3, items = 24;
const SignalMixture data{
    .clusters = 3, .model_dim = 10, .length = 5, .feature = {0.5, 2}, .center = {1, 2}, .decay = 0.7};

/// One random sample on one backend.
template <class T, class B>
struct Drawn {
  SignalMixture::Signals<T, B> directions;
  SignalMixture::Sample<T, B> items;
};
template <class T, class B>
Drawn<T, B> drawn(typename B::Context& ctx) {
  auto directions = data.signals<T, B>(ctx, Seed{1});
  auto sample = data.draw<T, B>(ctx, directions, Seed{2}, items);
  return {std::move(directions), std::move(sample)};
}
template <class T>
void check_data() {
  Backends on;
  const auto naive = drawn<T, Naive>(on.naive);
  const auto cuda = drawn<T, Cuda>(on.cuda);
  expect_same(on, "feature", naive.directions.feature, cuda.directions.feature, {});
  expect_same(on, "center", naive.directions.center, cuda.directions.center, {});
  expect_same(on, "x", naive.items.x, cuda.items.x, {});
  expect_same(on, "target", naive.items.target, cuda.items.target, {});
  expect_same(on, "cluster", naive.items.cluster, cuda.items.cluster, {});
  expect_same(on, "distractor", naive.items.distractor, cuda.items.distractor, {});
  expect_same(on, "place", naive.items.place, cuda.items.place, {});
}

/// Trains six epochs from the same parameters on both backends.
template <class T, class M, class StagesT>
void check_stages(const M& mixture, const StagesT& stages) {
  Backends on;
  const auto naive_data = drawn<T, Naive>(on.naive);
  const auto cuda_data = drawn<T, Cuda>(on.cuda);
  ThreeStage naive{on.naive, mixture, Logistic{}, stages, Seed{3}, Element<T>{}};
  ThreeStage cuda{on.cuda, mixture, Logistic{}, stages, Seed{3}, Element<T>{}};
  transfer(on.cuda, naive.trainer.params, cuda.trainer.params);
  for (std::uint64_t t = 1; t <= 6; ++t) {
    CAPTURE(t);
    typename decltype(naive)::Extra extra;
    typename decltype(cuda)::Extra cuda_extra;
    extra.selection.random = cuda_extra.selection.random = Random{Seed{4}, t};
    naive.begin_epoch();
    cuda.begin_epoch();
    const auto expected = naive.step(naive_data.items.x, naive_data.items.target, extra);
    const auto actual = cuda.step(cuda_data.items.x, cuda_data.items.target, cuda_extra);
    CHECK(std::abs(actual.router - expected.router) <= 10 * relative_tolerance<T>);
    CHECK(std::abs(actual.experts - expected.experts) <= 10 * relative_tolerance<T>);
    expect_same(on, "plan", naive.trainer.saved.plan, cuda.trainer.saved.plan, {.scale = 100});
    expect_same(on, "grads", naive.trainer.grads, cuda.trainer.grads, {.scale = 100});
    expect_same(on, "params", naive.trainer.params, cuda.trainer.params, {.scale = 100});
  }
}
SoftmaxNoisyTop1 gate() {
  return {.scores = {.experts = experts, .length = data.length, .bias = false, .initial = Initial::normal(0.1)}};
}

template <class T>
void check_transformers() {
  check_stages<T>(Mixture{gate(), AttentionExpert{.model_dim = data.model_dim, .length = data.length}},
                  Stages<>{.first = 2, .second = 4, .attention = {.lr = 1}, .shared_attention = true});
}
template <class T>
void check_patches() {
  const PatchCnn<Cubic> patches{.model_dim = data.model_dim, .patches = data.length, .filters = 4, .bias = true};
  check_stages<T>(Mixture{gate(), patches},
                  Stages<>{.first = 6, .second = 6, .ffn = {.lr = 0.1, .sum_of_norms = true}});
}

}  // namespace

TEST_CASE("cuda: SignalMixture equals the naive backend") { check_data<double>(); }
TEST_CASE("cuda: three-stage transformers train like the naive backend") { check_transformers<double>(); }
TEST_CASE("cuda: patch experts train like the naive backend") { check_patches<double>(); }
#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda: SignalMixture equals the naive backend, float") { check_data<float>(); }
TEST_CASE("cuda: three-stage transformers train like the naive backend, float") { check_transformers<float>(); }
TEST_CASE("cuda: patch experts train like the naive backend, float") { check_patches<float>(); }
#endif
