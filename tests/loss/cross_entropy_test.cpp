#include "gatefold/loss/cross_entropy.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"
#include "support/naive_moe.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using naive::random_vector;

namespace {

template <class T>
using Logits = Tensor<T, 2, Cpu>;

template <class T>
Logits<T> random_logits(Index items, Index classes) {
  Logits<T> t(items, classes);
  const auto values = random_vector<T>(items * classes, 1);
  std::transform(values.begin(), values.end(), t.data(), [](T v) { return 5 * v; });
  return t;
}
template <class T>
Logits<T> row(const std::vector<T>& values) {
  Logits<T> t(1, static_cast<Index>(values.size()));
  std::copy(values.begin(), values.end(), t.data());
  return t;
}
std::vector<Index> labels(Index items, Index classes) {
  std::vector<Index> l;
  for (Index n = 0; n < items; ++n) l.push_back(n * 5 % classes);
  return l;
}

template <class T>
T value_of(const Logits<T>& y, const std::vector<Index>& label) {
  Cpu::Context ctx(1);
  Tensor<T, 1, Cpu> value(1);
  CrossEntropy{}.forward<T, Cpu>(ctx, y, label, value);
  return value(0);
}
template <class T>
Logits<T> gradient_of(const Logits<T>& y, const std::vector<Index>& label) {
  Cpu::Context ctx(1);
  Logits<T> dy(y.extent(0), y.extent(1));
  CrossEntropy{}.backward<T, Cpu>(ctx, y, label, dy);
  return dy;
}

}  // namespace

TEST_CASE_TEMPLATE("CrossEntropy (1): equals the mean of log-sum-exp minus label logit", T, float, double) {
  for (const Index items : {1, 8, 200})
    for (const Index classes : {1, 2, 10, 257}) {
      const auto y = random_logits<T>(items, classes);
      const auto label = labels(items, classes);
      double expected = 0;
      for (Index n = 0; n < items; ++n) {
        double total = 0;
        for (Index c = 0; c < classes; ++c) total += std::exp(static_cast<double>(y(n, c)));
        expected += (std::log(total) - static_cast<double>(y(n, label[static_cast<std::size_t>(n)]))) /
                    static_cast<double>(items);
      }
      CAPTURE(classes);
      CHECK(std::abs(static_cast<double>(value_of(y, label)) - expected) <=
            (sizeof(T) == 4 ? 1e-6 : 1e-13) * (1 + expected));
    }
}

TEST_CASE("CrossEntropy: the gradient equals central differences; rows sum to 0") {
  const Index items = 6, classes = 7;
  auto y = random_logits<double>(items, classes);
  const auto label = labels(items, classes);
  const auto dy = gradient_of(y, label);
  for (Index n = 0; n < items; ++n) {
    double sum = 0;
    for (Index c = 0; c < classes; ++c) {
      const double at = y(n, c), h = 1e-3;
      double f[4];
      const double step[4] = {h, -h, 2 * h, -2 * h};
      for (int k = 0; k < 4; ++k) y(n, c) = at + step[k], f[k] = value_of(y, label);
      y(n, c) = at;
      const double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
      CHECK(std::abs(numeric - dy(n, c)) <= 1e-10 * std::abs(numeric) + 1e-10);
      sum += dy(n, c);
    }
    CHECK(std::abs(sum) < 1e-15);
  }
}

TEST_CASE("CrossEntropy: the gradient is softmax minus one-hot in float") {
  const auto y = random_logits<float>(3, 5);
  const auto label = labels(3, 5);
  const auto dy = gradient_of(y, label);
  for (Index n = 0; n < 3; ++n) {
    double total = 0;
    for (Index c = 0; c < 5; ++c) total += std::exp(static_cast<double>(y(n, c)));
    for (Index c = 0; c < 5; ++c) {
      const double p = std::exp(static_cast<double>(y(n, c))) / total;
      const double expected = (p - (c == label[static_cast<std::size_t>(n)] ? 1 : 0)) / 3;
      CHECK(std::abs(static_cast<double>(dy(n, c)) - expected) < 2e-7);
    }
  }
}

