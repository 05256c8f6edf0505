#pragma once

#include <cstdint>
#include <type_traits>

#include "gatefold/core/config.hpp"

namespace gatefold {

/// A float's upper half: 8 bits of mantissa, the sign and the exponent of a float.
struct GATEFOLD_UNIQUE Bfloat16 {
  std::uint16_t bits;

  Bfloat16() = default;
  /// Of these bits, and of nothing that is rounded to them: from() takes a number.
  template <class U, class = std::enable_if_t<std::is_same_v<U, std::uint16_t>>>
  GATEFOLD_HD constexpr explicit Bfloat16(U from_bits) : bits(from_bits) {}

  /// Rounded to nearest, ties to even: off by 2⁻⁸ of the value at most (of normal values). NaN stays NaN.
  GATEFOLD_HD static Bfloat16 from(float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    std::uint16_t rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(v));
    return Bfloat16(rounded);
#else
    const auto u = __builtin_bit_cast(std::uint32_t, v);  // std's is for the host alone
    if ((u & 0x7fffffff) > 0x7f800000) return Bfloat16(static_cast<std::uint16_t>((u >> 16) | 0x40));
    return Bfloat16(static_cast<std::uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16));
#endif
  }
  GATEFOLD_HD operator float() const { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }
};

}  // namespace gatefold
