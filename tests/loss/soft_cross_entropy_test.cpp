#include "gatefold/loss/soft_cross_entropy.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using naive::random_vector;
using support::message_of, support::same_bits, support::values;

namespace {

template <class T>
using Matrix = Tensor<T, 2, Cpu>;

template <class T>
Matrix<T> logits(Index items, Index classes) {
  Matrix<T> y(items, classes);
  const auto values = random_vector<T>(y.size(), 1);
  for (Index i = 0; i < y.size(); ++i) y.data()[i] = 5 * values[static_cast<std::size_t>(i)];
  return y;
}
/// Returns rows of probabilities that sum to 1, except the last row, which sums to 1/2.
template <class T>
Matrix<T> probabilities(Index items, Index classes) {
  Matrix<T> t(items, classes);
  const auto values = random_vector<double>(t.size(), 2);
  for (Index n = 0; n < items; ++n) {
    double sum = 0;
    for (Index c = 0; c < classes; ++c) sum += values[static_cast<std::size_t>(n * classes + c)] + 1;
    for (Index c = 0; c < classes; ++c)
      t(n, c) =
          static_cast<T>((values[static_cast<std::size_t>(n * classes + c)] + 1) / sum / (n == items - 1 ? 2 : 1));
  }
  return t;
}
template <class T>
T value_of(const Matrix<T>& y, const Matrix<T>& target, int threads = 1) {
  Cpu::Context ctx(threads, threads > 1);
  Tensor<T, 1, Cpu> value(1);
  SoftCrossEntropy{}.forward<T, Cpu>(ctx, y, target, value);
  return value(0);
}
template <class T>
Matrix<T> gradient_of(const Matrix<T>& y, const Matrix<T>& target, int threads = 1) {
  Cpu::Context ctx(threads, threads > 1);
  Matrix<T> dy(y.extent(0), y.extent(1));
  SoftCrossEntropy{}.backward<T, Cpu>(ctx, y, target, dy);
  return dy;
}

}  // namespace

TEST_CASE_TEMPLATE("SoftCrossEntropy (1): equals −Σ t log p and its slope", T, float, double) {
  const double epsilon = sizeof(T) == 4 ? 1e-6 : 1e-13;
  for (const Index items : {1, 8, 50})
    for (const Index classes : {1, 2, 10, 257}) {
      CAPTURE(classes);
      const auto y = logits<T>(items, classes), t = probabilities<T>(items, classes), dy = gradient_of(y, t);
      double expected = 0;
      for (Index n = 0; n < items; ++n) {
        double total = 0, weight = 0;
        for (Index c = 0; c < classes; ++c) {
          total += std::exp(static_cast<double>(y(n, c)));
          weight += static_cast<double>(t(n, c));
        }
        for (Index c = 0; c < classes; ++c) {
          const double p = std::exp(static_cast<double>(y(n, c))) / total, of = static_cast<double>(t(n, c));
          expected -= of * std::log(p) / static_cast<double>(items);
          const double slope = (p * weight - of) / static_cast<double>(items);
          if (!(std::abs(static_cast<double>(dy(n, c)) - slope) <= epsilon)) FAIL_CHECK("item " << n << ", " << c);
        }
      }
      CHECK(std::abs(static_cast<double>(value_of(y, t)) - expected) <= epsilon * (1 + expected));
    }
}

TEST_CASE("SoftCrossEntropy: the gradient equals central differences") {
  auto y = logits<double>(5, 6);
  const auto t = probabilities<double>(5, 6), dy = gradient_of(y, t);
  for (Index i = 0; i < y.size(); ++i) {
    const double at = y.data()[i], h = 1e-3, step[4] = {h, -h, 2 * h, -2 * h};
    double f[4];
    for (int k = 0; k < 4; ++k) y.data()[i] = at + step[k], f[k] = value_of(y, t);
    y.data()[i] = at;
    const double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
    CHECK(std::abs(numeric - dy.data()[i]) <= 1e-10 * std::abs(numeric) + 1e-10);
  }
}