TEST_CASE_TEMPLATE("CrossEntropy: works for equal logits, huge logits, one class", T, float, double) {
  CHECK(value_of(row<T>({3, 3, 3, 3}), {2}) == support::rounded<T>(std::log(4.0)));
  CHECK(value_of(row<T>({1000, 0}), {0}) == 0);
  CHECK(value_of(row<T>({1000, 0}), {1}) == 1000);
  CHECK(value_of(row<T>({-1000, -1000}), {1}) == support::rounded<T>(std::log(2.0)));
  CHECK(value_of(row<T>({42}), {0}) == 0);
  const auto dy = gradient_of(row<T>({1000, 0}), {1});
  CHECK(dy(0, 0) == 1);
  CHECK(dy(0, 1) == -1);
  CHECK(gradient_of(row<T>({42}), {0})(0, 0) == 0);
}

TEST_CASE("CrossEntropy (2): double softmax gradients equal central differences") {
  const Index items = 5, classes = 4;
  Cpu::Context ctx(1);
  const CrossEntropy loss = CrossEntropy::reference({.ignore = -1});
  auto y = random_logits<double>(items, classes);
  const std::vector<Index> label{1, -1, 3, 0, 2};
  Tensor<double, 1, Cpu> value(1);
  Logits<double> dy(items, classes);
  const auto by_hand = [&] {
    double mean = 0;
    for (const Index n : {0, 2, 3, 4}) {
      double total = 0, again = 0;
      for (Index c = 0; c < classes; ++c) total += std::exp(y(n, c));
      for (Index c = 0; c < classes; ++c) again += std::exp(std::exp(y(n, c)) / total);
      mean += (std::log(again) - std::exp(y(n, label[static_cast<std::size_t>(n)])) / total) / 4;
    }
    return mean;
  };
  loss.forward<double, Cpu>(ctx, y, label, value);
  CHECK(value(0) == doctest::Approx(by_hand()).epsilon(1e-14));
  loss.backward<double, Cpu>(ctx, y, label, dy);
  for (Index i = 0; i < y.size(); ++i) {
    const double at = y.data()[i], h = 1e-3, step[4] = {h, -h, 2 * h, -2 * h};
    double f[4];
    for (int k = 0; k < 4; ++k) y.data()[i] = at + step[k], f[k] = by_hand();
    y.data()[i] = at;
    const double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
    CHECK(std::abs(numeric - dy.data()[i]) <= 1e-10 * std::abs(numeric) + 1e-10);
    if (i / classes == 1) CHECK(dy.data()[i] == 0);
  }
}

TEST_CASE_TEMPLATE("CrossEntropy (3): label smoothing equals (1 − ε) NLL + ε mean NLL", T, float, double) {
  Cpu::Context ctx(2, true);
  for (const double epsilon : {0.1, 0.75, 1.0})
    for (const Index classes : {1, 2, 10, 257})
      for (const bool twice : {false, true}) {
        CAPTURE(epsilon);
        CAPTURE(classes);
        CAPTURE(twice);
        const Index items = 9;
        const CrossEntropy loss{.ignore = -1, .twice = twice, .label_smoothing = epsilon};
        const auto y = random_logits<T>(items, classes);
        auto label = labels(items, classes);
        label[4] = -1;
        // The loss as torch.nn.CrossEntropyLoss defines it, from log-probabilities.
        double expected = 0;
        for (Index n = 0; n < items; ++n) {
          if (n == 4) continue;
          std::vector<double> z;
          for (Index c = 0; c < classes; ++c) z.push_back(static_cast<double>(y(n, c)));
          if (twice) z = naive::softmax(z);
          const std::vector<double> p = naive::softmax(z);
          double uniform = 0;
          for (const double of_class : p) uniform -= std::log(of_class) / static_cast<double>(classes);
          const double of_label = -std::log(p[static_cast<std::size_t>(label[static_cast<std::size_t>(n)])]);
          expected += ((1 - epsilon) * of_label + epsilon * uniform) / 8;
        }
        Tensor<T, 1, Cpu> value(1);
        loss.template forward<T, Cpu>(ctx, y, label, value);
        CHECK(std::abs(static_cast<double>(value(0)) - expected) <= (sizeof(T) == 4 ? 1e-6 : 1e-13) * (1 + expected));
      }
}

