#include "gatefold/backend/initial_values.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/larger.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

double largest(const std::vector<double>& x) {
  double most = 0;
  for (const double v : x) most = support::larger(most, std::abs(v));
  return most;
}

}  // namespace

TEST_CASE("Initial (1): weights and biases are U(±scale/√in) from the stream") {
  Cpu::Context ctx(2);
  const auto w = initial_weights<double>(ctx, Initial{}, Seed{3}, 5, 16, 40);
  static_assert(std::is_same_v<decltype(w), const Tensor<double, 3, Cpu>>);
  Index wrong = 0;
  for (Index i = 0; i < w.size(); ++i)
    wrong += !(std::abs(w.data()[i] - 0.25 * (2 * uniform<double>(Seed{3}, 0, std::uint64_t(i)) - 1)) <= 1e-15);
  CHECK(wrong == 0);
  const auto b = values(initial_biases<double>(ctx, Initial{}, Seed{3}, 16, 50, 40));
  CHECK(b.size() == 2000);
  CHECK(largest(b) <= 0.25);
  CHECK(largest(b) > 0.249);
  const auto small = values(initial_weights<double>(ctx, Initial{.scale = 0.001}, Seed{3}, 50, 16, 40));
  CHECK(largest(small) <= 0.00025);
  CHECK(largest(small) > 0.000249);
}

TEST_CASE("Initial (2): reference weights are U(±1/√(in·out)), biases are 0") {
  Cpu::Context ctx(1);
  const Initial reference = Initial::reference();
  const auto w = values(initial_weights<double>(ctx, reference, Seed{3}, 30, 16, 64));
  CHECK(largest(w) <= 1.0 / 32);
  CHECK(largest(w) > 0.999 / 32);
  CHECK(largest(values(initial_biases<double>(ctx, reference, Seed{3}, 16, 30, 64))) == 0);
  // Experts of the medium model of paper 001 have weights of 352 by 352 values.
  const auto medium = values(initial_weights<float>(ctx, reference, Seed{3}, 1, 352, 352));
  CHECK(largest(medium) <= double(1.0f / 352));
  CHECK(largest(medium) > 0.999 / 352);
}

TEST_CASE("Initial (3), (4): normal weights have the given standard deviation") {
  Cpu::Context ctx(1);
  const auto w = values(initial_weights<double>(ctx, Initial::normal(0.1), Seed{3}, 10, 50, 40));
  const Initial by_fan{.law = Initial::Law::normal_fan_in, .scale = 0.1 * std::sqrt(50.0)};
  CHECK(difference(values(initial_weights<double>(ctx, by_fan, Seed{3}, 10, 50, 40)), w) <= 1e-15);
  double mean = 0, square = 0;
  for (const double v : w) {
    mean += v / 20000;
    square += v * v / 20000;
  }
  CHECK(std::abs(mean) < 5 * 0.1 / std::sqrt(20000.0));
  CHECK(std::abs(square - 0.01) < 5 * 0.01 * std::sqrt(2 / 20000.0));
  CHECK(largest(w) > 0.3);  // normal values exceed 0.3, uniform ones would not
  CHECK(largest(values(initial_biases<double>(ctx, Initial::normal(0.1), Seed{3}, 50, 10, 40))) == 0);
}

TEST_CASE("Initial (5): weights and biases are zero") {
  Cpu::Context ctx(1);
  const auto w = values(initial_weights<float>(ctx, Initial::zero(), Seed{3}, 5, 4));
  CHECK(w == std::vector<double>(20, 0.0));
  CHECK(values(initial_biases<float>(ctx, Initial::zero(), Seed{3}, 5, 4)) == std::vector<double>(4, 0.0));
}

TEST_CASE("Initial: shared experts all equal the first expert") {
  Cpu::Context ctx(2);
  const Initial initial{.shared = true};
  const auto one = values(initial_weights<double>(ctx, Initial{}, Seed{3}, 1, 6, 7));
  const auto all = values(initial_weights<double>(ctx, initial, Seed{3}, 4, 6, 7));
  const auto bias = values(initial_biases<double>(ctx, initial, Seed{3}, 6, 4, 7));
  Index wrong = 0;
  for (std::size_t i = 0; i < all.size(); ++i) wrong += all[i] != one[i % one.size()];
  for (std::size_t i = 0; i < bias.size(); ++i) wrong += bias[i] != bias[i % 7];
  CHECK(all.size() == 4 * one.size());
  CHECK(wrong == 0);
  CHECK(initial_weights<double>(ctx, initial, Seed{3}, 0, 6, 7).size() == 0);
}

