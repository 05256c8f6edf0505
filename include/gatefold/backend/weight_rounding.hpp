#pragma once

#include <cmath>
#include <cstdint>

#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold {

/// Rounds single weights to 8 or 4 bits, with the scale of their group: eq. (1) to (3) of core/weights.hpp. A group has
/// `size` weights. cpu/quantised_format.hpp computes the same numbers in vector registers.
///
///     float most = 0;                                         // m: the first weight with the largest magnitude
///     for (float w : group)
///       if (WeightRounding::is_larger(w, most)) most = w;
///     const float s = rounding.scale(most);
///     const int q = rounding.number(w, s);                    // in mxfp4, q is a code of four bits
///     const float rounded = rounding.value(q, s);             // ŵ
///
/// A code of mxfp4 has a bit of sign, two bits of exponent and a bit of mantissa.
struct WeightRounding {
  static constexpr int size = 32;
  // A group of weights in int8 or int4, and a group of 32 values of an item (eq. (4)), gets the scale 0 if its largest
  // magnitude is below `least`.
  static constexpr float least = 0x1p-100F;
  Weights form;

  /// Returns whether a number takes four bits, so that a byte contains two of them.
  GATEFOLD_HD bool halves() const { return form != Weights::int8; }

  /// Returns whether the magnitude of w is larger than the magnitude of `most`. NaN is larger than all numbers.
  GATEFOLD_HD static bool is_larger(float w, float most) { return magnitude(w) > magnitude(most); }

  /// Returns the scale s of a group. bfloat16 represents it exactly.
  /// @param most  the first weight of the group with the largest magnitude, m
  GATEFOLD_HD float scale(float most) const {
    const std::uint32_t a = magnitude(most);
    if (a >= 0x7f800000) return number_of(0x7fc00000);  // infinity and NaN give NaN
    if (form == Weights::mxfp4) {
      if (a == 0) return 0;
      // The scale is the smallest power of two that is at least a / 6. With a = f 2^n and 1 <= f < 2, this is 2^(n − 2)
      // if f <= 1.5, otherwise 2^(n − 1). The smallest scale is 2^-127, a subnormal.
      const int exponent = static_cast<int>(a >> 23) - 2 + ((a & 0x7fffff) > 0x400000);
      return number_of(exponent > 0 ? static_cast<std::uint32_t>(exponent) << 23 : 0x400000);
    }
    if (a < magnitude(least)) return 0;
    return Bfloat16::from(form == Weights::int8 ? number_of(a) / 127.0F : most / -8.0F);
  }
  /// Returns the number q of a weight in a group with the scale s.
  GATEFOLD_HD int number(float w, float s) const {
    const float t = s != 0 && s == s ? w / s : 0;
    if (form == Weights::int8) return limited(nearest(t), -127, 127);
    if (form == Weights::int4) return limited(nearest(t), -8, 7);
    const float size_of_t = std::abs(t);
    const int code = size_of_t < 2   ? nearest(size_of_t * 2)
                     : size_of_t < 4 ? nearest(size_of_t - 2) + 4
                                     : nearest((size_of_t - 4) / 2) + 6;
    return limited(code, 0, 7) | (__builtin_bit_cast(std::uint32_t, t) >> 31 ? 8 : 0);
  }
  /// Returns the number q that is stored in the lowest 8 or 4 bits of `stored`.
  GATEFOLD_HD int stored(std::uint32_t stored) const {
    if (form == Weights::int8) return static_cast<std::int8_t>(stored & 255);
    const int code = static_cast<int>(stored & 15);
    return form == Weights::int4 ? (code ^ 8) - 8 : code;
  }
  /// Returns the rounded weight ŵ = s q. The product is exact, unless it is too large for a float.
  GATEFOLD_HD float value(int q, float s) const {
    if (form != Weights::mxfp4) return static_cast<float>(q) * s;
    const int m = q & 7, twice = m < 4 ? m : (2 + m % 2) << (m / 2 - 1);  // 2 |q|
    return static_cast<float>(q & 8 ? -twice : twice) * (s / 2);
  }

 private:
  /// Returns the bits of |v|. Their order is the order of the magnitudes, and NaN is the largest.
  GATEFOLD_HD static std::uint32_t magnitude(float v) { return __builtin_bit_cast(std::uint32_t, v) & 0x7fffffff; }
  GATEFOLD_HD static float number_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
  GATEFOLD_HD static int nearest(float v) { return static_cast<int>(std::rint(v)); }
  GATEFOLD_HD static int limited(int v, int low, int high) { return v < low ? low : v > high ? high : v; }
};

}  // namespace gatefold
