#include "gatefold/backend/initial_values.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

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
  // The sheet's medium model: 352 by 352.
  const auto medium = values(initial_weights<float>(ctx, reference, Seed{3}, 1, 352, 352));
  CHECK(largest(medium) <= double(1.0f / 352));
  CHECK(largest(medium) > 0.999 / 352);
}

TEST_CASE("Initial (3), (4): normal with standard deviation scale, or scale/√in") {
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

TEST_CASE("Initial (5): zero") {
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
