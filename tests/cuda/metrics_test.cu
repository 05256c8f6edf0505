// Losses and metrics of a batch on the device.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "gatefold/papers/expert_outputs.hpp"
#include "gatefold/papers/norm_rank.hpp"
#include "gatefold/papers/pareto_gap.hpp"
#include "gatefold/papers/specialisation.hpp"
#include "support/larger.hpp"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Compares the value of a loss and its gradient on both backends.
template <class T, class LossT, class V, int R>
void check_loss(const LossT& loss, Index items, Index width, const Tensor<V, R, Naive>& target,
                const Expected& expected = {}) {
  Backends on;
  const auto y = random_tensor<T>(on, Seed{1}, 3, items, width);
  const auto cuda_y = on_cuda<Tensor<T, 2, Cuda>>(on, y);
  const auto cuda_target = on_cuda<Tensor<V, R, Cuda>>(on, target);
  Tensor<T, 1, Naive> value(1);
  Tensor<T, 1, Cuda> cuda_value(1);
  Tensor<T, 2, Naive> dy(items, width);
  Tensor<T, 2, Cuda> cuda_dy(items, width);
  loss.template forward<T, Naive>(on.naive, y, target, value);
  loss.template forward<T, Cuda>(on.cuda, cuda_y, cuda_target, cuda_value);
  loss.template backward<T, Naive>(on.naive, y, target, dy);
  loss.template backward<T, Cuda>(on.cuda, cuda_y, cuda_target, cuda_dy);
  expect_same(on, "value", value, cuda_value, expected);
  expect_same(on, "dy", dy, cuda_dy, expected);
}

Tensor<Index, 1, Naive> labels_of(Index items, Index classes) {
  Tensor<Index, 1, Naive> labels(items);
  for (Index n = 0; n < items; ++n) labels(n) = 7 * n % classes;
  return labels;
}
template <class T>
Tensor<T, 2, Naive> signs_of(Index items) {
  Tensor<T, 2, Naive> signs(items, 1);
  for (Index n = 0; n < items; ++n) signs(n, 0) = n % 3 == 0 ? -1 : 1;
  return signs;
}
template <class T>
Tensor<T, 2, Naive> numbers_of(Index items, Index width) {
  Naive::Context ctx;
  return uniform_tensor<T>(ctx, Seed{2}, 1, items, width);
}

template <class T>
void check_losses() {
  const Expected no_items{.zeros = {"value"}};
  SUBCASE("MeanSquaredError") { check_loss<T>(MeanSquaredError{}, 21, 37, numbers_of<T>(21, 37)); }
  SUBCASE("Logistic, more items than one block") { check_loss<T>(Logistic{}, 5000, 1, signs_of<T>(5000)); }
  SUBCASE("CrossEntropy") { check_loss<T>(CrossEntropy{}, 21, 37, labels_of(21, 37)); }
  SUBCASE("MultiTask") {
    Backends on;
    const MultiTask losses{TaskLoss{37, MeanSquaredError{}, 0.5}, TaskLoss{4, CrossEntropy{.ignore = -1}, 3.0},
                           TaskLoss{5, CrossEntropy{.ignore = -1}, 2.0, MeanOver::items}};
    const auto numbers = numbers_of<T>(21, 37);
    auto labels = labels_of(21, 4);
    labels(3) = labels(4) = -1;
    const auto run = [&]<class B>(B, auto& ctx, const auto& of_first, const auto& of_others) {
      const auto y = uniform_tensor<T>(ctx, Seed{2}, 1, 21, 46);
      Tensor<T, 2, B> dy(21, 46);
      Tensor<T, 1, B> value(1);
      forward(losses, ctx, y, {of_first, of_others, of_others}, value);
      backward(losses, ctx, y, {of_first, of_others, of_others}, dy);
      return std::pair{std::move(value), std::move(dy)};
    };
    const auto [value, dy] = run(Naive{}, on.naive, numbers, labels);
    const auto [cuda_value, cuda_dy] =
        run(Cuda{}, on.cuda, on_cuda<Tensor<T, 2, Cuda>>(on, numbers), on_cuda<Tensor<Index, 1, Cuda>>(on, labels));
    expect_same(on, "value", value, cuda_value, {});
    expect_same(on, "dy", dy, cuda_dy, {});
  }
  SUBCASE("no items") {
    check_loss<T>(MeanSquaredError{}, 0, 3, numbers_of<T>(0, 3), no_items);
    check_loss<T>(Logistic{}, 0, 1, signs_of<T>(0), no_items);
    check_loss<T>(CrossEntropy{}, 0, 3, labels_of(0, 3), no_items);
  }
}

}  // namespace

