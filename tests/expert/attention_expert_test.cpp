#include "gatefold/expert/attention_expert.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>

#include "gatefold/check/conformance.hpp"
#include "support/attention.hpp"
#include "support/experts.hpp"
#include "support/nan_position.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Row = std::vector<double>;

constexpr Index dim = 3, length = 4;

AttentionExpert expert(Index outputs, Index key_dim = 0) {
  return {.model_dim = dim,
          .length = length,
          .outputs = outputs,
          .key_dim = key_dim,
          .initial = {Initial::Law::normal_fan_in, 2, false}};
}

using Params = gatefold::Params<AttentionExpert, double, Cpu>;

/// Returns K_e(a, c) of (1), or of (3) if key_dim > 0.
double key_query(const Params& p, Index e, Index a, Index c) {
  if (p.attention_key.extent(2) == 0) return p.key_query(e, a, c);
  double k = 0;
  for (Index j = 0; j < p.attention_key.extent(2); ++j) k += p.attention_key(e, a, j) * p.attention_query(e, c, j);
  return k;
}
/// Returns W_e(a, o) of (1), or of (3) if key_dim > 0.
double value(const Params& p, Index e, Index a, Index o) {
  if (p.attention_key.extent(2) == 0) return p.value(e, a, o);
  double w = 0;
  for (Index b = 0; b < dim; ++b) w += p.value(e, a, b) * p.output(e, b, o);
  return w;
}

/// Returns p_l = softmax(Xᵀ K X_l) of one item; x(l, a) is component a of X_l.
template <class X, class K>
Row softmax_of_query(const X& x, const K& k, Index l) {
  Row score(length, 0.0);
  for (Index h = 0; h < length; ++h)
    for (Index a = 0; a < dim; ++a)
      for (Index b = 0; b < dim; ++b) score[std::size_t(h)] += x(h, a) * k(a, b) * x(l, b);
  return naive::attention_row(score, length);
}

/// Returns the gradients (2) of W [E, d] and of K [E, d, d] for 3 experts with one output, times dz and summed over the
/// slots.
std::pair<Row, Row> product_gradients(const Bank<double, AttentionExpert>& b) {
  Row dw(3 * dim, 0.0), dk(3 * dim * dim, 0.0);
  for (Index e = 0; e < 3; ++e)
    for (Index s = b.offsets[std::size_t(e)]; s < b.offsets[std::size_t(e) + 1]; ++s) {
      const auto x = [&](Index l, Index a) { return b.x(b.rows[std::size_t(s)], l * dim + a); };
      for (Index l = 0; l < length; ++l) {
        const Row p = softmax_of_query(
            x, [&](Index a, Index c) { return key_query(b.params, e, a, c); }, l);
        Row xw(length, 0.0);  // Xᵀ W
        double mean = 0;
        for (Index h = 0; h < length; ++h) {
          for (Index a = 0; a < dim; ++a) {
            dw[std::size_t(e * dim + a)] += b.dz(s, 0) * x(h, a) * p[std::size_t(h)];
            xw[std::size_t(h)] += x(h, a) * value(b.params, e, a, 0);
          }
          mean += p[std::size_t(h)] * xw[std::size_t(h)];
        }
        for (Index h = 0; h < length; ++h)  // X (diag p − p pᵀ) Xᵀ W X_lᵀ
          for (Index a = 0; a < dim; ++a)
            for (Index c = 0; c < dim; ++c)
              dk[std::size_t((e * dim + a) * dim + c)] +=
                  b.dz(s, 0) * x(h, a) * p[std::size_t(h)] * (xw[std::size_t(h)] - mean) * x(l, c);
      }
    }
  return {dw, dk};
}

}  // namespace

