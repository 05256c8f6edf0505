#include "gatefold/data/augment.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/loss/soft_cross_entropy.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;
using data::CropAndFlip, data::Mixup;

namespace {

const Random random_step{Seed{3}, 7};

template <class T>
using Matrix = Tensor<T, 2, Cpu>;

/// Returns values that are all different and not 0.
template <class T>
Matrix<T> numbered(Index items, Index width) {
  Matrix<T> x(items, width);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(i + 1);
  return x;
}
template <class T, class F>
Matrix<T> changed(const F& change, const Matrix<T>& x, Random at = random_step, int threads = 1) {
  Cpu::Context ctx(threads, threads > 1);
  Matrix<T> y(x.extent(0), x.extent(1));
  fill(ctx, y.view(), static_cast<T>(quiet_nan));
  change(ctx, x, at, y);
  return y;
}
/// Returns a whole number in {−pad, …, pad} from random number i.
Index shift(Random at, Index i, Index pad) {
  const double u = uniform<double>(at.seed, at.step, static_cast<std::uint64_t>(i));
  return static_cast<Index>(std::floor(u * static_cast<double>(2 * pad + 1))) - pad;
}
std::vector<double> lambdas(double alpha, Index items) {
  std::vector<double> all;
  for (Index n = 0; n < items; ++n) all.push_back(Mixup{alpha}.pair(random_step, n, items).lambda);
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("CropAndFlip (1): equals a padded image, cropped and mirrored", T, float, double) {
  for (const auto& [rows, columns] : {std::pair<Index, Index>{5, 7}, {4, 4}, {1, 6}, {3, 1}})
    for (const Index channels : {1, 3})
      for (const Index pad : {0, 1, 2})
        for (const double flip : {0.0, 0.5, 1.0}) {
          if (pad >= rows || pad >= columns) continue;
          const CropAndFlip augment{rows, columns, channels, pad, flip};
          const auto x = numbered<T>(20, rows * columns * channels);
          const auto y = changed(augment, x);
          // The padded image [rows + 2 pad, columns + 2 pad, channels], and a window of it.
          const Index high = rows + 2 * pad, wide = columns + 2 * pad;
          Index different = 0;
          for (Index n = 0; n < 20; ++n) {
            std::vector<T> padded(static_cast<std::size_t>(high * wide * channels));
            const auto at = [&](Index i, Index j, Index c) -> T& {
              return padded[static_cast<std::size_t>((i * wide + j) * channels + c)];
            };
            for (Index i = 0; i < rows; ++i)
              for (Index j = 0; j < columns; ++j)
                for (Index c = 0; c < channels; ++c) at(i + pad, j + pad, c) = x(n, (i * columns + j) * channels + c);
            const Index top = shift(random_step, 3 * n, pad) + pad, left = shift(random_step, 3 * n + 1, pad) + pad;
            const bool mirrored =
                uniform<double>(random_step.seed, random_step.step, static_cast<std::uint64_t>(3 * n + 2)) < flip;
            for (Index i = 0; i < rows; ++i)
              for (Index j = 0; j < columns; ++j)
                for (Index c = 0; c < channels; ++c) {
                  const T expected = at(top + i, left + (mirrored ? columns - 1 - j : j), c);
                  different += y(n, (i * columns + j) * channels + c) != expected;
                }
          }
          CHECK(different == 0);
          if (pad == 0 && flip == 0) CHECK(same_bits(values(y), values(x)));
        }
}

TEST_CASE("CropAndFlip: every place occurs equally often; half of the images are mirrored") {
  // An image of 3 · 3 with pad 1 has 9 places. The pixel in the middle is always in the crop.
  const Index items = 9000;
  Matrix<float> x(items, 9);
  for (Index n = 0; n < items; ++n)
    for (Index p = 0; p < 9; ++p) x(n, p) = static_cast<float>(p + 1);
  const auto y = changed(CropAndFlip{3, 3, 1, 1, 0.5}, x);
  std::vector<double> places(9);
  double mirrored = 0;
  for (Index n = 0; n < items; ++n) {
    const Index place = std::find(&y(n, 0), &y(n, 0) + 9, 5.0f) - &y(n, 0);
    ++places[static_cast<std::size_t>(place)];
    // Every crop has pixel 4 or 6 next to pixel 5 (the middle). Without mirroring, 4 is on the left and 6 on the right.
    const bool left_is_4 = place % 3 > 0 && y(n, place - 1) == 4, right_is_6 = place % 3 < 2 && y(n, place + 1) == 6;
    mirrored += !left_is_4 && !right_is_6;
  }
  const double each = static_cast<double>(items) / 9, deviation = std::sqrt(each * (1 - 1.0 / 9));
  for (const double count : places) CHECK(std::abs(count - each) < 4 * deviation);
  CHECK(std::abs(mirrored - static_cast<double>(items) / 2) < 4 * std::sqrt(static_cast<double>(items)) / 2);
}

TEST_CASE("CropAndFlip: an image depends only on seed, step and index") {
  const CropAndFlip augment{6, 5, 2, 2, 0.5};
  const auto x = numbered<float>(300, 60), y = changed(augment, x);
  for (const int threads : {2, 3}) CHECK(same_bits(values(changed(augment, x, random_step, threads)), values(y)));
  const auto few = numbered<float>(7, 60);
  const auto of_few = values(changed(augment, few));
  CHECK(std::equal(of_few.begin(), of_few.end(), values(y).begin()));
  CHECK_FALSE(same_bits(values(changed(augment, x, Random{Seed{3}, 8})), values(y)));
  CHECK_FALSE(same_bits(values(changed(augment, x, Random{Seed{4}, 7})), values(y)));
}

TEST_CASE("CropAndFlip: wrong options and shapes throw") {
  const auto x = numbered<float>(2, 12);
  const auto message = [&](const CropAndFlip& augment) { return message_of([&] { changed(augment, x); }); };
  CHECK(message({3, 4, 1, 3, 0}) == "CropAndFlip: pad: expected 0 to 2, got 3");
  CHECK(message({3, 4, 1, -1, 0}) == "CropAndFlip: pad: expected 0 to 2, got -1");
  CHECK(message({3, 4, 1, 0, 1.5}) == "CropAndFlip: flip: expected 0 <= flip <= 1, got 1.5");
  CHECK(message({0, 4, 1, 0, 0}) == "CropAndFlip: rows: expected at least 1, got 0");
  CHECK(message({3, 4, 2, 0, 0}) == "CropAndFlip: x: expected [?, 24], got [2, 12]");
  Cpu::Context ctx(1);
  auto same = numbered<float>(2, 12);
  Matrix<float> fewer(1, 12);
  const CropAndFlip augment{3, 4, 1, 0, 0};
  CHECK(message_of([&] { augment(ctx, same, random_step, same); }) ==
        "CropAndFlip: y: expected memory that does not overlap x, got memory of x");
  CHECK(message_of([&] { augment(ctx, same, random_step, fewer); }) == "CropAndFlip: y: expected [2, 12], got [1, 12]");
}

TEST_CASE_TEMPLATE("Mixup (1): equals λ x[n] + (1 − λ) x[j]", T, float, double) {
  for (const double alpha : {0.01, 0.2, 1.0, 8.0}) {
    const Index items = 50, width = 13;
    const auto x = numbered<T>(items, width), y = changed(Mixup{alpha}, x);
    for (Index n = 0; n < items; ++n) {
      const auto pair = Mixup{alpha}.pair(random_step, n, items);
      CHECK(0 <= pair.lambda);
      CHECK(pair.lambda <= 1);
      CHECK(0 <= pair.other);
      CHECK(pair.other < items);
      for (Index d = 0; d < width; ++d) {
        const double expected =
            pair.lambda * static_cast<double>(x(n, d)) + (1 - pair.lambda) * static_cast<double>(x(pair.other, d));
        if (!(std::abs(static_cast<double>(y(n, d)) - expected) <= (sizeof(T) == 4 ? 2e-7 : 1e-15) * 700))
          FAIL_CHECK("item " << n << ": " << y(n, d) << ", " << expected);
      }
    }
  }
}

TEST_CASE("Mixup: λ has the moments of Beta(α, α)") {
  const Index draws = 20000;
  for (const double alpha : {0.05, 0.2, 1.0, 3.0, 40.0}) {
    CAPTURE(alpha);
    double mean = 0, second = 0, fourth = 0;
    for (const double lambda : lambdas(alpha, draws)) {
      const double d = lambda - 0.5;
      mean += d, second += d * d, fourth += d * d * d * d;
    }
    const double n = static_cast<double>(draws), variance = 1 / (4 * (2 * alpha + 1)),
                 expected_fourth = variance * variance * (3 - 6 / (2 * alpha + 3));
    CHECK(std::abs(mean / n) < 4 * std::sqrt(variance / n));
    CHECK(std::abs(second / n - variance) < 4 * std::sqrt((expected_fourth - variance * variance) / n));
    CHECK(std::abs(fourth / n - expected_fourth) < 0.1 * expected_fourth);
  }
}

TEST_CASE("Mixup: with α = 1, λ is uniform") {
  auto all = lambdas(1, 20000);
  std::sort(all.begin(), all.end());
  double worst = 0;  // Kolmogorov's statistic; 1.95 / √n is exceeded with probability 0.001
  for (std::size_t i = 0; i < all.size(); ++i)
    worst = std::max(worst, std::abs(all[i] - (static_cast<double>(i) + 0.5) / 20000));
  CHECK(worst < 1.95 / std::sqrt(20000.0));
}

TEST_CASE("Mixup: a tiny α gives λ of exactly 0 or 1, a huge one 1/2") {
  for (const double alpha : {1e-30, 1e-308}) {
    double ones = 0;
    for (const double lambda : lambdas(alpha, 1000)) {
      if (lambda != 0 && lambda != 1) FAIL_CHECK(lambda);
      ones += lambda > 0.5;
    }
    CHECK(std::abs(ones - 500) < 4 * std::sqrt(250.0));
  }
  const auto x = numbered<float>(40, 5), y = changed(Mixup{1e-30}, x);
  for (Index n = 0; n < 40; ++n) {  // each row is a row of x, bit for bit
    const auto pair = Mixup{1e-30}.pair(random_step, n, 40);
    for (Index d = 0; d < 5; ++d) CHECK(y(n, d) == x(pair.lambda > 0.5 ? n : pair.other, d));
  }
  for (const double lambda : lambdas(1e12, 100)) CHECK(std::abs(lambda - 0.5) < 1e-5);
}

TEST_CASE("Mixup: every other item is chosen, with equal probability") {
  const Index items = 10, steps = 5000;
  std::vector<double> chosen(static_cast<std::size_t>(items));
  for (Index step = 0; step < steps; ++step)
    ++chosen[static_cast<std::size_t>(Mixup{}.pair(Random{Seed{1}, static_cast<std::uint64_t>(step)}, 2, items).other)];
  const double each = static_cast<double>(steps) / 10;
  for (const double count : chosen) CHECK(std::abs(count - each) < 4 * std::sqrt(each * 0.9));
  CHECK(Mixup{}.pair(random_step, 0, 1).other == 0);
}

TEST_CASE("Mixup: items and targets are mixed alike; targets sum to 1") {
  // The target of item n is the one-hot row of n. So a row of the mixed targets has λ at n and 1 − λ at the other item.
  const Index items = 64, classes = 64;
  const auto check = [&]<class T>(T) {
    Cpu::Context ctx(2, true);
    std::vector<Index> label;
    for (Index n = 0; n < items; ++n) label.push_back(n);
    Matrix<T> target(items, classes), x(items, 1);
    data::one_hot<T>(ctx, label, target);
    for (Index n = 0; n < items; ++n) x(n, 0) = static_cast<T>(n);
    const auto mixed = changed(Mixup{0.7}, target), y = changed(Mixup{0.7}, x);
    for (Index n = 0; n < items; ++n) {
      T sum = 0;
      double position = 0;
      for (Index c = 0; c < classes; ++c) {
        sum += mixed(n, c);
        position += static_cast<double>(mixed(n, c)) * static_cast<double>(c);
      }
      CHECK(sum == 1);
      CHECK(std::abs(static_cast<double>(y(n, 0)) - position) < (sizeof(T) == 4 ? 1e-5 : 1e-13));
    }
    SoftCrossEntropy{}.validate<T, Cpu>(mixed, mixed);  // no rounding leaves [0, 1]
  };
  check(float{});
  check(double{});
}

TEST_CASE("Mixup: the number of threads changes no bit; another step changes λ") {
  const auto x = numbered<float>(500, 30), y = changed(Mixup{}, x);
  for (const int threads : {2, 3}) CHECK(same_bits(values(changed(Mixup{}, x, random_step, threads)), values(y)));
  std::set<double> different;
  for (std::uint64_t step = 0; step < 20; ++step) different.insert(Mixup{1}.pair({Seed{1}, step}, 0, 9).lambda);
  CHECK(different.size() == 20);
}

TEST_CASE("Mixup: wrong options and shapes throw") {
  const auto x = numbered<float>(2, 3);
  for (const double alpha : {0.0, -1.0, std::nan("")})
    CHECK(message_of([&] { changed(Mixup{alpha}, x); }).find("Mixup: alpha: expected more than 0, got ") == 0);
  CHECK(message_of([&] { changed(Mixup{std::numeric_limits<double>::infinity()}, x); }) ==
        "Mixup: alpha: expected a finite number, got inf");
  Cpu::Context ctx(1);
  auto same = numbered<float>(2, 3);
  Matrix<float> narrow(2, 2);
  CHECK(message_of([&] { Mixup{}(ctx, same, random_step, same); }) ==
        "Mixup: y: expected memory that does not overlap x, got memory of x");
  CHECK(message_of([&] { Mixup{}(ctx, same, random_step, narrow); }) == "Mixup: y: expected [2, 3], got [2, 2]");
}

TEST_CASE("augmentation: an empty batch stays empty") {
  CHECK(changed(CropAndFlip{3, 3, 1, 1, 0.5}, Matrix<float>(0, 9)).size() == 0);
  CHECK(changed(Mixup{}, Matrix<float>(0, 9)).size() == 0);
}

TEST_CASE("one_hot: writes the smoothed target of each label") {
  Cpu::Context ctx(1);
  const std::vector<Index> label{2, 0};
  Matrix<double> target(2, 4);
  for (const double epsilon : {0.0, 0.2, 1.0}) {
    data::one_hot<double>(ctx, label, target, epsilon);
    for (Index n = 0; n < 2; ++n)
      for (Index c = 0; c < 4; ++c)
        CHECK(
            target(n, c) ==
            doctest::Approx((c == label[static_cast<std::size_t>(n)] ? 1 - epsilon : 0) + epsilon / 4).epsilon(1e-15));
  }
  const std::vector<Index> wrong{2, 4};
  CHECK(message_of([&] { data::one_hot<double>(ctx, wrong, target); }) ==
        "one_hot: label: expected labels from 0 to 3, got 4");
  CHECK(message_of([&] { data::one_hot<double>(ctx, label, target, 2); }) ==
        "one_hot: label_smoothing: expected 0 <= label_smoothing <= 1, got 2");
  Matrix<double> three(3, 4);
  CHECK(message_of([&] { data::one_hot<double>(ctx, label, three); }) == "one_hot: label: expected [3], got [2]");
}
