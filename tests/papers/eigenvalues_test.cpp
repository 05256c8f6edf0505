#include "gatefold/papers/eigenvalues.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using Complex = std::complex<double>;

namespace {

constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

template <class T>
struct Square {
  std::vector<T> numbers;
  Index n = static_cast<Index>(std::llround(std::sqrt(static_cast<double>(numbers.size()))));
  View<const T, 2, Cpu> view() const { return {numbers.data(), n, n}; }
};

/// Returns |det(A − σ I)| by elimination with pivoting.
double determinant(View<const double, 2, Cpu> a, Complex sigma) {
  const std::size_t n = static_cast<std::size_t>(a.extent(0));
  std::vector<std::vector<Complex>> m(n, std::vector<Complex>(n));
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) m[i][j] = a(Index(i), Index(j)) - (i == j ? sigma : 0.0);
  double product = 1;
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = k + 1; i < n; ++i)
      if (std::abs(m[i][k]) > std::abs(m[k][k])) std::swap(m[i], m[k]);
    product *= std::abs(m[k][k]);
    if (product == 0) return 0;
    for (std::size_t i = k + 1; i < n; ++i) {
      const Complex f = m[i][k] / m[k][k];
      for (std::size_t j = k; j < n; ++j) m[i][j] -= f * m[k][j];
    }
  }
  return product;
}

}  // namespace

TEST_CASE("eigenvalues (1): returns the polynomial's roots; sum equals trace") {
  for (const Index n : {1, 2, 3, 5, 12, 40}) {
    const Square<double> square{naive::random_vector<double>(n * n, 12)};
    const auto a = square.view();
    const auto values = cpu::eigenvalues(a);
    REQUIRE(values.size() == static_cast<std::size_t>(n));
    Complex sum = 0;
    double trace = 0;
    for (Index i = 0; i < n; ++i) trace += a(i, i);
    for (const Complex v : values) {
      sum += v;
      CHECK(determinant(a, v) <= 1e-10 * determinant(a, v + 0.3));
    }
    CHECK(std::abs(sum - trace) <= 1e-13 * static_cast<double>(n));
  }
}

TEST_CASE("eigenvalues: returns known values in order; real values stay real") {
  const auto rotation = Square<float>{{0, -2, 0, 2, 0, 0, 7, 5, -1}};
  const auto r = cpu::eigenvalues(rotation.view());
  CHECK(std::abs(r[0] + 1.0) < 1e-14);
  CHECK(r[0].imag() == 0);
  CHECK(std::abs(r[1] - Complex(0, -2)) < 1e-14);
  CHECK(std::abs(r[2] - Complex(0, 2)) < 1e-14);
  const auto twice = Square<double>{{3, 1, 0, 3}};                                         // a Jordan block
  for (const Complex v : cpu::eigenvalues(twice.view())) CHECK(std::abs(v - 3.0) < 1e-7);  // √2^-53 at best
  CHECK(cpu::eigenvalues(Square<double>{}.view()).empty());
}

TEST_CASE("eigenvalues: a cyclic permutation matrix gives roots of unity") {
  for (const Index n : {3, 4, 7}) {
    Square<double> turn{std::vector<double>(static_cast<std::size_t>(n * n))};
    for (Index i = 0; i < n; ++i) turn.numbers[static_cast<std::size_t>((i + 1) % n * n + i)] = 1;
    const auto values = cpu::eigenvalues(turn.view());
    REQUIRE(values.size() == static_cast<std::size_t>(n));
    for (Index i = 0; i < n; ++i) {
      const Complex root = std::polar(1.0, 2 * std::acos(-1.0) * static_cast<double>(i) / static_cast<double>(n));
      CHECK(std::count_if(values.begin(), values.end(), [&](Complex v) { return std::abs(v - root) < 1e-13; }) == 1);
    }
  }
}

TEST_CASE("eigenvalues: resolves values of different size and nearly equal pairs") {
  const auto blocks = Square<double>{{1e10, 5, -3, 7, 0, 4, 1, 2, 0, -2, 4, 1, 0, 0, 0, -1e-3}};
  const auto values = cpu::eigenvalues(blocks.view());
  CHECK(std::abs(values[0] + 1e-3) < 1e-5);  // 1e-16 of the largest value
  CHECK(std::abs(values[1] - Complex(4, -std::sqrt(2.0))) < 1e-5);
  CHECK(std::abs(values[2] - Complex(4, std::sqrt(2.0))) < 1e-5);
  CHECK(std::abs(values[3] - 1e10) < 1e-5);
  const auto near = Square<double>{{1, 1e-9, 1e-9, 1}};
  CHECK(std::abs(cpu::eigenvalues(near.view())[0] - (1 - 1e-9)) < 1e-15);
  CHECK(std::abs(cpu::eigenvalues(near.view())[1] - (1 + 1e-9)) < 1e-15);
}

TEST_CASE("eigenvalues: handles zero, very large and very small matrices") {
  const auto zero = Square<double>{{0, 0, 0, 0}};
  for (const Complex v : cpu::eigenvalues(zero.view())) CHECK(v == 0.0);
  for (const double scale : {1e-300, 1e300}) {
    const auto a = Square<double>{{0, -scale, scale, 0}};
    const auto values = cpu::eigenvalues(a.view());
    CHECK(std::abs(values[0] / scale - Complex(0, -1)) < 1e-14);
    CHECK(std::abs(values[1] / scale - Complex(0, 1)) < 1e-14);
  }
}

TEST_CASE("eigenvalues: throws for a matrix not finite or not square") {
  const auto broken = Square<double>{{1, quiet_nan, 0, 1}};
  for (const Complex v : cpu::eigenvalues(broken.view())) CHECK(std::isnan(v.real()));
  const std::vector<double> wide{1, 2, 3};
  CHECK_THROWS_WITH_AS((void)cpu::eigenvalues(View<const double, 2, Cpu>(wide.data(), 1, 3)),
                       "eigenvalues: a: expected [?, 1], got [1, 3]", ArgumentError);
}
