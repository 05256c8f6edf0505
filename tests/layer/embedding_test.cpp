#include "gatefold/layer/embedding.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/counted_allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using support::message_of, support::same_bits, support::values;

namespace {

/// Returns the ids of a batch, different in every step.
std::vector<Index> ids_of(Index items, Index vocabulary, std::uint64_t step) {
  std::vector<Index> ids;
  for (Index n = 0; n < items; ++n) {
    const double u = uniform<double>(Seed{8}, step, static_cast<std::uint64_t>(n));
    ids.push_back(static_cast<Index>(u * u * static_cast<double>(vocabulary)));  // some far more often than others
  }
  return ids;
}

/// Has gradients that begin as 0. Each call runs backward, which adds to them.
template <class T>
struct Backward {
  Embedding embedding;
  Embedding::Params<T, Cpu> params, grads;
  Cpu::Context& ctx;

  Backward(Cpu::Context& of, const Embedding& e)
      : embedding(e), params(e.init<T, Cpu>(of, Seed{1})), grads(zeros_like(of, params)), ctx(of) {}
  void operator()(const std::vector<Index>& ids, const Tensor<T, 2, Cpu>& du, const Sequence<T, Cpu>& extra = {}) {
    Nothing<T, Cpu> none;
    embedding.backward(ctx, params, ids, none, du, none, grads, extra, none);
  }
};

}  // namespace

TEST_CASE_TEMPLATE("Embedding (1): returns rows by id; gradients add in order", T, float, double) {
  const Index vocabulary = 11, dim = 19;
  const Embedding embedding{.vocabulary = vocabulary, .model_dim = dim};
  for (const Index items : {1, 7, 300}) {
    CAPTURE(items);
    Cpu::Context ctx(2, true);
    Backward<T> backward(ctx, embedding);
    const auto ids = ids_of(items, vocabulary, 1);
    const auto du = uniform_tensor<T>(ctx, Seed{4}, 1, items, dim);
    Tensor<T, 2, Cpu> u(items, dim);
    Nothing<T, Cpu> none;
    embedding.forward(ctx, backward.params, ids, u, none, {});
    backward(ids, du);
    std::vector<T> sums(static_cast<std::size_t>(vocabulary * dim), T(0));
    const auto& weight = std::as_const(backward.params.weight);
    for (Index n = 0; n < items; ++n)
      for (Index d = 0; d < dim; ++d) {
        const Index v = ids[static_cast<std::size_t>(n)];
        CHECK(u(n, d) == weight(v, d));
        sums[static_cast<std::size_t>(v * dim + d)] += du(n, d);
      }
    CHECK(values(backward.grads) == std::vector<double>(sums.begin(), sums.end()));
  }
}

TEST_CASE("Embedding (2): adds position rows, one per sequence position") {
  const Index places = 3, dim = 5, items = 8;
  Cpu::Context ctx(1);
  const auto ids = ids_of(items, 4, 1);
  const auto du = uniform_tensor<double>(ctx, Seed{4}, 1, items, dim);
  for (const Index length : {1, 2, 3}) {  // with 3 the last sequence is incomplete
    CAPTURE(length);
    Backward<double> backward(ctx, {.vocabulary = 4, .model_dim = dim, .places = places});
    Tensor<double, 2, Cpu> u(items, dim);
    Nothing<double, Cpu> none;
    backward.embedding.forward(ctx, backward.params, ids, u, none, {.length = length});
    backward(ids, du, {.length = length});
    const auto& [weight, place] = std::as_const(backward.params);
    std::vector<double> sums(static_cast<std::size_t>(places * dim), 0);
    for (Index n = 0; n < items; ++n)
      for (Index d = 0; d < dim; ++d) {
        CHECK(u(n, d) == weight(ids[static_cast<std::size_t>(n)], d) + place(n % length, d));
        sums[static_cast<std::size_t>(n % length * dim + d)] += du(n, d);
      }
    CHECK(values(backward.grads.place) == sums);
  }
}