TEST_CASE("cuda: losses match the naive backend, double") { check_losses<double>(); }
#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda: losses match the naive backend, float") { check_losses<float>(); }
#endif

namespace {

constexpr Index items = 40, experts = 5, dim = 6, classes = 7;

/// A mixture whose experts have too little capacity, so that picks are dropped.
const Mixture mixture{ComposedGate<LinearScores, Independent, Capacity<TopK>>{.scores = {.experts = experts},
                                                                              .selection = {.factor = 0.8}},
                      Linear{.model_dim = dim}};

/// The input of metrics on one backend: a mixture with the results of a forward pass, logits, signals and labels.
template <class T, class B>
struct Batch {
  typename B::Context& ctx;
  Params<decltype(mixture), T, B> params;
  Tensor<T, 2, B> x, logits;
  Tensor<T, 2, B> signals;
  Tensor<Index, 1, B> labels, clusters;
  Tensor<T, 1, B> valid;
  Saved<decltype(mixture), T, B> saved{};
  Tensor<T, 2, B> u{items, dim};

  auto& forward() {
    const Extra<decltype(mixture), T, B> extra{.valid = valid};
    mixture.forward(ctx, params, x, u, saved, extra);
    return *this;
  }
  auto outputs() const { return expert_outputs(ctx, mixture, params, x.view()); }
  auto picked() const { return slot_outputs(ctx, mixture, params, saved.plan, x.view()); }
  View<const T, 1, B> mask() const { return valid; }
};

template <class T>
struct Batches {
  Backends on;
  std::pair<Params<decltype(mixture), T, Naive>, Params<decltype(mixture), T, Cuda>> params =
      params_of<T>(on, mixture, {});
  Batch<T, Naive> naive{on.naive,
                        std::move(params.first),
                        random_tensor<T>(on, Seed{1}, 1, items, dim),
                        random_tensor<T>(on, Seed{2}, 3, items, classes),
                        random_tensor<T>(on, Seed{3}, 1, classes, dim),
                        labels_of(items, classes),
                        labels_of(items, 3),
                        valid_of()};
  Batch<T, Cuda> cuda{on.cuda,
                      std::move(params.second),
                      on_cuda<Tensor<T, 2, Cuda>>(on, naive.x),
                      on_cuda<Tensor<T, 2, Cuda>>(on, naive.logits),
                      on_cuda<Tensor<T, 2, Cuda>>(on, naive.signals),
                      on_cuda<Tensor<Index, 1, Cuda>>(on, naive.labels),
                      on_cuda<Tensor<Index, 1, Cuda>>(on, naive.clusters),
                      on_cuda<Tensor<T, 1, Cuda>>(on, naive.valid)};

  /// Checks that a metric gives the same numbers on both backends, and that not all of them are 0.
  /// @param metric  returns a vector of numbers for a batch
  template <class F>
  void same(const F& metric, double tolerance = relative_tolerance<T>) {
    const auto expected = metric(naive.forward()), actual = metric(cuda.forward());
    REQUIRE(actual.size() == expected.size());
    double largest = 0;
    for (const auto v : expected) largest = support::larger(largest, std::abs(static_cast<double>(v)));
    CHECK(largest > 0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(static_cast<double>(actual[i] - expected[i])) <= tolerance * largest);
    }
  }

 private:
  static Tensor<T, 1, Naive> valid_of() {
    Tensor<T, 1, Naive> valid(items);
    for (Index n = 0; n < items; ++n) valid(n) = n % 5 == 3 ? 0 : 1;
    return valid;
  }
};

