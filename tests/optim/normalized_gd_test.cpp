#include "gatefold/optim/normalized_gd.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/larger.hpp"
#include "support/naive.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using naive::random_vector;

namespace {

template <class T>
struct Bank {
  Tensor<T, 3, Cpu> weight;  // [E, D, O]
  Tensor<T, 2, Cpu> bias;    // [E, O] or [E, 0]
  GATEFOLD_PACK(weight, bias)
};
template <class T>
Bank<T> bank(Index experts, unsigned seed, Index bias_columns = 3) {
  Bank<T> b{Tensor<T, 3, Cpu>(experts, 4, 3), Tensor<T, 2, Cpu>(experts, bias_columns)};
  for_each_tensor(
      [&](const Name&, auto& t) {
        const auto values = random_vector<T>(t.size(), seed++);
        std::copy(values.begin(), values.end(), t.data());
      },
      b);
  return b;
}
/// Returns the values of expert e in every tensor.
template <class T>
std::vector<double> slice(const Bank<T>& b, Index e) {
  std::vector<double> all;
  for_each_tensor(
      [&](const Name&, const auto& t) {
        const Index size = t.size() / t.extent(0);
        all.insert(all.end(), t.data() + e * size, t.data() + (e + 1) * size);
      },
      b);
  return all;
}
double norm_of(const std::vector<double>& g) {
  double squares = 0;
  for (const double v : g) squares += v * v;
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE_TEMPLATE("NormalizedGd (1): each expert takes a step of length lr", T, float, double) {
  const double epsilon = sizeof(T) == 4 ? 1e-6 : 1e-14;
  for (const Index experts : {1, 4, 257})
    for (const Index bias_columns : {3, 0}) {
      Cpu::Context ctx(2);
      Bank<T> params = bank<T>(experts, 1, bias_columns);
      const optim::NormalizedGd gd{.lr = 0.125};
      auto state = gd.begin(ctx, params);
      for (unsigned t = 1; t <= 3; ++t) {
        Bank<T> grads = bank<T>(experts, 10 * t, bias_columns), before = bank<T>(experts, 1, bias_columns);
        copy_pack(ctx, params, before);
        gd.step(ctx, params, grads, state);
        double worst = 0, length = 0;
        for (Index e = 0; e < experts; ++e) {
          const auto p = slice(before, e), g = slice(grads, e), now = slice(params, e);
          std::vector<double> moved;
          for (std::size_t i = 0; i < p.size(); ++i) {
            worst = support::larger(worst, std::abs(now[i] - (p[i] - 0.125 * g[i] / norm_of(g))));
            moved.push_back(now[i] - p[i]);
          }
          length = support::larger(length, std::abs(norm_of(moved) - 0.125));
        }
        CHECK(worst <= epsilon);
        CHECK(length <= 3 * epsilon);
      }
      CHECK(state.step == 3);
    }
}

TEST_CASE_TEMPLATE("NormalizedGd (1): every block of 4,096 elements counts and moves", T, float, double) {
  for (const bool per_expert : {true, false})
    for (const Index size : {1, 4095, 4096, 4097, 10000}) {
      CAPTURE(size);
      Cpu::Context ctx(2);
      const Index experts = 2, others = 4100;
      Bank<T> params = bank<T>(experts, 1), grads = bank<T>(experts, 5);
      for (auto* b : {&params, &grads}) {
        b->weight.resize(experts, size, 1), b->bias.resize(experts, others);
        unsigned seed = b == &params ? 1 : 5;
        for_each_tensor(
            [&](const Name&, auto& t) {
              const auto values = random_vector<T>(t.size(), seed++);
              std::copy(values.begin(), values.end(), t.data());
            },
            *b);
      }
      std::vector<std::vector<double>> before, g;
      for (Index e = 0; e < experts; ++e) before.push_back(slice(params, e)), g.push_back(slice(grads, e));
      const optim::NormalizedGd gd{.lr = 0.125, .per_expert = per_expert};
      auto state = gd.begin(ctx, params);
      gd.step(ctx, params, grads, state);
      const double all = std::hypot(norm_of(g[0]), norm_of(g[1]));
      // Each element is rounded four times in float (2^-24 each); in double the error is that of the norm, n · 2^-53.
      const double u = sizeof(T) == 4 ? 2.5e-7 : 1e-11;
      Index wrong = 0;
      for (Index e = 0; e < experts; ++e) {
        const auto at = static_cast<std::size_t>(e);
        const auto now = slice(params, e);
        const double norm = per_expert ? norm_of(g[at]) : all;
        for (std::size_t i = 0; i < now.size(); ++i) {
          const double by = 0.125 * g[at][i] / norm;
          wrong += !(std::abs(now[i] - (before[at][i] - by)) <= u * (std::abs(before[at][i]) * 0.5 + std::abs(by)));
          wrong += by != 0 && std::abs(by) > 1e-6 && now[i] == before[at][i];
        }
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE_TEMPLATE("NormalizedGd: an expert without gradient does not move", T, float, double) {
  Cpu::Context ctx(1);
  Bank<T> params = bank<T>(3, 1), grads = bank<T>(3, 2);
  for (Index i = 0; i < 12; ++i) grads.weight.data()[12 + i] = 0;
  for (Index i = 0; i < 3; ++i) grads.bias(1, i) = 0;
  const auto before = slice(params, 1), other = slice(params, 2);
  const optim::NormalizedGd gd{.lr = 1};
  auto state = gd.begin(ctx, params);
  gd.step(ctx, params, grads, state);
  CHECK(slice(params, 1) == before);
  CHECK(slice(params, 2) != other);
  set_zero(ctx, grads);
  const auto all = slice(params, 0);
  gd.step(ctx, params, grads, state);
  CHECK(slice(params, 0) == all);
}

TEST_CASE("NormalizedGd: the step length does not depend on gradient size") {
  for (const double scale : {1e-30, 1.0, 1e30}) {
    Cpu::Context ctx(1);
    Tensor<float, 2, Cpu> p(1, 2), g(1, 2);
    p(0, 0) = p(0, 1) = 0;
    g(0, 0) = static_cast<float>(3 * scale), g(0, 1) = static_cast<float>(-4 * scale);
    const optim::NormalizedGd gd{.lr = 5};
    auto state = gd.begin(ctx, p);
    gd.step(ctx, p, g, state);
    CHECK(p(0, 0) == support::rounded<float>(-3));
    CHECK(p(0, 1) == support::rounded<float>(4));
  }
}

TEST_CASE("NormalizedGd: a NaN gradient reaches the parameters") {
  Cpu::Context ctx(1);
  Tensor<double, 2, Cpu> p(2, 1), g(2, 1);
  p(0, 0) = p(1, 0) = 1, g(0, 0) = std::numeric_limits<double>::quiet_NaN(), g(1, 0) = 2;
  const optim::NormalizedGd gd{.lr = 1};
  auto state = gd.begin(ctx, p);
  gd.step(ctx, p, g, state);
  CHECK(std::isnan(p(0, 0)));
  CHECK(p(1, 0) == 0);
}

TEST_CASE("NormalizedGd: without per_expert the norm covers all tensors") {
  Cpu::Context ctx(1);
  Bank<double> params = bank<double>(3, 1), grads = bank<double>(3, 2);
  params.bias.resize(1, 2), grads.bias.resize(1, 2);
  for (Index i = 0; i < 2; ++i) params.bias(0, i) = 1, grads.bias(0, i) = -3;
  std::vector<double> g(grads.weight.data(), grads.weight.data() + 36),
      p(params.weight.data(), params.weight.data() + 36);
  g.insert(g.end(), {-3, -3}), p.insert(p.end(), {1, 1});
  const optim::NormalizedGd gd{.lr = 0.5, .per_expert = false};
  auto state = gd.begin(ctx, params);
  gd.step(ctx, params, grads, state);
  for (std::size_t i = 0; i < 38; ++i) {
    const double now = i < 36 ? params.weight.data()[i] : params.bias.data()[i - 36];
    CHECK(now == doctest::Approx(p[i] - 0.5 * g[i] / norm_of(g)).epsilon(1e-13));
  }
}

TEST_CASE("NormalizedGd: sum_of_norms adds the norms of an expert's tensors") {
  Cpu::Context ctx(1);
  Bank<double> params = bank<double>(3, 1);
  for (const bool empty : {false, true}) {
    Bank<double> grads = bank<double>(3, 2), p = bank<double>(3, 1);
    if (empty)
      std::fill(grads.weight.data() + 12, grads.weight.data() + 24, 0),
          std::fill(&grads.bias(1, 0), &grads.bias(1, 0) + 3, 0);
    const optim::NormalizedGd gd{.lr = 0.5, .sum_of_norms = true};
    auto state = gd.begin(ctx, p);
    gd.step(ctx, p, grads, state);
    for (Index e = 0; e < 3; ++e) {
      const std::vector<double> before = slice(params, e), after = slice(p, e), g = slice(grads, e);
      const double norms = norm_of({g.begin(), g.begin() + 12}) + norm_of({g.begin() + 12, g.end()});
      for (std::size_t i = 0; i < g.size(); ++i)
        CHECK(after[i] == doctest::Approx(norms == 0 ? before[i] : before[i] - 0.5 * g[i] / norms).epsilon(1e-13));
    }
  }
  CHECK(optim::NormalizedGd::reference().sum_of_norms);
}

TEST_CASE("NormalizedGd: different first extents throw before any write") {
  Cpu::Context ctx(1);
  Bank<double> params = bank<double>(3, 1), grads = bank<double>(3, 2);
  params.bias.resize(2, 3), grads.bias.resize(2, 3);
  set_zero(ctx, params.bias), set_zero(ctx, grads.bias);
  const std::vector<double> before(params.weight.data(), params.weight.data() + 36);
  const optim::NormalizedGd gd{};
  auto state = gd.begin(ctx, params);
  CHECK_THROWS_WITH_AS(gd.step(ctx, params, grads, state),
                       "NormalizedGd.step: bias: expected a first extent (experts) of 3, as weight has, got 2",
                       ArgumentError);
  CHECK(std::equal(before.begin(), before.end(), params.weight.data()));
  CHECK(state.step == 0);
}

TEST_CASE("NormalizedGd: works without parameters") {
  Cpu::Context ctx(1);
  Nothing<float, Cpu> params, grads;
  const optim::NormalizedGd gd{};
  auto state = gd.begin(ctx, params);
  gd.step(ctx, params, grads, state);
  CHECK(state.step == 1);
}
