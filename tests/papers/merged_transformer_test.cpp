#include "gatefold/papers/merged_transformer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/attention_expert.hpp"
#include "support/attention.hpp"
#include "support/experts.hpp"
#include "support/nan_position.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Row = std::vector<double>;

constexpr Index dim = 3;

template <class Act = Relu>
MergedTransformer<Act> expert(Index heads, Index filters, Index length) {
  return {.model_dim = dim,
          .length = length,
          .heads = heads,
          .filters = filters,
          .initial = {Initial::Law::normal_fan_in, 2, false}};
}

/// C_l of (1): Σ_h X softmax(Xᵀ K_{e,h} X_l).
template <class P>
Row context(const P& p, Index e, const Row& item, Index length, Index l) {
  const auto x = [&](Index at, Index a) { return item[std::size_t(at * dim + a)]; };
  Row c(dim, 0.0);
  for (Index h = 0; h < p.key_query.extent(2) / dim; ++h) {
    Row score(std::size_t(length), 0.0);
    for (Index m = 0; m < length; ++m)
      for (Index a = 0; a < dim; ++a)
        for (Index b = 0; b < dim; ++b) score[std::size_t(m)] += x(m, a) * p.key_query(e, a, h * dim + b) * x(l, b);
    score = naive::attention_row(score, length);
    for (Index m = 0; m < length; ++m)
      for (Index a = 0; a < dim; ++a) c[std::size_t(a)] += score[std::size_t(m)] * x(m, a);
  }
  return c;
}

/// Equations (1) and (2) of one item.
template <class Act, class P>
double output(const P& p, Index e, const Row& item, Index length) {
  const Index filters = p.weight.extent(2);
  double z = 0;
  for (Index l = 0; l < length; ++l) {
    const Row c = context(p, e, item, length, l);
    for (Index j = 0; j < filters; ++j) {
      double pre = 0;
      for (Index a = 0; a < dim; ++a) pre += p.weight(e, a, j) * c[std::size_t(a)];
      z += (j < filters / 2 ? 1 : -1) * Act::value(pre);
    }
  }
  return z;
}

template <class Act>
void equals_loops(Index heads, Index filters, Index length) {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts()) {
    Bank<double, MergedTransformer<Act>> b(ctx, expert<Act>(heads, filters, length), counts, 6);
    b.forward();
    CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const Row& item) {
            return Row{output<Act>(b.params, e, item, length)};
          })) <= 1e-13);
  }
}

}  // namespace

TEST_CASE("MergedTransformer (1), (2): merges experts for any number of slots") {
  equals_loops<Relu>(1, 2, 4);
  equals_loops<Relu>(3, 4, 4);
  equals_loops<Gelu>(2, 6, 1);  // one position: softmax is 1, C = heads · X_1
}

TEST_CASE("MergedTransformer (1): K = 0 gives every head the mean") {
  Cpu::Context ctx(1);
  Bank<double, MergedTransformer<>> b(ctx, expert(3, 2, 4), {3}, 4);
  set_zero(ctx, b.params.key_query);
  b.forward();
  CHECK(difference(b.of_slots(b.z), b.expected([&](Index, const Row& item) {
          double plus = 0, minus = 0;
          for (Index i = 0; i < dim * 4; ++i) {
            plus += 3 * item[std::size_t(i)] / 4 * b.params.weight(0, i % dim, 0);
            minus += 3 * item[std::size_t(i)] / 4 * b.params.weight(0, i % dim, 1);
          }
          return Row{4 * (std::max(plus, 0.0) - std::max(minus, 0.0))};
        })) <= 1e-14);
}

TEST_CASE("MergedTransformer: scores of ±2000 give probabilities") {
  Cpu::Context ctx(1);
  Tensor<double, 2, Cpu> p(1, 6), all(1, 3);
  const double scores[]{-2000, 2000, 2000, 1999, 1000, -2000};  // two heads alternate
  std::copy(scores, scores + 6, p.data());
  Cpu::for_rows(ctx, 1, functor::HeadProbabilities<double, Cpu>{p, all});
  const double most = 1 / (1 + std::exp(-1)), expected[]{0, most, 1, 1 - most, 0, 0};
  for (Index i = 0; i < 6; ++i) CHECK(p(0, i) == doctest::Approx(expected[i]).epsilon(1e-14));
  for (Index m = 0; m < 3; ++m)
    CHECK(all(0, m) == doctest::Approx(expected[2 * m] + expected[2 * m + 1]).epsilon(1e-14));
}

