#include "gatefold/loss/sigmoid_cross_entropy.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using naive::random_vector;
using support::message_of, support::same_bits, support::values;

namespace {

template <class T>
using Matrix = Tensor<T, 2, Cpu>;

template <class T>
Matrix<T> matrix(Index rows, const std::vector<double>& values) {
  Matrix<T> t(rows, rows > 0 ? static_cast<Index>(values.size()) / rows : 3);
  for (std::size_t i = 0; i < values.size(); ++i) t.data()[i] = static_cast<T>(values[i]);
  return t;
}
template <class T>
Matrix<T> logits(Index rows, Index classes) {
  auto values = random_vector<double>(rows * classes, 1);
  for (double& v : values) v *= 6;
  return matrix<T>(rows, values);
}
/// Returns targets that are 0, 1, or between.
template <class T>
Matrix<T> targets(Index rows, Index classes) {
  auto values = random_vector<double>(rows * classes, 2);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : (values[i] + 1) / 2;
  return matrix<T>(rows, values);
}
template <class T>
T value_of(const Matrix<T>& y, const Matrix<T>& target, int threads = 1) {
  Cpu::Context ctx(threads, threads > 1);
  Tensor<T, 1, Cpu> value(1);
  SigmoidCrossEntropy{}.forward<T, Cpu>(ctx, y, target, value);
  return value(0);
}
template <class T>
Matrix<T> gradient_of(const Matrix<T>& y, const Matrix<T>& target, int threads = 1) {
  Cpu::Context ctx(threads, threads > 1);
  Matrix<T> dy(y.extent(0), y.extent(1));
  SigmoidCrossEntropy{}.backward<T, Cpu>(ctx, y, target, dy);
  return dy;
}

}  // namespace

TEST_CASE_TEMPLATE("SigmoidCrossEntropy (1): equals the binary cross-entropy of each class", T, float, double) {
  const double epsilon = sizeof(T) == 4 ? 1e-6 : 1e-13;
  for (const Index items : {1, 7, 100})
    for (const Index classes : {1, 3, 40}) {
      const auto y = logits<T>(items, classes), t = targets<T>(items, classes), dy = gradient_of(y, t);
      const double terms = static_cast<double>(items * classes);
      double expected = 0;
      for (Index i = 0; i < y.size(); ++i) {
        const double p = 1 / (1 + std::exp(-static_cast<double>(y.data()[i]))), of = static_cast<double>(t.data()[i]);
        expected -= (of * std::log(p) + (1 - of) * std::log(1 - p)) / terms;
        const double slope = (p - of) / terms, got = static_cast<double>(dy.data()[i]);
        if (!(std::abs(got - slope) <= epsilon / terms)) FAIL_CHECK("element " << i << ": " << got << ", " << slope);
      }
      CHECK(static_cast<double>(value_of(y, t)) == doctest::Approx(expected).epsilon(epsilon));
    }
}

TEST_CASE("SigmoidCrossEntropy: the gradient equals central differences") {
  auto y = logits<double>(5, 7);
  const auto t = targets<double>(5, 7), dy = gradient_of(y, t);
  for (Index i = 0; i < y.size(); ++i) {
    const double at = y.data()[i], h = 1e-3, step[4] = {h, -h, 2 * h, -2 * h};
    double f[4];
    for (int k = 0; k < 4; ++k) y.data()[i] = at + step[k], f[k] = value_of(y, t);
    y.data()[i] = at;
    const double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
    CHECK(std::abs(numeric - dy.data()[i]) <= 1e-10 * std::abs(numeric) + 1e-11);
  }
}

TEST_CASE_TEMPLATE("SigmoidCrossEntropy: logits of any size neither overflow nor cancel", T, float, double) {
  const auto one = [](double y, double t) { return value_of(matrix<T>(1, {y}), matrix<T>(1, {t})); };
  const auto slope = [](double y, double t) { return gradient_of(matrix<T>(1, {y}), matrix<T>(1, {t}))(0, 0); };
  CHECK(one(0, 0.25) == support::rounded<T>(std::log(2.0)));
  CHECK(one(1000, 0) == 1000);
  CHECK(one(-1000, 1) == 1000);
  CHECK(one(1000, 1) == 0);
  CHECK(one(-1000, 0) == 0);
  CHECK(one(1000, 0.75) == 250);
  CHECK(slope(1000, 0) == 1);
  CHECK(slope(-1000, 1) == -1);
  // σ(40) is 1 in double, but the loss and the slope of a right answer are e^−40, and not 0.
  for (const double sign : {1.0, -1.0}) {
    CHECK(static_cast<double>(one(sign * 40, sign > 0)) == doctest::Approx(std::exp(-40.0)).epsilon(1e-6));
    CHECK(static_cast<double>(slope(sign * 40, sign > 0)) == doctest::Approx(-sign * std::exp(-40.0)).epsilon(1e-6));
  }
  const T nan = std::numeric_limits<T>::quiet_NaN();
  CHECK(std::isnan(one(static_cast<double>(nan), 1)));
  CHECK(std::isnan(slope(static_cast<double>(nan), 1)));
}

TEST_CASE_TEMPLATE("SigmoidCrossEntropy: the number of threads changes no bit", T, float, double) {
  const auto y = logits<T>(3000, 11), t = targets<T>(3000, 11), dy = gradient_of(y, t);
  for (const int threads : {2, 3}) {
    CHECK(value_of(y, t, threads) == value_of(y, t));
    CHECK(same_bits(values(gradient_of(y, t, threads)), values(dy)));
  }
}

TEST_CASE("SigmoidCrossEntropy: an empty batch has loss 0") {
  CHECK(value_of(matrix<float>(0, {}), matrix<float>(0, {})) == 0);
  CHECK(gradient_of(matrix<float>(0, {}), matrix<float>(0, {})).size() == 0);
}

TEST_CASE("SigmoidCrossEntropy: wrong targets and shapes throw") {
  const auto y = logits<float>(2, 3);
  CHECK(message_of([&] {
          value_of(y, matrix<float>(2, {0, 1, 0, 0, 1.5, 0}));
        }) == "SigmoidCrossEntropy: target: expected values from 0 to 1, got 1.5");
  CHECK(message_of([&] {
          gradient_of(y, matrix<float>(2, {0, 1, 0, 0, 0, -1}));
        }) == "SigmoidCrossEntropy: target: expected values from 0 to 1, got -1");
  CHECK(message_of([&] {
          value_of(y, matrix<float>(2, {0, std::nan(""), 0, 0, 0, 0}));
        }) == "SigmoidCrossEntropy: target: expected values from 0 to 1, got nan");
  CHECK(message_of([&] {
          value_of(y, matrix<float>(2, {0, 1}));
        }) == "SigmoidCrossEntropy: target: expected [2, 3], got [2, 1]");
  Cpu::Context ctx(1);
  Matrix<float> dy(2, 2);
  CHECK(message_of([&] { SigmoidCrossEntropy{}.backward<float, Cpu>(ctx, y, targets<float>(2, 3), dy); }) ==
        "SigmoidCrossEntropy.backward: dy: expected [2, 3], got [2, 2]");
}
