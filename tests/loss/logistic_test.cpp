#include "gatefold/loss/logistic.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using naive::random_vector;

namespace {

template <class T>
using Column = Tensor<T, 2, Cpu>;

template <class T>
Column<T> column(const std::vector<double>& values) {
  Column<T> t(static_cast<Index>(values.size()), 1);
  for (std::size_t i = 0; i < values.size(); ++i) t.data()[i] = static_cast<T>(values[i]);
  return t;
}
/// Returns scores in [-4, 4), with labels of both signs.
template <class T>
Column<T> scores(Index items) {
  auto values = random_vector<double>(items, 1);
  for (double& v : values) v *= 4;
  return column<T>(values);
}
template <class T>
Column<T> labels(Index items) {
  auto values = random_vector<double>(items, 2);
  for (double& v : values) v = v < 0 ? -1 : 1;
  return column<T>(values);
}

template <class T>
T value_of(const Column<T>& y, const Column<T>& target) {
  Cpu::Context ctx(1);
  Tensor<T, 1, Cpu> value(1);
  Logistic{}.forward<T, Cpu>(ctx, y, target, value);
  return value(0);
}
template <class T>
Column<T> gradient_of(const Column<T>& y, const Column<T>& target) {
  Cpu::Context ctx(1);
  Column<T> dy(y.extent(0), 1);
  Logistic{}.backward<T, Cpu>(ctx, y, target, dy);
  return dy;
}

}  // namespace

TEST_CASE_TEMPLATE("Logistic (1): value and gradient equal the formula", T, float, double) {
  const double epsilon = sizeof(T) == 4 ? 1e-6 : 1e-13;
  for (const Index items : {1, 9, 500}) {
    const auto y = scores<T>(items), t = labels<T>(items), dy = gradient_of(y, t);
    double expected = 0;
    for (Index n = 0; n < items; ++n) {
      const double margin = static_cast<double>(t(n, 0)) * static_cast<double>(y(n, 0));
      expected += std::log(1 + std::exp(-margin)) / static_cast<double>(items);
      const double slope = -static_cast<double>(t(n, 0)) / (1 + std::exp(margin)) / static_cast<double>(items);
      if (!(std::abs(static_cast<double>(dy(n, 0)) - slope) <= epsilon * std::abs(slope))) FAIL_CHECK("item " << n);
    }
    CHECK(static_cast<double>(value_of(y, t)) == doctest::Approx(expected).epsilon(epsilon));
  }
}

TEST_CASE("Logistic: the gradient equals central differences") {
  auto y = scores<double>(11);
  const auto t = labels<double>(11), dy = gradient_of(y, t);
  for (Index n = 0; n < 11; ++n) {
    const double at = y(n, 0), h = 1e-4;
    double f[4];
    const double step[4] = {h, -h, 2 * h, -2 * h};
    for (int k = 0; k < 4; ++k) y(n, 0) = at + step[k], f[k] = value_of(y, t);
    y(n, 0) = at;
    const double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
    CHECK(std::abs(numeric - dy(n, 0)) <= 1e-10 * std::abs(numeric) + 1e-11);
  }
}

TEST_CASE_TEMPLATE("Logistic: scores of any size neither overflow nor vanish", T, float, double) {
  CHECK(value_of(column<T>({1000}), column<T>({-1})) == 1000);
  CHECK(value_of(column<T>({1000}), column<T>({1})) == 0);
  CHECK(value_of(column<T>({0}), column<T>({1})) == support::rounded<T>(std::log(2.0)));
  CHECK(gradient_of(column<T>({1000}), column<T>({-1}))(0, 0) == 1);
  CHECK(gradient_of(column<T>({-1000}), column<T>({1}))(0, 0) == -1);
  CHECK(gradient_of(column<T>({1000}), column<T>({1}))(0, 0) == 0);
}

TEST_CASE("Logistic: an empty batch has loss 0") {
  CHECK(value_of(Column<float>(0, 1), Column<float>(0, 1)) == 0);
  CHECK(gradient_of(Column<float>(0, 1), Column<float>(0, 1)).size() == 0);
}

TEST_CASE("Logistic: labels other than -1 and +1 throw") {
  CHECK_THROWS_WITH_AS(value_of(column<float>({1, 2}), column<float>({1, 0})),
                       "Logistic: target: expected labels -1 or +1, got 0", ArgumentError);
  CHECK_THROWS_AS(gradient_of(column<double>({1, 2}), column<double>({-1, 2})), ArgumentError);
}

TEST_CASE("Logistic: wrong shapes throw") {
  Cpu::Context ctx(1);
  const Column<float> wide(4, 2), y(4, 1), t(3, 1);
  Column<float> dy(3, 1);
  Tensor<float, 1, Cpu> value(1);
  CHECK_THROWS_WITH_AS((Logistic{}.forward<float, Cpu>(ctx, wide, wide, value)),
                       "Logistic: y: expected [?, 1], got [4, 2]", ArgumentError);
  CHECK_THROWS_WITH_AS((Logistic{}.forward<float, Cpu>(ctx, y, t, value)),
                       "Logistic: target: expected [4, 1], got [3, 1]", ArgumentError);
  CHECK_THROWS_WITH_AS((Logistic{}.backward<float, Cpu>(ctx, y, labels<float>(4), dy)),
                       "Logistic.backward: dy: expected [4, 1], got [3, 1]", ArgumentError);
}
