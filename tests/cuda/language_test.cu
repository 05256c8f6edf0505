// Embeddings and losses of language models learn on the device as on the host.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/larger.hpp"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Returns every number of a pack, on host or device.
template <class C, class P>
std::vector<double> numbers(C& ctx, const P& pack) {
  std::vector<double> all;
  for_each_tensor(
      [&](const Name&, const auto& t) {
        using T = std::remove_cvref_t<decltype(*t.data())>;
        std::vector<T> values(static_cast<std::size_t>(t.size()));
        C::Backend::to_host(ctx, t.size(), t.data(), values.data());
        all.insert(all.end(), values.begin(), values.end());
      },
      pack);
  return all;
}
void expect_close(const std::vector<double>& expected, const std::vector<double>& actual, double tolerance) {
  REQUIRE(actual.size() == expected.size());
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = support::larger(largest, std::abs(expected[i]));
    worst = support::larger(worst, std::abs(expected[i] - actual[i]));
  }
  CHECK(largest > 0);
  CHECK(worst <= tolerance * largest);
}
/// Returns 'x' for each touched row of a table and '.' for each other row, or "all".
template <class C, class TableT>
std::string touched(C& ctx, const TableT& table) {
  if (table.all_touched()) return "all";
  std::vector<unsigned char> marks(static_cast<std::size_t>(table.extent(0)));
  C::Backend::to_host(ctx, table.extent(0), table.rows().marks, marks.data());
  std::string rows;
  for (const unsigned char mark : marks) rows += mark ? 'x' : '.';
  return rows;
}

constexpr Index vocabulary = 13, dim = 5, items = 9;

/// Ids and labels of a step. Some labels are -1, which losses with .ignore = -1 do not count.
struct Batch {
  Tensor<Index, 1, Naive> id, label;
  explicit Batch(Index step) : id(items), label(items) {
    for (Index n = 0; n < items; ++n) {
      id(n) = n * (n + step) % vocabulary;
      label(n) = n % 4 == step ? -1 : (id(n) * 3 + 1) % vocabulary;
    }
  }
};

template <class T, class LossT>
void check_training(const LossT& loss, bool sparse) {
  Backends on;
  const Chain model{Embedding{.vocabulary = vocabulary, .model_dim = dim, .places = 4, .sparse = sparse},
                    Linear{.model_dim = dim}};
  const optim::Clipped optimizer{optim::AdamW{.lr = 0.05, .decay = 0.1}, 0.7};
  Trainer naive{on.naive, model, loss, optimizer, Seed{1}, Element<T>{}};
  Trainer cuda{on.cuda, model, loss, optimizer, Seed{1}, Element<T>{}};
  transfer(on.cuda, naive.params, cuda.params);
  const double tolerance = 10 * relative_tolerance<T>;
  for (Index step = 0; step < 3; ++step) {
    CAPTURE(step);
    const Batch batch(step);
    const auto id = on_cuda<Tensor<Index, 1, Cuda>>(on, batch.id);
    const auto label = on_cuda<Tensor<Index, 1, Cuda>>(on, batch.label);
    typename decltype(naive)::Extra of_naive;
    typename decltype(cuda)::Extra of_cuda;
    std::get<0>(of_naive.layers).length = std::get<0>(of_cuda.layers).length = 4 - step;
    const double expected = naive.step(batch.id, batch.label, of_naive), actual = cuda.step(id, label, of_cuda);
    CHECK(std::abs(actual - expected) <= tolerance * expected);
    expect_close(numbers(on.naive, naive.grads), numbers(on.cuda, cuda.grads), tolerance);
    expect_close(numbers(on.naive, naive.params), numbers(on.cuda, cuda.params), tolerance);
    const std::string rows = touched(on.cuda, *first_table<T, Cuda>(std::as_const(cuda.grads)));
    CHECK(rows == touched(on.naive, *first_table<T, Naive>(std::as_const(naive.grads))));
    CHECK((rows == "all") == (loss.tied || !sparse));
  }
}

}  // namespace

TEST_CASE("cuda: language models train like the naive backend") {
  const StreamedCrossEntropy loss{.vocabulary = vocabulary, .model_dim = dim, .ignore = -1};
  SUBCASE("sparse gradient") { check_training<double>(loss, true); }
  SUBCASE("dense gradient") { check_training<double>(loss, false); }
  SUBCASE("tied weights") {
    check_training<double>(
        StreamedCrossEntropy{.vocabulary = vocabulary, .model_dim = dim, .bias = false, .tied = true, .ignore = -1},
        true);
  }
}

TEST_CASE("cuda: StreamedCrossEntropy: two vocabulary blocks match naive backend") {
  using T = float;
  const Index many = StreamedCrossEntropy::Blocks::columns + 6, count = 4;
  Backends on;
  const auto run = [&]<class B>(B, auto& ctx, double smoothing) {
    const StreamedCrossEntropy loss{.vocabulary = many, .model_dim = 3, .ignore = 7, .label_smoothing = smoothing};
    auto params = loss.init<T, B>(ctx, Seed{1});
    auto grads = zeros_like(ctx, params);
    const auto y = uniform_tensor<T>(ctx, Seed{2}, 1, count, Index(3));
    Tensor<Index, 1, Naive> labels(count);
    for (Index n = 0; n < count; ++n) labels(n) = n == 1 ? 7 : many - 1 - n * 5;
    Tensor<Index, 1, B> label;
    if constexpr (std::is_same_v<B, Naive>) {
      label = std::move(labels);
    } else {
      label = on_cuda<Tensor<Index, 1, B>>(on, labels);
    }
    Tensor<T, 2, B> dy(count, Index(3)), log_p(count, many);
    Tensor<T, 1, B> value(1), each(count);
    StreamedCrossEntropy::Saved<T, B> saved;
    Nothing<T, B> none;
    loss.forward(ctx, params, none, y, label, value, saved);
    loss.backward(ctx, params, none, y, label, saved, dy, grads, none);
    loss.each(ctx, params, none, y, label, each);
    loss.log_probabilities(ctx, params, none, y, log_p);
    std::vector<std::vector<double>> all;
    all.push_back(numbers(ctx, value)), all.push_back(numbers(ctx, dy)), all.push_back(numbers(ctx, grads.weight));
    all.push_back(numbers(ctx, grads.bias)), all.push_back(numbers(ctx, each)), all.push_back(numbers(ctx, log_p));
    return all;
  };
  for (const double smoothing : {0.0, 0.2}) {
    CAPTURE(smoothing);
    const auto expected = run(Naive{}, on.naive, smoothing), actual = run(Cuda{}, on.cuda, smoothing);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      expect_close(expected[i], actual[i], relative_tolerance<float>);
    }
  }
}

TEST_CASE("cuda: CrossEntropy: ignores labels like the naive backend") {
  Backends on;
  const CrossEntropy loss{.ignore = -1};
  const Batch batch(1);
  const auto run = [&]<class B>(B, auto& ctx, const Tensor<Index, 1, B>& label) {
    const auto y = uniform_tensor<double>(ctx, Seed{2}, 1, items, vocabulary);
    Tensor<double, 2, B> dy(items, vocabulary);
    Tensor<double, 1, B> value(1);
    loss.forward<double, B>(ctx, y, label, value);
    loss.backward<double, B>(ctx, y, label, dy);
    auto all = numbers(ctx, dy);
    all.push_back(numbers(ctx, value)[0]);
    return all;
  };
  expect_close(run(Naive{}, on.naive, batch.label),
               run(Cuda{}, on.cuda, on_cuda<Tensor<Index, 1, Cuda>>(on, batch.label)), relative_tolerance<double>);
}