TEST_CASE("MergedTransformer: neurons w and −w equal an AttentionExpert") {
  Cpu::Context ctx(1);
  Bank<double, MergedTransformer<Identity>> b(ctx, expert<Identity>(1, 2, 4), {2, 3}, 6);
  Bank<double, AttentionExpert> one(ctx, {.model_dim = dim, .length = 4}, {2, 3}, 6);
  copy_pack(ctx, b.params.key_query, one.params.key_query);
  for (Index e = 0; e < 2; ++e)
    for (Index a = 0; a < dim; ++a) {
      b.params.weight(e, a, 1) = -b.params.weight(e, a, 0);
      one.params.value(e, a, 0) = 2 * b.params.weight(e, a, 0);
    }
  b.forward();
  one.forward();
  CHECK(difference(values(b.z), values(one.z)) <= 1e-13);
  b.backward();
  one.backward();
  CHECK(difference(values(b.grads.key_query), values(one.grads.key_query)) <= 1e-13);
  CHECK(difference(values(b.dslots), values(one.dslots)) <= 1e-13);
}

TEST_CASE("MergedTransformer: parameter count equals experts plus router") {
  Cpu::Context ctx(1);
  const Index d = 5, m = 4;
  const MergedTransformer<> dense{.model_dim = d, .length = 2, .heads = m, .filters = 2 * m};
  CHECK(count_values(dense.init<double, Cpu>(ctx, 1, {})) ==
        count_values(AttentionExpert{.model_dim = d}.init<double, Cpu>(ctx, m, {})) + m * d);
}

TEST_CASE("MergedTransformer: unused slots stay untouched; gradients are added") {
  const auto broken = broken_promises<double>(expert(2, 4, 4), [](auto& bank) {
    for (auto* t : {&bank.saved.key, &bank.saved.context, &bank.saved.pre})
      for (Index i = bank.used() * 4 * t->extent(1); i < t->size(); ++i) t->data()[i] = quiet_nan;
  });
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("MergedTransformer: NaN stays in its item") {
  const auto broken = leaks_of_nan<float>(expert<Gelu>(2, 4, 4), false);
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("MergedTransformer: slots may start after those of other kinds") {
  const auto broken = broken_for_later_slots<double>(expert(2, 4, 4));
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("MergedTransformer: gradients and conformance of a layer") {
  const auto report = check::conformance<Cpu, double>(expert<Gelu>(2, 4, 4), {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
  Cpu::Context ctx(1);
  for (const auto& [heads, length] : {std::pair{1, 4}, {3, 3}}) {
    const auto relu = check::gradients(ctx, expert(heads, 6, length));
    CHECK_MESSAGE(relu, relu.str());
  }
}

TEST_CASE("MergedTransformer: starts as N(0, σ²/d)") {
  Cpu::Context ctx(1);
  const MergedTransformer<> wide{
      .model_dim = 100, .heads = 2, .filters = 40, .initial = {Initial::Law::normal_fan_in, 0.5, false}};
  const auto p = wide.init<double, Cpu>(ctx, 4, Seed{1});
  for (const auto* t : {&p.key_query, &p.weight}) {
    double square = 0;
    for (const double v : values(*t)) square += v * v / double(t->size());
    const double deviation = std::sqrt(2 / double(t->size()));
    CHECK(square == doctest::Approx(0.25 / 100).epsilon(5 * deviation).scale(0));  // five standard deviations
  }
}

TEST_CASE("MergedTransformer: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  const auto message = [&](const MergedTransformer<>& e) {
    return message_of([&] { (void)e.init<double, Cpu>(ctx, 1, {}); });
  };
  CHECK(message({}) == "MergedTransformer.init: model_dim: expected at least 1, got 0");
  CHECK(message({.model_dim = 2, .length = 0}) == "MergedTransformer.init: length: expected at least 1, got 0");
  CHECK(message({.model_dim = 2, .heads = 0}) == "MergedTransformer.init: heads: expected at least 1, got 0");
  for (const Index filters : {0, -2, 3})
    CHECK(message({.model_dim = 2, .filters = filters}) ==
          "MergedTransformer.init: filters: expected an even number, at least 2, got " + std::to_string(filters));
  auto p = expert(2, 4, 4).init<double, Cpu>(ctx, 3, {});
  CHECK(message_of([&] { expert(1, 4, 4).validate(p, 3); }) ==
        "MergedTransformer: params.key_query: expected [3, 3, 3], got [3, 3, 6]");
  CHECK(message_of([&] { expert(2, 6, 4).validate(p, 3); }) ==
        "MergedTransformer: params.weight: expected [3, 3, 6], got [3, 3, 4]");
  CHECK(message_of([&] { expert(2, 3, 4).validate(p, 3); }) ==
        "MergedTransformer: filters: expected an even number, at least 2, got 3");
}