TEST_CASE("AttentionExpert (1), (3): equals loops for empty, full, many experts") {
  Cpu::Context ctx(2);
  for (const auto& of : {expert(1), expert(2), expert(1, 1), expert(2, 2), expert(1, 5)})
    for (const auto& counts : uneven_counts()) {
      const Index outputs = of.outputs;
      Bank<double, AttentionExpert> b(ctx, of, counts, 6);
      b.forward();
      CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const Row& item) {
              const auto x = [&](Index l, Index a) { return item[std::size_t(l * dim + a)]; };
              Row z(std::size_t(outputs), 0.0);
              for (Index l = 0; l < length; ++l) {
                const Row p = softmax_of_query(
                    x, [&](Index a, Index c) { return key_query(b.params, e, a, c); }, l);
                for (Index h = 0; h < length; ++h)
                  for (Index a = 0; a < dim; ++a)
                    for (Index o = 0; o < outputs; ++o)
                      z[std::size_t(o)] += value(b.params, e, a, o) * x(h, a) * p[std::size_t(h)];
              }
              return z;
            })) <= 1e-13);
    }
}

TEST_CASE("AttentionExpert (2): gradients of W and K equal eqs. (13)-(14)") {
  Cpu::Context ctx(1);
  Bank<double, AttentionExpert> b(ctx, expert(1), {2, 0, 3}, 6);
  b.forward();
  b.backward();  // dz stands for l'·y/K in these equations of paper 000
  const auto [dw, dk] = product_gradients(b);
  CHECK(difference(values(b.grads.value), dw) <= 1e-13);
  CHECK(difference(values(b.grads.key_query), dk) <= 1e-13);
}

TEST_CASE("AttentionExpert (3): gradients of the factors follow from (2)") {
  Cpu::Context ctx(1);
  for (const Index key_dim : {1, 2, 5}) {
    Bank<double, AttentionExpert> b(ctx, expert(1, key_dim), {2, 0, 3}, 6);
    b.forward();
    b.backward();
    const auto products = product_gradients(b);
    const Row &dw = products.first, &dk = products.second;
    Row key, query, of_value, output;
    for (Index e = 0; e < 3; ++e)
      for (Index a = 0; a < dim; ++a) {
        const auto k = [&](Index i, Index j) { return dk[std::size_t((e * dim + i) * dim + j)]; };
        for (Index j = 0; j < key_dim; ++j) {
          key.push_back(0), query.push_back(0);
          for (Index c = 0; c < dim; ++c) {
            key.back() += k(a, c) * b.params.attention_query(e, c, j);
            query.back() += k(c, a) * b.params.attention_key(e, c, j);
          }
        }
        output.push_back(0);
        for (Index c = 0; c < dim; ++c) {
          of_value.push_back(dw[std::size_t(e * dim + a)] * b.params.output(e, c, 0));
          output.back() += dw[std::size_t(e * dim + c)] * b.params.value(e, c, a);
        }
      }
    CHECK(difference(values(b.grads.attention_key), key) <= 1e-12);
    CHECK(difference(values(b.grads.attention_query), query) <= 1e-12);
    CHECK(difference(values(b.grads.value), of_value) <= 1e-12);
    CHECK(difference(values(b.grads.output), output) <= 1e-12);
  }
}

TEST_CASE("AttentionExpert: with K = 0 it equals Wᵀ Σ_l X_l") {
  Cpu::Context ctx(1);
  Bank<double, AttentionExpert> b(ctx, expert(1), {3}, 4);
  set_zero(ctx, b.params.key_query);
  b.forward();
  CHECK(difference(b.of_slots(b.z), b.expected([&](Index, const Row& item) {
          double sum = 0;
          for (Index i = 0; i < dim * length; ++i) sum += item[std::size_t(i)] * b.params.value(0, i % dim, 0);
          return Row{sum};
        })) <= 1e-14);
}

