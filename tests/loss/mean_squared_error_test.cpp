#include "gatefold/loss/mean_squared_error.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using naive::random_vector;

namespace {

template <class T>
Tensor<T, 2, Cpu> matrix(Index rows, Index columns, unsigned seed) {
  Tensor<T, 2, Cpu> t(rows, columns);
  const auto values = random_vector<T>(rows * columns, seed);
  std::copy(values.begin(), values.end(), t.data());
  return t;
}

template <class T>
T value_of(const Tensor<T, 2, Cpu>& y, const Tensor<T, 2, Cpu>& target) {
  Cpu::Context ctx(1);
  Tensor<T, 1, Cpu> value(1);
  MeanSquaredError{}.forward<T, Cpu>(ctx, y, target, value);
  return value(0);
}

}  // namespace

TEST_CASE_TEMPLATE("MeanSquaredError (1): equals the mean of all N·D squares", T, float, double) {
  for (const Index items : {1, 7, 300})
    for (const Index dim : {1, 5}) {
      const auto y = matrix<T>(items, dim, 1), target = matrix<T>(items, dim, 2);
      double expected = 0;
      for (Index n = 0; n < items; ++n)
        for (Index d = 0; d < dim; ++d) {
          const double v = static_cast<double>(y(n, d)) - static_cast<double>(target(n, d));
          expected += v * v / static_cast<double>(items * dim);
        }
      CHECK(static_cast<double>(value_of(y, target)) ==
            doctest::Approx(expected).epsilon(sizeof(T) == 4 ? 1e-6 : 1e-13));
    }
}

TEST_CASE("MeanSquaredError: the gradient equals central differences") {
  Cpu::Context ctx(1);
  auto y = matrix<double>(4, 3, 1);
  const auto target = matrix<double>(4, 3, 2);
  auto dy = matrix<double>(4, 3, 3);  // overwritten
  MeanSquaredError{}.backward<double, Cpu>(ctx, y, target, dy);
  for (Index i = 0; i < y.size(); ++i) {
    const double at = y.data()[i], h = 1e-3;  // exact up to rounding: the loss is quadratic
    y.data()[i] = at + h;
    const double up = value_of(y, target);
    y.data()[i] = at - h;
    const double numeric = (up - value_of(y, target)) / (2 * h);
    y.data()[i] = at;
    CHECK(std::abs(numeric - dy.data()[i]) <= 1e-10 * std::abs(numeric) + 1e-11);
  }
}

TEST_CASE("MeanSquaredError: the gradient equals the formula in float") {
  Cpu::Context ctx(1);
  const auto y = matrix<float>(4, 3, 1), target = matrix<float>(4, 3, 2);
  Tensor<float, 2, Cpu> dy(4, 3);
  MeanSquaredError{}.backward<float, Cpu>(ctx, y, target, dy);
  for (Index i = 0; i < 12; ++i)
    CHECK(dy.data()[i] ==
          support::rounded<float>((static_cast<double>(y.data()[i]) - static_cast<double>(target.data()[i])) / 6));
}

TEST_CASE("MeanSquaredError: equal values have loss 0") {
  const auto y = matrix<float>(5, 5, 1);
  CHECK(value_of(y, y) == 0);
}

TEST_CASE("MeanSquaredError: an empty batch has loss 0") {
  Cpu::Context ctx(1);
  Tensor<float, 2, Cpu> none(0, 3), dy(0, 3);
  CHECK(value_of(none, none) == 0);
  CHECK_NOTHROW((MeanSquaredError{}.backward<float, Cpu>(ctx, none, none, dy)));
}

TEST_CASE("MeanSquaredError: wrong shapes throw") {
  Cpu::Context ctx(1);
  Tensor<float, 2, Cpu> y(4, 3), other(3, 4), dy(4, 3);
  Tensor<float, 1, Cpu> value(1);
  CHECK_THROWS_WITH_AS((MeanSquaredError{}.forward<float, Cpu>(ctx, y, other, value)),
                       "MeanSquaredError: target: expected [4, 3], got [3, 4]", ArgumentError);
  CHECK_THROWS_WITH_AS((MeanSquaredError{}.backward<float, Cpu>(ctx, y, other, dy)),
                       "MeanSquaredError: target: expected [4, 3], got [3, 4]", ArgumentError);
  CHECK_THROWS_WITH_AS((MeanSquaredError{}.backward<float, Cpu>(ctx, y, y, other)),
                       "MeanSquaredError.backward: dy: expected [4, 3], got [3, 4]", ArgumentError);
}