using Numbers = std::vector<double>;

template <class T>
void check_metrics_of_outputs() {
  Batches<T> batches;
  batches.same([](auto& b) { return Numbers{metric::accuracy(b.ctx, b.logits.view(), b.labels.view(), 2, b.mask())}; });
  batches.same([](auto& b) {
    return Numbers{metric::negative_log_likelihood(b.ctx, b.logits.view(), b.labels.view(), b.mask()),
                   metric::perplexity(b.ctx, b.logits.view(), b.labels.view()),
                   metric::bits(b.ctx, b.logits.view(), b.labels.view())};
  });
  batches.same([](auto& b) { return Numbers{metric::mean_norm(b.ctx, b.u.view(), b.mask())}; });
}

template <class T>
void check_metrics_of_routing() {
  Batches<T> batches;
  batches.same([](auto& b) { return metric::entropies(b.ctx, b.saved.gate.probabilities.view()); });
  batches.same([](auto& b) { return Numbers{metric::entropy(b.ctx, b.saved.gate.probabilities.view(), b.mask())}; });
  batches.same([](auto& b) {
    auto load = metric::load(b.ctx, b.saved.plan, b.mask());
    CHECK(load.dropped > 0);
    load.counts.push_back(load.dropped);
    return load.counts;
  });
  batches.same(
      [](auto& b) { return metric::routing_table(b.ctx, b.saved.plan, b.labels.view(), classes, b.mask()).counts; });
  batches.same(
      [](auto& b) { return Numbers{metric::dispatch_entropy(b.ctx, b.saved.plan, b.clusters.view(), 3, b.mask())}; });
  batches.same([](auto& b) {
    const auto two = metric::picks(b.ctx, b.saved.plan, 2), one = metric::picks(b.ctx, b.saved.plan, 1);
    const auto f = metric::fluctuation(b.ctx, two.view(), one.view(), b.mask());
    Numbers all{f.set, f.ordered, f.first};
    for (const Index e : metric::to_vector(b.ctx, two.view())) all.push_back(static_cast<double>(e));
    return all;
  });
}

template <class T>
void check_metrics_of_experts() {
  Batches<T> batches;
  batches.same([](auto& b) { return metric::norm_rank(b.ctx, b.saved.plan, b.outputs().view(), b.mask()); });
  batches.same([](auto& b) {
    Numbers all;
    for (const auto& e : metric::experts_by_norm(b.ctx, b.saved.plan, b.picked().view(), b.mask()))
      all.insert(all.end(), {static_cast<double>(e.expert), e.norm, e.share});
    return all;
  });
  const double of_search = 1e-5;  // pareto_gap ends at a duality gap of 1e-12; its point has an error of up to 1e-6
  batches.same(
      [](auto& b) {
        const auto weights = metric::gate_weights(b.ctx, b.saved.plan);
        const auto gap = metric::pareto_gap(b.ctx, b.outputs().view(), weights.view(), {}, b.mask()).mean;
        CHECK(gap.gap <= metric::ParetoOptions{}.tolerance);
        return Numbers{gap.least, gap.normalised, gap.mixture, gap.cosine};
      },
      of_search);
  batches.same([](auto& b) {
    return metric::specialisation(b.ctx, b.params.expert.weight.view(), b.signals.view(), true).products;
  });
}

}  // namespace

TEST_CASE("cuda: metrics of outputs match the naive backend") { check_metrics_of_outputs<double>(); }
TEST_CASE("cuda: metrics of routing match the naive backend") { check_metrics_of_routing<double>(); }
TEST_CASE("cuda: metrics of experts match the naive backend") { check_metrics_of_experts<double>(); }
#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda: metrics of outputs match the naive backend, float") { check_metrics_of_outputs<float>(); }
TEST_CASE("cuda: metrics of routing match the naive backend, float") { check_metrics_of_routing<float>(); }
TEST_CASE("cuda: metrics of experts match the naive backend, float") { check_metrics_of_experts<float>(); }
#endif