TEST_CASE("CrossEntropy (3): smoothed gradients equal central differences") {
  Cpu::Context ctx(1);
  const Index items = 5, classes = 6;
  for (const bool twice : {false, true}) {
    const CrossEntropy loss{.ignore = -1, .twice = twice, .label_smoothing = 0.2};
    auto y = random_logits<double>(items, classes);
    const std::vector<Index> label{1, -1, 3, 0, 5};
    Tensor<double, 1, Cpu> value(1);
    Logits<double> dy(items, classes);
    loss.backward<double, Cpu>(ctx, y, label, dy);
    for (Index i = 0; i < y.size(); ++i) {
      const double at = y.data()[i], h = 1e-3, step[4] = {h, -h, 2 * h, -2 * h};
      double f[4];
      for (int k = 0; k < 4; ++k) {
        y.data()[i] = at + step[k];
        loss.forward<double, Cpu>(ctx, y, label, value);
        f[k] = value(0);
      }
      y.data()[i] = at;
      const double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
      CHECK(std::abs(numeric - dy.data()[i]) <= 1e-10 * std::abs(numeric) + 1e-10);
      if (i / classes == 1) CHECK(dy.data()[i] == 0);
    }
  }
}

TEST_CASE("CrossEntropy: the smoothed loss is least at the target distribution") {
  // p = 1 − ε + ε/C for the label and ε/C for the others; the loss is then the entropy of p, and the gradient 0.
  const double low = 0.1 / 4, high = 0.9 + low;
  Cpu::Context ctx(1);
  const CrossEntropy loss{.label_smoothing = 0.1};
  const auto y = row<double>({std::log(low), std::log(high), std::log(low), std::log(low)});
  const std::vector<Index> label{1};
  Tensor<double, 1, Cpu> value(1);
  Logits<double> dy(1, 4);
  loss.forward<double, Cpu>(ctx, y, label, value);
  loss.backward<double, Cpu>(ctx, y, label, dy);
  CHECK(value(0) == doctest::Approx(-high * std::log(high) - 3 * low * std::log(low)).epsilon(1e-14));
  for (Index c = 0; c < 4; ++c) CHECK(std::abs(dy(0, c)) < 1e-15);
}

TEST_CASE("CrossEntropy: without counted items the smoothed loss is 0") {
  Cpu::Context ctx(1);
  const CrossEntropy loss{.ignore = -1, .label_smoothing = 0.3};
  const auto y = random_logits<float>(3, 4);
  const std::vector<Index> none(3, -1);
  Tensor<float, 1, Cpu> value(1);
  Logits<float> dy(3, 4);
  loss.forward<float, Cpu>(ctx, y, none, value);
  loss.backward<float, Cpu>(ctx, y, none, dy);
  CHECK(value(0) == 0);
  for (Index i = 0; i < dy.size(); ++i) CHECK(dy.data()[i] == 0);
}

TEST_CASE("CrossEntropy: label_smoothing outside [0, 1] throws") {
  Cpu::Context ctx(1);
  const auto y = random_logits<float>(1, 4);
  Tensor<float, 1, Cpu> value(1);
  const std::vector<Index> label{0};
  CHECK_THROWS_WITH_AS((CrossEntropy{.label_smoothing = 1.5}.forward<float, Cpu>(ctx, y, label, value)),
                       "CrossEntropy: label_smoothing: expected 0 <= label_smoothing <= 1, got 1.5", ArgumentError);
  for (const double wrong : {-0.1, std::nan("")})
    CHECK_THROWS_AS((CrossEntropy{.label_smoothing = wrong}.forward<float, Cpu>(ctx, y, label, value)), ArgumentError);
}

TEST_CASE("CrossEntropy: an empty batch has loss 0") {
  CHECK(value_of(Logits<float>(0, 3), {}) == 0);
  CHECK(gradient_of(Logits<float>(0, 3), {}).size() == 0);
}