TEST_CASE("Embedding: a sequence longer than the positions throws") {
  Cpu::Context ctx(1);
  const Embedding embedding{.vocabulary = 4, .model_dim = 2, .places = 3};
  const auto params = embedding.init<double, Cpu>(ctx, Seed{1});
  Nothing<double, Cpu> none;
  const auto said = [&](Index items, Index length) {
    const std::vector<Index> ids(static_cast<std::size_t>(items), 1);
    Tensor<double, 2, Cpu> u(items, 2);
    return message_of([&] { embedding.forward(ctx, params, ids, u, none, {.length = length}); });
  };
  CHECK(said(8, 4) == "Embedding: sequence.length: expected at most places = 3, got 4");
  CHECK(said(8, -1) == "Embedding: sequence.length: expected at least 0, got -1");
  CHECK(said(4, 0) == "Embedding: sequence.length: expected at most places = 3 (0: all items are one sequence), got 4");
  CHECK(said(3, 0) == "no ArgumentError");
  CHECK(said(0, 0) == "no ArgumentError");
}

TEST_CASE("Embedding: passes conformance with sparse and dense gradients") {
  for (const bool sparse : {true, false})
    for (const Index dim : {1, 3, 16}) {
      const Embedding embedding{.vocabulary = 4, .model_dim = dim, .sparse = sparse};
      const auto report = check::conformance<Cpu, double>(
          embedding, {.items_are_independent = true,
                      .hooks = {{"", {"Params", "Extra", "Items", "validate", "Extra.with_valid"}}}});
      CHECK_MESSAGE(report, report.str());
      const auto chain = check::conformance<Cpu, double>(Chain{embedding, Linear{.model_dim = dim, .output_dim = 2}},
                                                         {.items_are_independent = true});
      CHECK_MESSAGE(chain, chain.str());
    }
}

TEST_CASE("Embedding: passes conformance with positions") {
  const Chain model{Embedding{.vocabulary = 4, .model_dim = 3, .places = 2}, Linear{.model_dim = 3, .output_dim = 2}};
  const auto report = check::conformance<Cpu, double>(model, {}, []<class T>(Element<T>, Index, Index) {
    Extra<decltype(model), T, Cpu> extra;
    std::get<0>(extra.layers).length = 2;
    return extra;
  });
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Embedding: rows of ids are touched until gradients are zeroed") {
  Cpu::Context ctx(1);
  Backward<double> backward(ctx, {.vocabulary = 6, .model_dim = 2});
  const auto touched = [&] {
    std::string rows;
    for (Index v = 0; v < 6; ++v) rows += std::as_const(backward.grads.weight).rows().touched(v) ? 'x' : '.';
    return rows;
  };
  const auto du = uniform_tensor<double>(ctx, Seed{1}, 1, 3, 2);
  CHECK(touched() == "......");
  backward({4, 1, 4}, du);
  CHECK(touched() == ".x..x.");
  const auto once = values(backward.grads);
  backward({1, 5, 1}, du);
  CHECK(touched() == ".x..xx");
  CHECK(values(backward.grads)[8] == once[8]);
  set_zero(ctx, backward.grads);
  CHECK(touched() == "......");
  CHECK(values(backward.grads) == std::vector<double>(12, 0));

  Backward<double> dense(ctx, {.vocabulary = 6, .model_dim = 2, .sparse = false});
  dense({4, 1, 4}, du);
  CHECK(dense.grads.weight.all_touched());
  CHECK(values(dense.grads) == once);
}

TEST_CASE("Embedding: a row with gradient 0 is not touched") {
  Cpu::Context ctx(1);
  for (const Index dim : {1, 2, 17, 40}) {
    Backward<float> backward(ctx, {.vocabulary = 6, .model_dim = dim});
    auto du = uniform_tensor<float>(ctx, Seed{1}, 1, 5, dim);
    for (Index d = 0; d < dim; ++d) {
      du(1, d) = du(3, d) = 0;                // id 5, twice
      du(2, d) = d + 1 == dim ? 1e-30f : 0;   // id 2: only its last value, whose square is 0
      du(4, d) = d == 0 ? std::nanf("") : 0;  // id 0
    }
    backward({3, 5, 2, 5, 0}, du);
    std::string rows;
    for (Index v = 0; v < 6; ++v) rows += std::as_const(backward.grads.weight).rows().touched(v) ? 'x' : '.';
    CHECK(rows == "x.xx..");
  }
}

