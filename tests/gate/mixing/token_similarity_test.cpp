#include "gatefold/gate/mixing/token_similarity.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/plain.hpp"
#include "support/mixing.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Gate = ComposedGate<LinearScores, TokenSimilarity, TopK>;
constexpr Index model_dim = 4, experts = 3;

auto layer(const TokenSimilarity& mixing) {
  return Stack{
      Residual{update::Plain{}, Mixture{Gate{.scores = {.experts = experts}, .mixing = mixing, .selection = {.k = 2}},
                                        Mlp<Gelu>{.model_dim = model_dim, .hidden_dim = 3}}},
      2};
}
/// A mixing with its own items and logits.
template <class T>
struct Alone {
  Cpu::Context ctx{1};
  TokenSimilarity mixing;
  Params<TokenSimilarity, T, Cpu> params;
  Tensor<T, 2, Cpu> x, z, q;
  Saved<TokenSimilarity, T, Cpu> saved;
  Extra<TokenSimilarity, T, Cpu> extra{};

  Alone(const TokenSimilarity& m, Index items, Index length)
      : mixing(with_model_dim(m, model_dim)),
        params(init_params<T, Cpu>(mixing, ctx, Seed{1})),
        x(uniform_tensor<T>(ctx, Seed{2}, 1, items, model_dim)),
        z(uniform_tensor<T>(ctx, Seed{3}, 3, items, experts)),
        q(items, experts) {
    extra.length = length;
  }
  void forward() { mixing.forward(ctx, params, x, z, q, saved, extra); }
  std::vector<double> r(Index n) const { return naive::softmax(naive::row(z, n)); }
  /// Returns S[i,:] of equation (1) over the sequence of i in loops, with 0 for items that i does not see.
  std::vector<double> weights(Index i) const {
    const Index length = extra.length ? extra.length : x.extent(0), first = i / length * length;
    const double tau = extra.tau.value_or(mixing.tau);
    std::vector<double> s;
    double top = -infinity, total = 0;
    for (Index j = first; j < first + length; ++j) {
      double dot = 0;
      for (Index a = 0; a < model_dim; ++a)
        for (Index b = 0; b < model_dim; ++b)
          dot += x(i, a) * (mixing.learned_metric ? params.metric(a, b) : T(a == b)) * x(j, b);
      const bool sees = (!mixing.causal || j <= i) && (extra.valid.data() == nullptr || extra.valid(j) != 0) &&
                        (!mixing.only_confident || j == i || naive::entropy(r(j)) <= naive::entropy(r(i)));
      s.push_back(sees ? dot / tau : -infinity);
      top = std::max(top, s.back());
    }
    for (double& v : s) total += v = std::exp(v - top);
    for (double& v : s) v /= total;
    return s;
  }
  std::vector<std::vector<double>> rows(Index i) const {
    const Index length = extra.length ? extra.length : x.extent(0), first = i / length * length;
    std::vector<std::vector<double>> all;
    for (Index j = first; j < first + length; ++j) all.push_back(r(j));
    return all;
  }
};

}  // namespace

TEST_CASE("TokenSimilarity (1), (2): averages similar items; ranks by log q") {
  for (const bool causal : {false, true})
    for (const bool learned : {false, true})
      for (const bool confident : {false, true}) {
        CAPTURE(causal);
        CAPTURE(learned);
        CAPTURE(confident);
        Alone<double> a({.tau = 0.6, .causal = causal, .learned_metric = learned, .only_confident = confident}, 15, 5);
        if (learned) fill_uniform(a.ctx, Seed{4}, -1, 1, a.params.metric);
        a.forward();
        for (Index i = 0; i < 15; ++i) {
          const auto q = naive::mixed(a.weights(i), a.rows(i));
          CHECK(difference(naive::row(a.q, i), q) < 1e-14);
          double sum = 0;
          for (Index e = 0; e < experts; ++e) {
            sum += a.q(i, e);
            CHECK(a.mixing.rank(std::as_const(a.z).view(), a.saved)(i, e) ==
                  doctest::Approx(std::log(q[static_cast<std::size_t>(e)])).epsilon(1e-13));
          }
          CHECK(sum == doctest::Approx(1).epsilon(1e-14));
        }
      }
}

