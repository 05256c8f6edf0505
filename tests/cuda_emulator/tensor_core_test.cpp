// Tests the arithmetic of tensor cores against sums in double, and with cases whose bits show where terms are cut.
#include "cuda_emulator/tensor_core.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace gatefold::cuda_emulator;

namespace {

struct Term {
  int k;
  double a, b;
};

/// Returns c plus the products of the terms; all other products are zero. Each call uses the next column of the result,
/// because the result must be the same in every column. The other columns of b contain ones.
float sum(int compute_capability, float c, const std::vector<Term>& terms, int depth = 16) {
  static int column = 0;
  column = (column + 1) % TensorCore::columns;
  TensorCore::Row a;
  TensorCore::Columns b;
  for (int k = 0; k < TensorCore::Row::most; ++k) {
    a.set(k, 0, Factor(BFloat::rounded(0)));
    for (int j = 0; j < TensorCore::columns; ++j) b.set(k, j, Factor(BFloat::rounded(j == column ? 0 : 1)));
  }
  for (const Term& term : terms) {
    a.set(term.k, 0, Factor(BFloat::rounded(term.a)));
    b.set(term.k, column, Factor(BFloat::rounded(term.b)));
  }
  TensorCore::Sums sums = {};
  sums[column] = c;
  TensorCore::of(compute_capability).multiply_add(a, b, depth, sums);
  return sums[column];
}

double power(int exponent) { return std::ldexp(1.0, exponent); }

constexpr double unbounded = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("tensor core: aligned terms keep 24 or 25 bits") {
  const auto above = static_cast<float>(1 + power(-23)), below = static_cast<float>(1 - power(-24));
  for (const int capability : {80, 86, 89, 90, 100, 120}) {
    CAPTURE(capability);
    const bool wide = capability >= 90;
    // Two halves of the last bit add up to a whole one.
    CHECK(sum(capability, 1, {{0, power(-24), 1}, {1, 1, power(-24)}}) == above);
    CHECK(sum(capability, 1, {{0, power(-24), 1}}) == 1);
    // If 24 bits are kept, four quarters of the last bit are cut off one by one.
    const std::vector<Term> quarters{{0, power(-25), 1}, {1, power(-25), 1}, {2, power(-25), 1}, {3, power(-25), 1}};
    CHECK(sum(capability, 1, quarters) == (wide ? above : 1));
    // 8 products are added at once; from compute capability 9.0 on, 16 products.
    CHECK(sum(capability, 1, {{0, power(-24), 1}, {8, power(-24), 1}}) == (wide ? above : 1));
    // The sum is cut towards zero. Below 1, the last bit has half the value.
    CHECK(sum(capability, 1, {{0, -power(-24), 1}}) == below);
    CHECK(sum(capability, 1, {{0, -power(-25), 1}}) == (wide ? below : 1));
    CHECK(sum(capability, -1, {{0, power(-24), 1}}) == -below);
    // A product may be as large as 4. Its exponent is the sum of the exponents of its factors.
    CHECK(sum(capability, 1, {{0, 1.5, 1.5}, {1, power(-24), 1}}) == 3.25);
    // If terms cancel, the bits that were not cut off are left.
    CHECK(sum(capability, 1, {{0, -1, 1}, {1, power(-24), 1}}) == static_cast<float>(power(-24)));
    CHECK(sum(capability, 1, {{0, -1, 1}, {1, power(-25), 1}}) == (wide ? static_cast<float>(power(-25)) : 0));
    CHECK(sum(capability, 1, {{0, -1, 1}, {1, power(-26), 1}}) == 0);
  }
}

TEST_CASE("tensor core: handles overflow, subnormal numbers, infinity and NaN") {
  for (const int capability : {80, 90}) {
    CAPTURE(capability);
    CHECK(sum(capability, 0, {{0, power(100), power(100)}}) == unbounded);
    CHECK(sum(capability, 0, {{0, power(100), -power(100)}}) == -unbounded);
    CHECK(sum(capability, 1, {{0, power(100), power(100)}, {1, -power(100), power(100)}}) == 0);  // 1 is cut off
    // Results go down to 2^-149, whether a factor, the product or the addend is subnormal.
    CHECK(sum(capability, 0, {{0, power(-133), 1}}) == static_cast<float>(power(-133)));
    CHECK(sum(capability, 0, {{0, power(-133), power(-16)}}) == static_cast<float>(power(-149)));
    CHECK(sum(capability, 0, {{0, power(-75), power(-74)}}) == static_cast<float>(power(-149)));
    CHECK(sum(capability, 0, {{0, power(-75), power(-75)}}) == 0);
    CHECK(sum(capability, static_cast<float>(power(-149)), {}) == static_cast<float>(power(-149)));

    CHECK(sum(capability, 1, {{3, unbounded, 2}}) == unbounded);
    CHECK(sum(capability, 1, {{3, -2, unbounded}}) == -unbounded);
    CHECK(sum(capability, static_cast<float>(-unbounded), {{3, 2, 2}}) == -unbounded);
    CHECK(std::isnan(sum(capability, 1, {{3, unbounded, 0}})));
    CHECK(std::isnan(sum(capability, 1, {{3, unbounded, 1}, {12, -unbounded, 1}})));
    CHECK(std::isnan(sum(capability, static_cast<float>(unbounded), {{3, -unbounded, 1}})));
    CHECK(std::isnan(sum(capability, 1, {{15, NAN, 1}})));
    CHECK(std::isnan(sum(capability, NAN, {})));
    CHECK(sum(capability, 7, {{8, NAN, 1}}, 8) == 7);  // not among the first 8
  }
}

TEST_CASE("tensor core: integers are exact, reals match the kept bits") {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> integer(-128, 128);
  std::normal_distribution<double> normal;
  for (const int capability : {80, 90}) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      std::vector<Term> integers, reals;
      double exact = 5, real = 0.5, magnitude = 0.5;
      for (int k = 0; k < 16; ++k) {
        integers.push_back({k, double(integer(random)), double(integer(random))});
        exact += integers[k].a * integers[k].b;
        reals.push_back({k, BFloat::rounded(normal(random)).value(), BFloat::rounded(normal(random)).value()});
        real += reals[k].a * reals[k].b;
        magnitude += std::fabs(reals[k].a * reals[k].b);
      }
      CHECK(sum(capability, 5, integers) == exact);
      // There are at most two additions. In each of them, each of at most 17 terms loses less than 2^-24 of the largest
      // term, and the sum loses less than its last bit.
      CHECK(std::fabs(sum(capability, 0.5, reals) - real) <= power(-23) * 17 * magnitude);
    }
  }
}