TEST_CASE("Embedding: a step reads and writes only touched rows") {
  const Index vocabulary = 50, dim = 5;
  Cpu::Context ctx(2, true);
  Trainer trainer{
      ctx, Chain{Embedding{.vocabulary = vocabulary, .model_dim = dim}, Linear{.model_dim = dim, .output_dim = 3}},
      CrossEntropy{}, optim::Clipped{optim::AdamW{.lr = 0.1, .decay = 0.1}, 0.5}, Seed{1}};
  auto& g = std::get<0>(trainer.grads.layers).branch.weight;
  const std::vector<Index> ids{3, 49, 3, 20}, next{0, 1, 2, 0};
  const auto in_batch = [](Index v) { return v == 3 || v == 20 || v == 49; };
  for (Index v = 0; v < vocabulary; ++v)
    for (Index d = 0; d < dim; ++d)
      if (!in_batch(v)) g.rows().data[v * dim + d] = std::numeric_limits<float>::quiet_NaN();
  const auto weights = [&] { return values(std::get<0>(trainer.params.layers).branch.weight); };
  const auto before = weights();
  const double first = trainer.step(ids, next), second = trainer.step(ids, next);
  CHECK(second < first);
  const auto after = weights(), m = values(std::get<0>(trainer.state.m.layers)),
             v = values(std::get<0>(trainer.state.v.layers));
  for (std::size_t i = 0; i < after.size(); ++i) {
    const Index row = static_cast<Index>(i) / dim;
    CAPTURE(row);
    CHECK((after[i] != before[i]) == in_batch(row));
    CHECK((m[i] != 0) == in_batch(row));
    CHECK((v[i] != 0) == in_batch(row));
    CHECK(std::isnan(std::as_const(g).data()[i]) == !in_batch(row));
  }
}

TEST_CASE("Embedding: sparse steps equal a loop over the used rows") {
  const Index vocabulary = 9, dim = 4, items = 6;
  const double lr = 0.05, decay = 0.1, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, norm = 0.8;
  Cpu::Context ctx(1);
  Backward<double> backward(ctx, {.vocabulary = vocabulary, .model_dim = dim});
  const optim::Clipped optimizer{optim::AdamW{.lr = lr, .decay = decay}, norm};
  auto state = optimizer.begin(ctx, backward.params);
  auto p = values(backward.params);
  std::vector<double> m(p.size(), 0), v(p.size(), 0);
  for (int t = 1; t <= 5; ++t) {
    const auto ids = ids_of(items, vocabulary, static_cast<std::uint64_t>(t));
    const auto du = uniform_tensor<double>(ctx, Seed{5}.fork(static_cast<std::uint64_t>(t)), 1, items, dim);
    set_zero(ctx, backward.grads);
    backward(ids, du);
    optimizer.step(ctx, backward.params, backward.grads, state);

    std::vector<double> g(p.size(), 0);
    std::vector<bool> occurs(static_cast<std::size_t>(vocabulary), false);
    for (Index n = 0; n < items; ++n) {
      const Index id = ids[static_cast<std::size_t>(n)];
      occurs[static_cast<std::size_t>(id)] = true;
      for (Index d = 0; d < dim; ++d) g[static_cast<std::size_t>(id * dim + d)] += du(n, d);
    }
    double squares = 0;
    for (const double x : g) squares += x * x;
    const double factor = std::min(1.0, norm / std::sqrt(squares));
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (!occurs[i / static_cast<std::size_t>(dim)]) continue;
      const double gi = g[i] * factor;
      m[i] = beta1 * m[i] + (1 - beta1) * gi;
      v[i] = beta2 * v[i] + (1 - beta2) * gi * gi;
      const double direction = m[i] / (1 - std::pow(beta1, t)) / (std::sqrt(v[i] / (1 - std::pow(beta2, t))) + epsilon);
      p[i] -= lr * (direction + decay * p[i]);
    }
    CHECK(support::difference(values(backward.params), p) < 1e-12);
    CHECK(support::difference(values(state.m), m, 1e-3) < 1e-11);
    CHECK(support::difference(values(state.v), v, 1e-3) < 1e-11);
  }
}