TEST_CASE("TokenSimilarity (2): rank is exact if q almost underflows") {
  Index between = 0;
  for (double level = -716; level < -664; level += 0.75) {
    Alone<double> a({.tau = 0.6, .causal = false}, 10, 5);
    for (Index n = 0; n < 10; ++n) a.z(n, 1) = level + a.z(n, 0);
    a.forward();
    for (Index i = 0; i < 10; ++i) {
      std::vector<std::vector<double>> log_r;
      for (Index j = i / 5 * 5; j < i / 5 * 5 + 5; ++j) log_r.push_back(naive::log_softmax(naive::row(a.z, j)));
      for (Index e = 0; e < experts; ++e)
        CHECK(a.mixing.rank(std::as_const(a.z).view(), a.saved)(i, e) ==
              doctest::Approx(naive::log_mixed(a.weights(i), log_r, static_cast<std::size_t>(e))).epsilon(1e-13));
      const double least = std::numeric_limits<double>::min();
      between += a.q(i, 1) >= least && a.q(i, 1) < least / std::numeric_limits<double>::epsilon();
    }
  }
  CHECK(between > 300);
}

TEST_CASE("TokenSimilarity: the learned metric starts as the identity") {
  Alone<double> plain({.tau = 0.6}, 8, 0), learned({.tau = 0.6, .learned_metric = true}, 8, 0);
  plain.forward();
  learned.forward();
  CHECK(difference(values(learned.q), values(plain.q)) < 1e-15);
}

TEST_CASE("TokenSimilarity: small tau keeps own probabilities, large tau averages") {
  Alone<double> cold({.tau = 1e-4, .causal = false}, 8, 4), hot({.tau = 1e9, .causal = false}, 8, 4);
  for (auto* a : {&cold, &hot}) {
    for (Index n = 0; n < 8; ++n) {  // makes all norms equal
      double square = 0;
      for (Index d = 0; d < model_dim; ++d) square += a->x(n, d) * a->x(n, d);
      for (Index d = 0; d < model_dim; ++d) a->x(n, d) /= std::sqrt(square);
    }
    a->forward();
  }
  for (Index i = 0; i < 8; ++i) {
    CHECK(difference(naive::row(cold.q, i), cold.r(i)) < 1e-12);
    // The error is at most about 2/τ, because inner products of items of norm 1 differ by at most 2.
    CHECK(difference(naive::row(hot.q, i), naive::mixed(std::vector<double>(4, 0.25), hot.rows(i))) < 1e-8);
  }
}

TEST_CASE("TokenSimilarity: tau in the extra inputs replaces the option") {
  Alone<double> option({.tau = 0.3}, 6, 0), call({.tau = 5}, 6, 0);
  call.extra.tau = 0.3;
  option.forward();
  call.forward();
  CHECK(same_bits(values(call.q), values(option.q)));
}

TEST_CASE("TokenSimilarity: without mask, permuted items give permuted q") {
  const Index order[] = {3, 0, 4, 1, 2};
  Alone<double> a({.tau = 0.5, .causal = false}, 5, 0), b({.tau = 0.5, .causal = false}, 5, 0);
  for (Index n = 0; n < 5; ++n) {
    for (Index d = 0; d < model_dim; ++d) b.x(n, d) = a.x(order[n], d);
    for (Index e = 0; e < experts; ++e) b.z(n, e) = a.z(order[n], e);
  }
  a.forward();
  b.forward();
  for (Index n = 0; n < 5; ++n) CHECK(difference(naive::row(b.q, n), naive::row(a.q, order[n])) < 1e-14);
}

