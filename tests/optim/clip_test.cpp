#include "gatefold/optim/clip.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/sgd.hpp"
#include "support/optimized.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace optimized;

namespace {

/// Two tensors, the second of any size.
template <class T>
struct Pair {
  Tensor<T, 1, Cpu> a, b;
  GATEFOLD_PACK(a, b)
};
template <class T>
Pair<T> pair(Index a, Index b, unsigned seed) {
  Pair<T> both{Tensor<T, 1, Cpu>(a), Tensor<T, 1, Cpu>(b)};
  for (auto* t : {&both.a, &both.b}) {
    const auto values = random_vector<T>(t->size(), seed++);
    std::copy(values.begin(), values.end(), t->data());
  }
  return both;
}

double norm_of(const std::vector<double>& g) {
  double squares = 0;
  for (const double v : g) squares += v * v;
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE_TEMPLATE("sum_of_squares: adds all tensors in double", T, float, double) {
  Cpu::Context ctx(2);
  const Pack<T> grads = random_pack<T>(4);
  double squares = 99;  // overwritten
  optim::sum_of_squares(ctx, grads, &squares);
  const double norm = norm_of(flat(grads));
  CHECK(squares == doctest::Approx(norm * norm).epsilon(1e-14));
}

TEST_CASE_TEMPLATE("Clipped (1): gradients above the norm are scaled down", T, float, double) {
  for (const double most : {0.01, 1.0}) {
    Cpu::Context ctx(2);
    Pack<T> params = random_pack<T>(1), grads = random_pack<T>(5);
    const auto p = flat(params), g = flat(grads);
    const double norm = norm_of(g);
    REQUIRE(norm > most);
    const optim::Clipped<optim::Sgd> clipped{{.lr = 0.5}, most};
    auto state = clipped.begin(ctx, params);
    clipped.step(ctx, params, grads, state);
    const double epsilon = sizeof(T) == 4 ? 1e-6 : 1e-14;
    CHECK(norm_of(flat(grads)) == doctest::Approx(most).epsilon(epsilon));
    std::vector<double> expected = p;
    for (std::size_t i = 0; i < p.size(); ++i) expected[i] -= 0.5 * g[i] * (most / norm);
    CHECK(worst(flat(params), expected) <= epsilon);
    CHECK(state.step == 1);
  }
}

TEST_CASE_TEMPLATE("Clipped (1): every block of 4,096 elements counts", T, float, double) {
  for (const Index second : {0, 9000})
    for (const Index size : {1, 4095, 4096, 4097, 10000}) {
      CAPTURE(size);
      Cpu::Context ctx(2);
      Pair<T> params = pair<T>(size, second, 1), grads = pair<T>(size, second, 3);
      const auto p = support::values(params), g = support::values(grads);
      const double most = 0.125;
      double squares = 0;
      optim::sum_of_squares(ctx, grads, &squares);
      // The relative error of a sum of n = 19,000 positive terms in double is at most n · 2^-53 = 2.1e-12. Its root has
      // half of this error.
      CHECK(std::sqrt(squares) == doctest::Approx(norm_of(g)).epsilon(1e-12));
      const optim::Clipped<optim::Sgd> clipped{{.lr = 0.5}, most};
      auto state = clipped.begin(ctx, params);
      clipped.step(ctx, params, grads, state);
      const double factor = norm_of(g) > most ? most / norm_of(g) : 1;
      const auto scaled = support::values(grads), now = support::values(params);
      // Each element is rounded three times in float (2^-24 each); the norm is a double.
      const double u = sizeof(T) == 4 ? 2e-7 : 1e-12;
      Index wrong = 0;
      for (std::size_t i = 0; i < g.size(); ++i) {
        wrong += !(std::abs(scaled[i] - g[i] * factor) <= u * std::abs(g[i] * factor));
        wrong += !(std::abs(now[i] - (p[i] - 0.5 * g[i] * factor)) <= u * (std::abs(p[i]) + std::abs(g[i] * factor)));
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE_TEMPLATE("Clipped: at or below the norm gradients keep their bits", T, float, double) {
  Cpu::Context ctx(1);
  Pack<T> params = random_pack<T>(1), same = random_pack<T>(1), grads = random_pack<T>(5);
  const auto g = flat(grads);
  const optim::Clipped<optim::AdamW> clipped{{.lr = 0.5}, norm_of(g) * (1 + 1e-12)};
  auto state = clipped.begin(ctx, params), plain_state = optim::AdamW{.lr = 0.5}.begin(ctx, same);
  clipped.step(ctx, params, grads, state);
  CHECK(flat(grads) == g);
  optim::AdamW{.lr = 0.5}.step(ctx, same, grads, plain_state);
  CHECK(flat(params) == flat(same));

  Tensor<T, 1, Cpu> p(2), exact(2);
  p(0) = p(1) = 0, exact(0) = 3, exact(1) = 4;
  const optim::Clipped<optim::Sgd> five{{.lr = 1}, 5};
  auto five_state = five.begin(ctx, p);
  five.step(ctx, p, exact, five_state);
  CHECK(exact(0) == 3);
  CHECK(p(1) == -4);
}

TEST_CASE("Clipped: zero gradients stay zero; huge gradients do not overflow") {
  Cpu::Context ctx(1);
  Tensor<float, 1, Cpu> p(2), g(2);
  p(0) = p(1) = 0, g(0) = g(1) = 0;
  const optim::Clipped<optim::Sgd> clipped{{.lr = 1}, 1};
  auto state = clipped.begin(ctx, p);
  clipped.step(ctx, p, g, state);
  CHECK(p(0) == 0);
  g(0) = 3e30f, g(1) = -4e30f;
  clipped.step(ctx, p, g, state);
  CHECK(p(0) == support::rounded<float>(-0.6));
  CHECK(p(1) == support::rounded<float>(0.8));
}

TEST_CASE("Clipped: the norm must be positive") {
  Cpu::Context ctx(1);
  Tensor<float, 1, Cpu> p(1), g(1);
  p(0) = 1, g(0) = 1;
  optim::Clipped<optim::Sgd> clipped{{}, 1};
  auto state = clipped.begin(ctx, p);
  for (const double norm : {0.0, -1.0, std::nan("")}) {
    clipped.norm = norm;
    CHECK_THROWS_AS(clipped.begin(ctx, p), ArgumentError);
    CHECK_THROWS_AS(clipped.step(ctx, p, g, state), ArgumentError);
    CHECK(p(0) == 1);
    CHECK(state.step == 0);
  }
  clipped.norm = -1;
  CHECK_THROWS_WITH_AS(clipped.step(ctx, p, g, state), "Clipped: norm: expected more than 0, got -1", ArgumentError);
}

TEST_CASE("Clipped: the rate of the inner optimizer takes effect") {
  Cpu::Context ctx(1);
  Tensor<double, 1, Cpu> p(1), g(1);
  p(0) = 0, g(0) = 0.5;
  optim::Clipped clipped{optim::Sgd{.lr = 0.5}, 1.0};
  CHECK(optim::rate_of(clipped) == 0.5);
  auto state = clipped.begin(ctx, p);
  clipped.step(ctx, p, g, state);
  CHECK(p(0) == -0.25);
  clipped.optimizer.lr = 2;
  clipped.step(ctx, p, g, state);
  CHECK(p(0) == -1.25);
  clipped.optimizer.lr = 0;
  clipped.step(ctx, p, g, state);
  CHECK(p(0) == -1.25);
  clipped.optimizer.lr = -1;
  CHECK_THROWS_WITH_AS(clipped.step(ctx, p, g, state), "Sgd: lr: expected a finite number, at least 0, got -1",
                       ArgumentError);
  CHECK(optim::Clipped{optim::Sgd{}}.norm == 1);
}