TEST_CASE("CrossEntropy: labels outside the classes throw") {
  const Logits<float> y = random_logits<float>(3, 4);
  CHECK_THROWS_WITH_AS(value_of(y, {0, 4, 1}), "CrossEntropy: target: expected labels from 0 to 3, got 4",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(gradient_of(y, {0, 3, -1}), "CrossEntropy: target: expected labels from 0 to 3, got -1",
                       ArgumentError);
}

TEST_CASE_TEMPLATE("CrossEntropy: equals the loss and gradient without ignored items", T, float, double) {
  Cpu::Context ctx(1);
  const CrossEntropy loss{.ignore = -1};
  const auto y = random_logits<T>(5, 4);
  Logits<T> others(3, 4), dy(5, 4);
  const Index kept[] = {0, 2, 4};
  for (Index i = 0; i < 3; ++i)
    for (Index c = 0; c < 4; ++c) others(i, c) = y(kept[i], c);
  const std::vector<Index> label{1, -1, 3, -1, 0}, label_of_others{1, 3, 0};
  Tensor<T, 1, Cpu> value(1);
  loss.template forward<T, Cpu>(ctx, y, label, value);
  loss.template backward<T, Cpu>(ctx, y, label, dy);
  CHECK(value(0) == value_of(others, label_of_others));
  const auto dy_of_others = gradient_of(others, label_of_others);
  for (Index c = 0; c < 4; ++c) {
    for (Index i = 0; i < 3; ++i) CHECK(dy(kept[i], c) == dy_of_others(i, c));
    CHECK(dy(1, c) == 0);
    CHECK(dy(3, c) == 0);
  }
  const std::vector<Index> none(5, -1);
  loss.template forward<T, Cpu>(ctx, y, none, value);
  loss.template backward<T, Cpu>(ctx, y, none, dy);
  CHECK(value(0) == 0);
  for (Index i = 0; i < dy.size(); ++i) CHECK(dy.data()[i] == 0);
}

TEST_CASE("CrossEntropy: ignored rows have dy = 0 for any values") {
  Cpu::Context ctx(1);
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool twice : {false, true}) {
    const CrossEntropy loss{.ignore = -1, .twice = twice};
    auto y = random_logits<float>(4, 3);
    const std::vector<Index> label{1, -1, 0, -1};
    Logits<float> clean(4, 3), dy(4, 3);
    loss.backward<float, Cpu>(ctx, y, label, clean);
    y(1, 0) = nan, y(3, 1) = infinity, y(3, 2) = -infinity;
    loss.backward<float, Cpu>(ctx, y, label, dy);
    for (Index n = 0; n < 4; ++n)
      for (Index c = 0; c < 3; ++c) CHECK(dy(n, c) == (n % 2 == 1 ? 0 : clean(n, c)));
  }
}

TEST_CASE("CrossEntropy: ignore may be a class; invalid labels throw") {
  Cpu::Context ctx(1);
  const auto y = random_logits<double>(2, 3);
  Tensor<double, 1, Cpu> value(1);
  const std::vector<Index> label{0, 2}, wrong{-1, 2}, least{std::numeric_limits<Index>::min(), 0};
  CrossEntropy{.ignore = 0}.forward<double, Cpu>(ctx, y, label, value);
  Logits<double> second(1, 3);
  for (Index c = 0; c < 3; ++c) second(0, c) = y(1, c);
  CHECK(value(0) == value_of(second, {2}));
  CHECK_THROWS_WITH_AS((CrossEntropy{.ignore = -2}.forward<double, Cpu>(ctx, y, wrong, value)),
                       "CrossEntropy: target: expected labels from 0 to 2, got -1", ArgumentError);
  CHECK_THROWS_AS((CrossEntropy{}.forward<double, Cpu>(ctx, y, least, value)), ArgumentError);
}

TEST_CASE("CrossEntropy: wrong shapes throw") {
  const Logits<float> y(4, 3);
  CHECK_THROWS_WITH_AS(value_of(y, {0, 1, 2}), "CrossEntropy: target: expected [4], got [3]", ArgumentError);
  Cpu::Context ctx(1);
  const std::vector<Index> label{0, 1, 2, 0};
  Logits<float> dy(4, 2);
  CHECK_THROWS_WITH_AS((CrossEntropy{}.backward<float, Cpu>(ctx, y, label, dy)),
                       "CrossEntropy.backward: dy: expected [4, 3], got [4, 2]", ArgumentError);
}

TEST_CASE("CrossEntropy: with probabilities as logits, the loss has a floor") {
  const double floors[] = {0.313262, 0.904832, 3.366};  // for 2, 5, 77 classes: the reference code's double softmax
  const Index classes[] = {2, 5, 77};
  for (int c = 0; c < 3; ++c) {
    const double e = std::exp(1.0), floor = std::log(1 + static_cast<double>(classes[c] - 1) / e);
    CHECK(floor == doctest::Approx(floors[c]).epsilon(1e-4));  // the numbers above have 4 to 6 digits
    std::vector<double> certain(static_cast<std::size_t>(classes[c]), 0.0);
    certain[1] = 1;  // the best that a softmax can give
    CHECK(value_of(row(certain), std::vector<Index>{1}) == doctest::Approx(floor).epsilon(1e-14));
    certain[1] = 0.9;
    certain[0] = 0.1;
    CHECK(value_of(row(certain), std::vector<Index>{1}) > floor);
  }
}
