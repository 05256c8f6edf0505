#pragma once

#include <bit>
#include <cstdint>

namespace gatefold {

/// An IEEE 754 binary16 number, with 11 significant bits and magnitudes from 6e-8 to 65504.
struct Float16 {
  std::uint16_t bits;

  /// Rounds v to the nearest binary16 number, ties to even. Magnitudes of 65520 or more become infinite; NaN stays NaN.
  static Float16 from(float v) {
    const auto u = std::bit_cast<std::uint32_t>(v);
    const std::uint32_t sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    const auto signed_bits = [&](std::uint32_t magnitude) {
      return Float16{static_cast<std::uint16_t>(sign | magnitude)};
    };
    if (size > kInfinity) return signed_bits(0x7e00 | (size >> 13 & 0x3ff));
    if (size >= kOverflow) return signed_bits(0x7c00);
    // The result is a subnormal binary16 number. These numbers are 2⁻²⁴ apart, and floats in [0.5, 1) are as far apart.
    // Therefore, adding 0.5 rounds v to one of them.
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
  // The bits of the floats ∞, 65520 and 2⁻¹⁴ (the smallest normal binary16 number), and the difference between the
  // exponent biases of float and binary16, in the position of a float's exponent.
  static constexpr std::uint32_t kInfinity = 0x7f800000, kOverflow = 0x477ff000, kNormal = 0x38800000,
                                 kRebias = 112u << 23;
};

}  // namespace gatefold
