#include "cuda_emulator/tensor_core.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace gatefold::cuda_emulator {
namespace {

constexpr int bias = 127, least_exponent = -126, beyond_exponent = 128;  // of float and of bfloat16
constexpr int float_fraction = 23;

/// Returns 2^exponent, for normal numbers of double.
double power(int exponent) { return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52); }

/// Returns the exponent of a float. A subnormal float has the exponent of the smallest normal number.
int exponent_of(float x) {
  return std::max(static_cast<int>(std::bit_cast<std::uint32_t>(x) >> float_fraction & 0xff), 1) - bias;
}

/// Returns sum 2^unit, cut towards zero.
float cut_to_float(std::int64_t sum, int unit) {
  if (sum == 0) return 0;
  const auto magnitude = static_cast<std::uint64_t>(std::abs(sum));
  const int exponent = std::max(unit + static_cast<int>(std::bit_width(magnitude)) - 1, least_exponent);
  const int surplus = std::max(exponent - float_fraction - unit, 0);
  const double kept = static_cast<double>(magnitude >> surplus) * power(unit + surplus);
  const float result = exponent >= beyond_exponent ? std::numeric_limits<float>::infinity() : static_cast<float>(kept);
  return sum < 0 ? -result : result;
}

/// Returns the sum if it is infinite or NaN, otherwise zero.
float not_finite(const TensorCore::Row& a, const TensorCore::Columns& b, int column, int depth, float c) {
  double sum = c;
  for (int k = 0; k < depth; ++k) {
    sum += std::ldexp(double{a.significand[k][0]} * b.significand[k][column], a.exponent[k][0] + b.exponent[k][column]);
  }
  return std::isnan(sum) ? std::bit_cast<float>(0x7fffffffu) : std::isinf(sum) ? static_cast<float>(sum) : 0;
}

}  // namespace

Factor::Factor(BFloat number) : significand(std::bit_cast<float>(std::uint32_t{number.bits} << 16)), exponent(0) {
  constexpr std::int32_t of_zero = -10000;
  if (significand == 0) {
    exponent = of_zero;
  } else if (std::isfinite(significand)) {
    exponent = exponent_of(significand);
    significand = static_cast<float>(significand * power(-exponent));
  }
}

void TensorCore::multiply_add(const Row& a, const Columns& b, int depth, Sums& c) const {
  Sums special = {};
  const bool finite = a.finite && b.finite && std::all_of(c, c + columns, [](float x) { return std::isfinite(x); });
  for (int j = 0; j < columns && !finite; ++j) special[j] = not_finite(a, b, j, depth, c[j]);
  for (int begin = 0; begin < depth; begin += products) add(a, b, begin, std::min(begin + products, depth), c);
  for (int j = 0; j < columns && !finite; ++j) c[j] = special[j] == 0 ? c[j] : special[j];
}

/// Adds the products of [begin, end) to c. The loops over products use no 64-bit numbers, so that the compiler
/// vectorises them over the columns.
void TensorCore::add(const Row& a, const Columns& b, int begin, int end, Sums& c) const {
  std::int32_t largest[columns];
  for (int j = 0; j < columns; ++j) largest[j] = exponent_of(c[j]);
  for (int k = begin; k < end; ++k) {
    for (int j = 0; j < columns; ++j) largest[j] = std::max(largest[j], a.exponent[k][0] + b.exponent[k][j]);
  }
  // A product of significands is below (2 - 2^-7)^2, so 16 products times 2^25 are below 2^31.
  std::int32_t sum[columns] = {};
  for (int k = begin; k < end; ++k) {
    for (int j = 0; j < columns; ++j) {
      const std::int32_t exponent = fraction_bits - largest[j] + a.exponent[k][0] + b.exponent[k][j];
      const float scale = std::bit_cast<float>((std::max(exponent, least_exponent) + bias) << float_fraction);
      sum[j] += static_cast<std::int32_t>(a.significand[k][0] * b.significand[k][j] *
                                          scale);  // the conversion cuts towards zero
    }
  }
  for (int j = 0; j < columns; ++j) {
    if (!std::isfinite(c[j])) continue;
    const auto addend = static_cast<std::int64_t>(c[j] * power(fraction_bits - largest[j]));
    c[j] = cut_to_float(addend + sum[j], largest[j] - fraction_bits);
  }
}

}  // namespace gatefold::cuda_emulator