TEST_CASE("AttentionExpert: unused slots stay untouched; gradients are added") {
  for (const Index key_dim : {0, 2}) {
    const auto broken = broken_promises<double>(expert(2, key_dim), [](auto& bank) {
      for (auto* t : {&bank.saved.received, &bank.saved.pooled}) bank.poison(*t);
      if (bank.saved.projected.size() > 0) bank.poison(bank.saved.projected);
      for (auto* t : {&bank.saved.key, &bank.saved.query})
        for (Index i = bank.used() * length * t->extent(1); i < t->size(); ++i) t->data()[i] = quiet_nan;
    });
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  }
}

TEST_CASE("AttentionExpert: NaN stays in its item") {
  for (const Index key_dim : {0, 2}) {
    const auto broken = leaks_of_nan<float>(expert(2, key_dim), false);
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  }
}

TEST_CASE("AttentionExpert: slots may start anywhere") {
  for (const Index key_dim : {0, 2}) {
    const auto broken = broken_for_later_slots<double>(expert(2, key_dim));
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  }
}

TEST_CASE("AttentionExpert: gradients and conformance of a layer") {
  for (const Index key_dim : {0, 1, 4}) {
    const auto report = check::conformance<Cpu, double>(expert(2, key_dim), {.items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("AttentionExpert: starts as N(0, σ²/d)") {
  Cpu::Context ctx(1);
  AttentionExpert wide{.model_dim = 100, .initial = {Initial::Law::normal_fan_in, 0.5, false}};
  const auto p = wide.init<double, Cpu>(ctx, 40, Seed{1});
  wide.key_dim = 20;
  const auto factors = wide.init<double, Cpu>(ctx, 40, Seed{1});
  for (const auto* t :
       {&p.key_query, &p.value, &factors.attention_key, &factors.attention_query, &factors.value, &factors.output}) {
    double square = 0;
    for (const double v : values(*t)) square += v * v / double(t->size());
    const double deviation = std::sqrt(2 / double(t->size()));
    CHECK(square == doctest::Approx(0.25 / 100).epsilon(5 * deviation).scale(0));  // five standard deviations
  }
}

TEST_CASE("AttentionExpert: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  const auto message = [&](const AttentionExpert& e) {
    return message_of([&] { (void)e.init<double, Cpu>(ctx, 1, {}); });
  };
  CHECK(message({}) == "AttentionExpert.init: model_dim: expected at least 1, got 0");
  CHECK(message({.model_dim = 2, .length = 0}) == "AttentionExpert.init: length: expected at least 1, got 0");
  CHECK(message({.model_dim = 2, .outputs = 0}) == "AttentionExpert.init: outputs: expected at least 1, got 0");
  CHECK(message({.model_dim = 2, .key_dim = -1}) == "AttentionExpert.init: key_dim: expected at least 0, got -1");
  auto p = expert(2).init<double, Cpu>(ctx, 3, {});
  CHECK(message_of([&] { expert(1).validate(p, 3); }) ==
        "AttentionExpert: params.value: expected [3, 3, 1], got [3, 3, 2]");
  AttentionExpert nowhere = expert(2);
  nowhere.length = 0;
  CHECK(message_of([&] { nowhere.validate(p, 3); }) == "AttentionExpert: length: expected at least 1, got 0");
  CHECK(message_of([&] { expert(2).validate(p, 4); }) ==
        "AttentionExpert: params.key_query: expected [4, 3, 3], got [3, 3, 3]");
  CHECK(message_of([&] { expert(2, 2).validate(p, 3); }) ==
        "AttentionExpert: params.key_query: expected [3, 3, 0], got [3, 3, 3]");
  p = expert(2, 2).init<double, Cpu>(ctx, 3, {});
  CHECK(message_of([&] { expert(2, 1).validate(p, 3); }) ==
        "AttentionExpert: params.attention_key: expected [3, 3, 1], got [3, 3, 2]");
  CHECK(message_of([&] { expert(1, 2).validate(p, 3); }) ==
        "AttentionExpert: params.output: expected [3, 3, 1], got [3, 3, 2]");
}
