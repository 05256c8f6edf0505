#pragma once

#include <cstdint>
#include <type_traits>

#include "gatefold/core/config.hpp"

namespace gatefold {

/// A floating-point number of 16 bits: the upper half of a float, with its sign, its exponent and 8 bits of its
/// mantissa (7 of them stored).
struct GATEFOLD_UNIQUE Bfloat16 {
  std::uint16_t bits;

  Bfloat16() = default;
  /// Makes a Bfloat16 from its 16 bits. Use from() to round a float.
  template <class U, class = std::enable_if_t<std::is_same_v<U, std::uint16_t>>>
  GATEFOLD_HD constexpr explicit Bfloat16(U from_bits) : bits(from_bits) {}

  /// Returns v rounded to nearest, ties to even. The relative error is at most 2⁻⁸ for normal values. NaN stays NaN.
  GATEFOLD_HD static Bfloat16 from(float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    std::uint16_t rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(v));
    return Bfloat16(rounded);
#else
    const auto u = __builtin_bit_cast(std::uint32_t, v);  // std::bit_cast works only on the host
    if ((u & 0x7fffffff) > 0x7f800000) return Bfloat16(static_cast<std::uint16_t>((u >> 16) | 0x40));
    return Bfloat16(static_cast<std::uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16));
#endif
  }
  GATEFOLD_HD operator float() const { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }
};

}  // namespace gatefold