TEST_CASE("repeat_first: copies the first part within each block") {
  Cpu::Context ctx(2);
  auto x = uniform_tensor<double>(ctx, Seed{5}, 1, 3, 4, 5);  // 3 blocks of 4 parts of 5 elements
  const auto before = values(x);
  repeat_first(ctx, 4, 5, x.view());
  Index wrong = 0;
  for (Index b = 0; b < 3; ++b)
    for (Index r = 0; r < 4; ++r)
      for (Index i = 0; i < 5; ++i) wrong += x(b, r, i) != before[std::size_t(b * 20 + i)];
  CHECK(wrong == 0);
}

TEST_CASE("Initial: invalid options throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { (void)initial_weights<float>(ctx, Initial::normal(-1), {}, 2, 3, 4); }) ==
        "Initial: scale: expected a finite number, at least 0, got -1");
  CHECK(message_of([&] { (void)initial_weights<float>(ctx, Initial::normal(HUGE_VAL), {}, 2, 3, 4); }) ==
        "Initial: scale: expected a finite number, at least 0, got inf");
  CHECK(message_of([&] { (void)initial_weights<float>(ctx, Initial{.shared = true}, {}, 3, 4); }) ==
        "Initial: shared: expected false for weights of rank 2, which have no extent of experts, got true");
}

TEST_CASE_TEMPLATE("fill_uniform, fill_normal: element i is number i of the stream", T, float, double) {
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads);
    Tensor<T, 2, Cpu> u(300, 70), n(300, 70);
    fill_uniform(ctx, Seed{8}, -0.5, 1.5, u);
    fill_normal(ctx, Seed{8}, 3, n);
    Index wrong = 0;
    for (Index i = 0; i < u.size(); ++i) {
      const auto at = static_cast<std::uint64_t>(i);
      wrong += !(std::abs(u.data()[i] - (2 * uniform<T>(Seed{8}, 0, at) - T(0.5))) <= T(2e-7));
      wrong += n.data()[i] != 3 * normal<T>(Seed{8}, 0, at);
      wrong += !(u.data()[i] >= T(-0.5) && u.data()[i] <= T(1.5));
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("fill_uniform, fill_normal: mean and variance are right", T, float, double) {
  Cpu::Context ctx(1);
  const Index count = 100000;
  const double n = static_cast<double>(count);
  Tensor<T, 1, Cpu> x(count);
  auto moments = [&] {
    double sum = 0, squares = 0;
    for (Index i = 0; i < count; ++i) {
      const double v = static_cast<double>(x(i));
      sum += v;
      squares += v * v;
    }
    return std::pair{sum / n, squares / n - sum / n * (sum / n)};
  };
  fill_uniform(ctx, Seed{1}, 2, 6, x);
  const auto [mean, variance] = moments();
  CHECK(std::abs(mean - 4) < 5 * std::sqrt(16.0 / 12 / n));
  CHECK(std::abs(variance - 16.0 / 12) < 5 * std::sqrt(256.0 / 180 / n));
  fill_normal(ctx, Seed{1}, 0.1, x);
  const auto [normal_mean, normal_variance] = moments();
  CHECK(std::abs(normal_mean) < 5 * 0.1 / std::sqrt(n));
  CHECK(std::abs(normal_variance - 0.01) < 5 * 0.01 * std::sqrt(2 / n));
}

TEST_CASE("uniform_tensor: has the given extents and values of the stream") {
  Cpu::Context ctx(1);
  const auto u = uniform_tensor<double>(ctx, Seed{4}, 0.25, 3, 5, 7);
  static_assert(std::is_same_v<decltype(u), const Tensor<double, 3, Cpu>>);
  CHECK(u.extent(0) == 3);
  CHECK(u.extent(1) == 5);
  CHECK(u.extent(2) == 7);
  double least = 1, most = -1;
  for (Index i = 0; i < u.size(); ++i) {
    CHECK(u.data()[i] ==
          doctest::Approx(0.5 * uniform<double>(Seed{4}, 0, static_cast<std::uint64_t>(i)) - 0.25).epsilon(1e-12));
    least = std::min(least, u.data()[i]);
    most = std::max(most, u.data()[i]);
  }
  CHECK(least >= -0.25);
  CHECK(most < 0.25);
  CHECK(least < 0);
  CHECK(most > 0);

  const auto c = constant_tensor<float>(ctx, 1.5, 4);
  CHECK(c.size() == 4);
  for (Index i = 0; i < 4; ++i) CHECK(c(i) == 1.5f);
  CHECK(uniform_tensor<float>(ctx, Seed{}, 1, 0, 8).size() == 0);
}

TEST_CASE("uniform_tensor: different seeds give different values") {
  Cpu::Context ctx(1);
  const auto a = uniform_tensor<double>(ctx, Seed{1}, 1, 100), b = uniform_tensor<double>(ctx, Seed{2}, 1, 100);
  Index equal = 0;
  for (Index i = 0; i < 100; ++i) equal += a(i) == b(i);
  CHECK(equal == 0);
}
