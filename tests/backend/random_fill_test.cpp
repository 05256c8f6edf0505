#include "gatefold/backend/random_fill.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

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