TEST_CASE("Embedding: the number of threads changes no bit") {
  const auto run = [](int threads) {
    Cpu::Context ctx(threads, threads > 1);
    Trainer trainer{ctx, Chain{Embedding{.vocabulary = 37, .model_dim = 21}, Linear{.model_dim = 21, .output_dim = 3}},
                    CrossEntropy{}, optim::Clipped{optim::AdamW{.lr = 0.1}, 0.5}, Seed{1}};
    std::vector<Index> next;
    for (Index n = 0; n < 500; ++n) next.push_back(n * n % 3);
    for (std::uint64_t t = 0; t < 3; ++t) {
      const auto ids = ids_of(500, 37, t);
      trainer.step(ids, next);
    }
    return values(trainer.params, trainer.state);
  };
  const auto one = run(1);
  for (const int threads : {2, 3, 8}) CHECK(same_bits(run(threads), one));
}

TEST_CASE("Embedding: no step after the first allocates") {
  Cpu::Context ctx(2, true);
  Trainer trainer{ctx, Chain{Embedding{.vocabulary = 1000, .model_dim = 8}, Linear{.model_dim = 8, .output_dim = 3}},
                  CrossEntropy{}, optim::Clipped{optim::AdamW{}, 0.5}, Seed{1}};
  const std::vector<Index> next(64, 1);
  std::vector<std::vector<Index>> batches;
  for (std::uint64_t t = 0; t < 5; ++t) batches.push_back(ids_of(64, 1000, t));
  trainer.step(batches[0], next);
  const int before = support::allocations;
  for (const auto& ids : batches) trainer.step(ids, next);
  CHECK(support::allocations - before == 0);
}

TEST_CASE("Embedding: initial values; wrong options and ids throw") {
  Cpu::Context ctx(1);
  const auto p =
      Embedding{.vocabulary = 200, .model_dim = 50, .initial = Initial::normal(0.1)}.init<double, Cpu>(ctx, Seed{1});
  double squares = 0;
  for (const double w : values(p)) squares += w * w;
  CHECK(std::sqrt(squares / 10000) == doctest::Approx(0.1).epsilon(0.05));

  CHECK(message_of([&] { Embedding{.model_dim = 3}.init<float, Cpu>(ctx, Seed{1}); }) ==
        "Embedding.init: vocabulary: expected at least 1, got 0");
  CHECK(message_of([&] { Embedding{.vocabulary = 3, .model_dim = 2, .places = -1}.init<float, Cpu>(ctx, Seed{1}); }) ==
        "Embedding.init: places: expected at least 0, got -1");
  CHECK(message_of([&] { Embedding{.vocabulary = 3}.init<float, Cpu>(ctx, Seed{1}); }) ==
        "Embedding.init: model_dim: expected at least 1, got 0");
  const Embedding embedding{.vocabulary = 3, .model_dim = 2};
  const auto params = embedding.init<float, Cpu>(ctx, Seed{1});
  Tensor<float, 2, Cpu> u(2, 2);
  Nothing<float, Cpu> none;
  const std::vector<Index> ids{0, 3}, three{0, 1, 2};
  CHECK(message_of([&] { embedding.forward(ctx, params, ids, u, none, {}); }) ==
        "Embedding.forward: x[1]: expected an id from 0 to 2, got 3");
  CHECK(message_of([&] { embedding.forward(ctx, params, three, u, none, {}); }) ==
        "Embedding.forward: u: expected [3, 2], got [2, 2]");
  CHECK(message_of([&] { Embedding{.vocabulary = 4, .model_dim = 2}.forward(ctx, params, three, u, none, {}); }) ==
        "Embedding.forward: u: expected [3, 2], got [2, 2]");
  const std::vector<Index> two{0, 3};
  CHECK(message_of([&] { Embedding{.vocabulary = 4, .model_dim = 2}.forward(ctx, params, two, u, none, {}); }) ==
        "Embedding: params.weight: expected [4, 2], got [3, 2]");
}