TEST_CASE("TokenSimilarity, paper 002 (17): the entropy bounds hold") {
  for (const double tau : {1e-3, 0.1, 1.0, 10.0}) {
    CAPTURE(tau);
    Alone<double> a({.tau = tau, .causal = false, .only_confident = true}, 40, 20);
    a.forward();
    for (Index i = 0; i < 40; ++i) {
      const auto s = a.weights(i);
      const auto r = a.rows(i);
      double bound = naive::entropy(s);
      for (std::size_t j = 0; j < s.size(); ++j) bound += s[j] * naive::entropy(r[j]);
      const double h = naive::entropy(naive::row(a.q, i));
      CHECK(h <= bound + 1e-12);
      // Every r_j in the mean has at most the entropy of r_i.
      CHECK(bound - naive::entropy(s) <= naive::entropy(a.r(i)) + 1e-12);
      if (tau == 1e-3) CHECK(h <= naive::entropy(a.r(i)) + 1e-10);
    }
  }
}

TEST_CASE("TokenSimilarity: ranks by log q if q underflows in float") {
  Alone<float> a({.tau = 1, .causal = false}, 6, 0);
  for (Index n = 0; n < 6; ++n) {
    a.z(n, 0) = 1000;
    a.z(n, 1) = -1000 + static_cast<float>(n);
    a.z(n, 2) = -900 - 10 * static_cast<float>(n);
  }
  a.forward();
  for (Index i = 0; i < 6; ++i) {
    REQUIRE(a.q(i, 1) == 0);
    const auto s = a.weights(i);
    for (const Index e : {1, 2}) {
      double best = -infinity, sum = 0;
      for (Index j = 0; j < 6; ++j) best = std::max(best, double(a.z(j, e)) - 1000 + std::log(s[std::size_t(j)]));
      for (Index j = 0; j < 6; ++j) sum += std::exp(double(a.z(j, e)) - 1000 + std::log(s[std::size_t(j)]) - best);
      CHECK(a.saved.log_q(i, e) == rounded<float>(best + std::log(sum)));
    }
    CHECK(a.saved.log_q(i, 2) > a.saved.log_q(i, 1));
  }
}

TEST_CASE("TokenSimilarity: huge scores give no probability above 1") {
  Cpu::Context ctx(1);
  const TokenSimilarity mixing{.causal = false};
  const auto params = mixing.init<float, Cpu>(ctx, Seed{1});
  auto x = uniform_tensor<float>(ctx, Seed{3}, 1, 8, 64);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] += 1e4f;
  const auto z = uniform_tensor<float>(ctx, Seed{4}, 120, 8, 8);
  Tensor<float, 2, Cpu> q(8, 8);
  Saved<TokenSimilarity, float, Cpu> saved;
  mixing.forward<float, Cpu>(ctx, params, x, z, q, saved, {});
  for (const double log_q : values(saved.log_q)) CHECK(log_q <= 1e-6);
}

TEST_CASE("TokenSimilarity: a later token changes no earlier output") {
  Cpu::Context ctx(2);
  auto a = pass<float>(ctx, layer({.tau = 0.5}), 2 * 40), b = pass<float>(ctx, layer({.tau = 0.5}), 2 * 40);
  a.extra.mixing.length = b.extra.mixing.length = 40;
  for (Index n = 25; n < 40; ++n)
    for (Index d = 0; d < model_dim; ++d) b.x(n, d) = n == 30 ? std::numeric_limits<float>::quiet_NaN() : 3 - b.x(n, d);
  a.forward();
  b.forward();
  bool changed = false;
  for (Index n = 0; n < 80; ++n)
    for (Index d = 0; d < model_dim; ++d) {
      if (n < 25 || n >= 40) CHECK(b.y(n, d) == a.y(n, d));  // nor does the other sequence change
      if (n == 26) changed = changed || b.y(n, d) != a.y(n, d);
    }
  CHECK(changed);
}

TEST_CASE("TokenSimilarity: a sequence has the same bits in any batch") {
  Cpu::Context ctx(1);
  for (const bool causal : {false, true}) {
    auto batch = pass<float>(ctx, layer({.tau = 0.5, .causal = causal}), 5 * 9),
         alone = pass<float>(ctx, layer({.tau = 0.5, .causal = causal}), 9);
    batch.extra.mixing.length = 9;
    copy(ctx, View<const float, 2, Cpu>(batch.x.view()).rows(27, 9), alone.x.view());
    batch.forward();
    alone.forward();
    for (Index n = 0; n < 9; ++n)
      for (Index d = 0; d < model_dim; ++d) CHECK(alone.y(n, d) == batch.y(27 + n, d));
  }
}

