#include "cuda_emulator/tensor_core.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace gatefold::cuda_emulator {
namespace {

constexpr int least_exponent = -126;  // of subnormal numbers too, both of float and of bfloat16
constexpr int beyond_exponent = 128;  // of infinity and NaN
constexpr int float_fraction = 23, factor_fraction = 7;

/// x / 2^bits, cut towards zero.
std::int64_t cut(std::int64_t x, int bits) {
  if (bits > 62) return 0;
  const std::int64_t below = (std::int64_t{1} << bits) - 1;
  return (x + (x >> 63 & below)) >> bits;
}

/// sum 2^unit, cut towards zero.
float cut_to_float(std::int64_t sum, int unit) {
  if (sum == 0) return 0;
  auto magnitude = static_cast<std::uint64_t>(std::abs(sum));
  const int exponent = std::max(unit + static_cast<int>(std::bit_width(magnitude)) - 1, least_exponent);
  if (exponent >= beyond_exponent)
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(sum));
  const int surplus = std::max(exponent - float_fraction - unit, 0);
  magnitude = magnitude >> surplus;
  const auto value = static_cast<float>(std::ldexp(static_cast<double>(magnitude), unit + surplus));
  return sum < 0 ? -value : value;
}

double value(const Factors& factors, int k) {
  if (factors.exponent[k] < beyond_exponent) {
    return std::ldexp(factors.significand[k], factors.exponent[k] - factor_fraction);
  }
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::int32_t significand = factors.significand[k];
  if (std::abs(significand) != 1 << factor_fraction) return std::numeric_limits<double>::quiet_NaN();
  return significand < 0 ? -infinity : infinity;
}

}  // namespace

void Factors::set(int k, BFloat number) {
  const int magnitude = number.bits & 0x7fff, code = magnitude >> factor_fraction;
  const int fraction = magnitude & ((1 << factor_fraction) - 1), leading = code > 0 ? 1 << factor_fraction : 0;
  significand[k] = number.bits & 0x8000 ? -(leading + fraction) : leading + fraction;
  exponent[k] = least_exponent - 1 + std::max(code, 1);
  finite = finite && exponent[k] < beyond_exponent;
}

float TensorCore::multiply_add(const Factors& a, const Factors& b, int depth, float c) const {
  if (!a.finite || !b.finite || !std::isfinite(c)) {
    double sum = c;  // infinite or NaN, or finite as the terms that count are
    for (int k = 0; k < depth; ++k) sum += value(a, k) * value(b, k);
    if (std::isnan(sum)) return std::bit_cast<float>(0x7fffffffu);
    if (std::isinf(sum)) return static_cast<float>(sum);
  }
  for (int begin = 0; begin < depth; begin += products) c = add(a, b, begin, std::min(begin + products, depth), c);
  return c;
}

float TensorCore::add(const Factors& a, const Factors& b, int begin, int end, float c) const {
  const auto bits = std::bit_cast<std::uint32_t>(c);
  const int code = bits >> float_fraction & 0xff, c_exponent = least_exponent - 1 + std::max(code, 1);
  std::int64_t addend = (bits & 0x7fffff) | (code > 0 ? 0x800000 : 0);
  if (bits >> 31) addend = -addend;

  std::int32_t product[Factors::most], exponent[Factors::most];
  int top = c_exponent;
  for (int k = begin; k < end; ++k) {
    product[k] = a.significand[k] * b.significand[k];
    exponent[k] = a.exponent[k] + b.exponent[k];
    if (product[k] != 0) top = std::max(top, exponent[k]);
  }
  std::int64_t sum = cut(addend * (std::int64_t{1} << (fraction_bits - float_fraction)), top - c_exponent);
  const std::int64_t scale = std::int64_t{1} << (fraction_bits - 2 * factor_fraction);
  for (int k = begin; k < end; ++k) {
    if (product[k] != 0) sum += cut(product[k] * scale, top - exponent[k]);
  }
  return cut_to_float(sum, top - fraction_bits);
}

}  // namespace gatefold::cuda_emulator
