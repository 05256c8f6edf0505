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

/// 2^exponent, within the normal numbers of double.
double power(int exponent) { return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52); }

/// The exponent of a float; of a subnormal one that of the smallest normal number.
int exponent_of(float x) {
  return std::max(static_cast<int>(std::bit_cast<std::uint32_t>(x) >> float_fraction & 0xff), 1) - bias;
}

/// sum 2^unit, cut towards zero.
float cut_to_float(std::int64_t sum, int unit) {
  if (sum == 0) return 0;
  const auto magnitude = static_cast<std::uint64_t>(std::abs(sum));
  const int exponent = std::max(unit + static_cast<int>(std::bit_width(magnitude)) - 1, least_exponent);
  const int surplus = std::max(exponent - float_fraction - unit, 0);
  const double kept = static_cast<double>(magnitude >> surplus) * power(unit + surplus);
  const float result = exponent >= beyond_exponent ? std::numeric_limits<float>::infinity() : static_cast<float>(kept);
  return sum < 0 ? -result : result;
}

}  // namespace

void Factors::set(int k, BFloat bfloat) {
  constexpr std::int32_t of_zero = -10000;
  const auto value = std::bit_cast<float>(std::uint32_t{bfloat.bits} << 16);
  const bool is_finite = std::isfinite(value);
  exponent[k] = value == 0 ? of_zero : is_finite ? exponent_of(value) : 0;
  significand[k] = value == 0 || !is_finite ? value : static_cast<float>(value * power(-exponent[k]));
  finite = finite && is_finite;
}

float TensorCore::multiply_add(const Factors& a, const Factors& b, int depth, float c) const {
  if (!a.finite || !b.finite || !std::isfinite(c)) {
    double sum = c;
    for (int k = 0; k < depth; ++k) {
      sum += std::ldexp(double{a.significand[k]} * b.significand[k], a.exponent[k] + b.exponent[k]);
    }
    if (std::isnan(sum)) return std::bit_cast<float>(0x7fffffffu);
    if (std::isinf(sum)) return static_cast<float>(sum);
  }
  for (int begin = 0; begin < depth && std::isfinite(c); begin += products) {
    c = add(a, b, begin, std::min(begin + products, depth), c);
  }
  return c;
}

/// By eights, and without 64 bits, so that the compiler computes them side by side.
float TensorCore::add(const Factors& a, const Factors& b, int begin, int end, float c) const {
  constexpr int together = 8;
  std::int32_t largest = exponent_of(c);
  for (int first = begin; first < end; first += together) {
    for (int k = first; k < first + together; ++k) largest = std::max(largest, a.exponent[k] + b.exponent[k]);
  }
  // A product of significands is below (2 - 2^-7)^2, and 16 times that 2^25 below 2^31.
  std::int32_t sum = 0;
  for (int first = begin; first < end; first += together) {
    for (int k = first; k < first + together; ++k) {
      const std::int32_t shift = std::max(fraction_bits - largest + a.exponent[k] + b.exponent[k], least_exponent);
      const float scale = std::bit_cast<float>((shift + bias) << float_fraction);
      sum += static_cast<std::int32_t>(a.significand[k] * b.significand[k] * scale);  // a conversion cuts
    }
  }
  const auto addend = static_cast<std::int64_t>(c * power(fraction_bits - largest));
  return cut_to_float(addend + sum, largest - fraction_bits);
}

}  // namespace gatefold::cuda_emulator