TEST_CASE("SoftCrossEntropy: smoothed one-hot rows equal CrossEntropy with label smoothing") {
  Cpu::Context ctx(1);
  const Index items = 6, classes = 5;
  const auto y = logits<double>(items, classes);
  for (const double epsilon : {0.0, 0.1}) {
    std::vector<Index> label;
    Matrix<double> t(items, classes), dy(items, classes);
    for (Index n = 0; n < items; ++n) {
      label.push_back(n * 3 % classes);
      for (Index c = 0; c < classes; ++c) t(n, c) = epsilon / 5 + (c == n * 3 % classes ? 1 - epsilon : 0);
    }
    const CrossEntropy loss{.label_smoothing = epsilon};
    Tensor<double, 1, Cpu> value(1);
    loss.forward<double, Cpu>(ctx, y, label, value);
    loss.backward<double, Cpu>(ctx, y, label, dy);
    CHECK(value_of(y, t) == doctest::Approx(value(0)).epsilon(1e-14));
    const auto soft = gradient_of(y, t);
    for (Index i = 0; i < dy.size(); ++i) CHECK(std::abs(soft.data()[i] - dy.data()[i]) < 1e-15);
  }
}

TEST_CASE_TEMPLATE("SoftCrossEntropy: huge logits, masked classes, rows of zeros", T, float, double) {
  const auto row = [](T a, T b) {
    Matrix<T> m(1, 2);
    m(0, 0) = a, m(0, 1) = b;
    return m;
  };
  const T infinity = std::numeric_limits<T>::infinity();
  CHECK(value_of(row(1000, 0), row(0, 1)) == 1000);
  CHECK(value_of(row(1000, 0), row(1, 0)) == 0);
  CHECK(value_of(row(1000, 0), row(T(0.75), T(0.25))) == 250);
  CHECK(value_of(row(3, -infinity), row(1, 0)) == 0);  // the class with probability 0 is masked
  CHECK(gradient_of(row(3, -infinity), row(1, 0))(0, 1) == 0);
  CHECK(value_of(row(3, -infinity), row(T(0.5), T(0.5))) == infinity);
  CHECK(value_of(row(7, 2), row(0, 0)) == 0);
  CHECK(gradient_of(row(7, 2), row(0, 0))(0, 0) == 0);
}

TEST_CASE_TEMPLATE("SoftCrossEntropy: the number of threads changes no bit", T, float, double) {
  const auto y = logits<T>(3000, 11), t = probabilities<T>(3000, 11), dy = gradient_of(y, t);
  for (const int threads : {2, 3}) {
    CHECK(value_of(y, t, threads) == value_of(y, t));
    CHECK(same_bits(values(gradient_of(y, t, threads)), values(dy)));
  }
}

TEST_CASE("SoftCrossEntropy: an empty batch has loss 0") {
  CHECK(value_of(Matrix<float>(0, 3), Matrix<float>(0, 3)) == 0);
  CHECK(gradient_of(Matrix<float>(0, 3), Matrix<float>(0, 3)).size() == 0);
}

TEST_CASE("SoftCrossEntropy: wrong targets and shapes throw") {
  const auto y = logits<float>(2, 3);
  auto t = probabilities<float>(2, 3);
  t(1, 0) = 2;
  CHECK(message_of([&] { value_of(y, t); }) == "SoftCrossEntropy: target: expected values from 0 to 1, got 2");
  CHECK(message_of([&] { value_of(y, probabilities<float>(3, 3)); }) ==
        "SoftCrossEntropy: target: expected [2, 3], got [3, 3]");
  Cpu::Context ctx(1);
  Matrix<float> dy(3, 3);
  CHECK(message_of([&] { SoftCrossEntropy{}.backward<float, Cpu>(ctx, y, probabilities<float>(2, 3), dy); }) ==
        "SoftCrossEntropy.backward: dy: expected [2, 3], got [3, 3]");
}
