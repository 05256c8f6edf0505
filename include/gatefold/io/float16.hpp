#pragma once

#include <bit>
#include <cstdint>

namespace gatefold {

/// An IEEE 754 binary16 number: 11 bits of mantissa, from 6e-8 to 65504.
struct Float16 {
  std::uint16_t bits;

  /// Rounds v to nearest, ties to even. Values from 65520 on become infinite; NaN stays NaN.
  static Float16 from(float v) {
    const auto u = std::bit_cast<std::uint32_t>(v);
    const std::uint32_t sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    const auto signed_bits = [&](std::uint32_t magnitude) {
      return Float16{static_cast<std::uint16_t>(sign | magnitude)};
    };
    if (size > kInfinity) return signed_bits(0x7e00 | (size >> 13 & 0x3ff));
    if (size >= kOverflow) return signed_bits(0x7c00);
    // Subnormal binary16 numbers have the spacing of floats in [0.5, 1), so adding 0.5 rounds correctly.
    if (size < kNormal)
      return signed_bits(std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) -
                         std::bit_cast<std::uint32_t>(0.5f));
    return signed_bits((size + 0xfff + (size >> 13 & 1) - kRebias) >> 13);
  }
  operator float() const {
    const std::uint32_t sign = std::uint32_t(bits & 0x8000) << 16, size = bits & 0x7fff;
    if (size >= 0x7c00) return std::bit_cast<float>(sign | kInfinity | (size & 0x3ff) << 13);
    if (size < 0x400) return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(float(size) * 0x1p-24f));
    return std::bit_cast<float>(sign | ((size << 13) + kRebias));
  }

 private:
  static constexpr std::uint32_t kInfinity = 0x7f800000, kOverflow = 0x477ff000,  // ∞ and 65520 as floats
      kNormal = 0x38800000, kRebias = 112u << 23;  // 2⁻¹⁴ as a float; difference of the exponent biases
};

}  // namespace gatefold
