// The 16-bit floating-point types: .f16 and .bf16, and pairs of them in 32 bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// A 16-bit type with `mantissa` explicit bits. `least` is the exponent of the smallest normal number.
template <int mantissa, int least>
struct Real16 {
  std::uint16_t bits;

  static constexpr int infinity = ((1 << (15 - mantissa)) - 1) << mantissa;
  static constexpr std::uint16_t nan = 0x7fff;

  /// Returns the value. Every 16-bit number is exact in double.
  double value() const {
    const int magnitude = bits & 0x7fff, exponent = magnitude >> mantissa, fraction = magnitude & ((1 << mantissa) - 1);
    double result;
    if (magnitude >= infinity) {
      result = magnitude > infinity ? NAN : INFINITY;
    } else if (exponent == 0) {
      result = std::ldexp(fraction, least - mantissa);
    } else {
      result = std::ldexp(fraction + (1 << mantissa), least + exponent - 1 - mantissa);
    }
    return bits & 0x8000 ? -result : result;
  }

  /// Returns `x` rounded once.
  static Real16 rounded(double x, Rounding rounding = Rounding::nearest) {
    if (std::isnan(x)) return {nan};
    const bool negative = std::signbit(x);
    const auto sign = static_cast<std::uint16_t>(negative ? 0x8000 : 0);
    if (x == 0) return {sign};
    int code = infinity;  // of the magnitude
    bool exact = true;
    if (!std::isinf(x)) {
      const int exponent = std::max(std::ilogb(x), least);
      if (exponent > least + (infinity >> mantissa)) {
        exact = false;  // far beyond the largest number
      } else {
        const double scaled = std::ldexp(std::fabs(x), mantissa - exponent), whole = std::floor(scaled);
        const double rest = scaled - whole;
        const bool odd = std::fmod(whole, 2) != 0;
        const bool away = rounding == Rounding::nearest ? rest > 0.5 || (rest == 0.5 && odd)
                          : rounding == Rounding::up    ? rest > 0 && !negative
                          : rounding == Rounding::down  ? rest > 0 && negative
                                                        : false;
        // A fraction that rounds up to 2 carries into the exponent, as it should.
        code = ((exponent - least) << mantissa) + static_cast<int>(whole) + away;
        exact = code < infinity;
      }
    }
    if (!exact) {
      const bool to_infinity = rounding == Rounding::nearest || (rounding == Rounding::up && !negative) ||
                               (rounding == Rounding::down && negative);
      code = to_infinity ? infinity : infinity - 1;
    }
    return {static_cast<std::uint16_t>(sign | code)};
  }
};

using Half = Real16<10, -14>;
using BFloat = Real16<7, -126>;

template <class T>
struct Pair {
  T low, high;
};

}  // namespace gatefold::cuda_emulator