TEST_CASE("TokenSimilarity: padding changes no other output and no gradient") {
  Cpu::Context ctx(1);
  const Mixture mixture{
      Gate{.scores = {.experts = experts}, .mixing = {.tau = 0.5, .causal = false}, .selection = {.k = 2}},
      Mlp<Gelu>{.model_dim = model_dim, .hidden_dim = 3}};
  const std::vector<double> mask{1, 1, 0, 1, 0, 0, 0, 0};
  auto a = pass<double>(ctx, mixture, 8), b = pass<double>(ctx, mixture, 8);
  for (auto* p : {&a, &b}) {
    p->extra.valid = mask;
    p->extra.mixing.length = 4;
  }
  for (const Index n : {2, 4, 5, 6, 7})
    for (Index d = 0; d < model_dim; ++d) b.x(n, d) = quiet_nan;
  for (auto* p : {&a, &b}) {
    p->forward();
    p->backward();
  }
  CHECK(same_bits(values(a.grads), values(b.grads)));
  CHECK(same_bits(values(a.y, a.dx), values(b.y, b.dx)));
  for (const Index n : {2, 4, 7})
    for (Index d = 0; d < model_dim; ++d) CHECK(a.y(n, d) == 0);
}

TEST_CASE("TokenSimilarity: memory grows with N, not with N^2" * doctest::skip(support::slow_build)) {
  const auto held = [](Index items) {
    Alone<float> a({.causal = true}, items, 0);
    a.forward();
    return a.ctx.capacity();
  };
  CHECK(held(8192) <= 2 * held(1024) + (std::size_t(1) << 20));
}

TEST_CASE("TokenSimilarity: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, layer({}), 6);
  p.extra.mixing.length = 4;
  CHECK(message_of([&] { p.forward(); }) ==
        "TokenSimilarity.forward: sequence.length: expected a divisor of the number of items 6, got 4");
  p.extra.mixing = {.tau = -1};
  CHECK(message_of([&] { p.forward(); }) == "TokenSimilarity: tau: expected more than 0, got -1");
  p.extra.mixing = {.tau = 0};
  CHECK(message_of([&] { p.forward(); }) == "TokenSimilarity: tau: expected more than 0, got 0");
  p.extra.mixing = {.tau = 1e-320};
  CHECK(message_of([&] { p.forward(); }) ==
        "TokenSimilarity: tau: expected a value for which 1 / tau is finite and not 0, got 9.99989e-321");
  p.extra.mixing = {.tau = std::numeric_limits<double>::infinity()};
  CHECK(message_of([&] { p.forward(); }) ==
        "TokenSimilarity: tau: expected a value for which 1 / tau is finite and not 0, got inf");
  CHECK(p.untouched());
  CHECK(message_of([&] { pass<double>(ctx, layer({.tau = 0}), 6); }) ==
        "TokenSimilarity: tau: expected more than 0, got 0");
  CHECK(message_of([&] { with_model_dim(TokenSimilarity{.model_dim = 3}, 4); }) ==
        "TokenSimilarity: model_dim: expected 4 (the width of the items), got 3");
}

TEST_CASE("TokenSimilarity: gradients and conformance") {
  for (const bool causal : {false, true})
    for (const bool learned : {false, true})
      for (const bool confident : {false, true}) {
        CAPTURE(causal);
        CAPTURE(learned);
        CAPTURE(confident);
        const auto report = check::conformance<Cpu, double>(
            layer({.tau = 1.3, .causal = causal, .learned_metric = learned, .only_confident = confident}),
            {.gradients = {.items = 8}}, []<class T>(Element<T>, Index, Index count) {
              Extra<decltype(layer({})), T, Cpu> extra;
              extra.mixing.length = count % 4 ? 0 : 4;
              return extra;
            });
        CHECK_MESSAGE(report, report.str());
      }
}
