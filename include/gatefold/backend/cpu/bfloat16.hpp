#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A SIMD vector for the bits of a float register: one 32-bit integer for each lane. Casts to it use
/// __builtin_bit_cast. With std::bit_cast, a linker would keep one instantiation for all object files, even if they are
/// compiled with different -march.
using FloatBits = std::uint32_t __attribute__((vector_size(sizeof(packet::Of<float>))));
/// A SIMD vector of bfloat16 numbers that has as many lanes as a float register.
using FloatHalves = std::uint16_t __attribute__((vector_size(sizeof(packet::Of<float>) / 2)));

/// If P is Bfloat16, returns v rounded to bfloat16, as Bfloat16::from does. Otherwise returns v.
template <class P, class T>
GATEFOLD_INLINE T rounded(T v) {
  if constexpr (std::is_same_v<P, Bfloat16>) {
    return Bfloat16::from(v);
  } else {
    return v;
  }
}
template <class P, class T>
GATEFOLD_INLINE Register<T> rounded(Register<T> v) {
  if constexpr (!std::is_same_v<P, Bfloat16>) {
    return v;
  } else {
    const FloatBits u = __builtin_bit_cast(FloatBits, v.packet()), up = u + 0x7fff + ((u >> 16) & 1),
                    quiet = u | 0x400000, nan = __builtin_bit_cast(FloatBits, (u & 0x7fffffff) > 0x7f800000);
    return Register<T>(__builtin_bit_cast(typename Register<T>::Packet, ((nan & quiet) | (~nan & up)) & 0xffff0000));
  }
}

/// Loads `count` bfloat16 numbers into the first lanes of a float register, and sets the other lanes to 0. Memory after
/// the last of these numbers is not read.
GATEFOLD_INLINE Register<float> load_halves(const Bfloat16* p, int count = Register<float>::size) {
// Converts with AVX-512 intrinsics, because g++ 12 splits the general conversion below into two of half the width.
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (packet::is<float, float, 64>)
    if (count == Register<float>::size)
      return Register<float>(_mm512_castsi512_ps(_mm512_maskz_slli_epi32(
          packet::all16,
          _mm512_maskz_cvtepu16_epi32(packet::all16, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16)));
#endif
  FloatHalves halves{};
  std::memcpy(&halves, p, static_cast<std::size_t>(count) * sizeof(Bfloat16));
  return Register<float>(__builtin_bit_cast(packet::Of<float>, __builtin_convertvector(halves, FloatBits) << 16));
}
/// Stores the first `count` lanes of v, rounded to bfloat16.
GATEFOLD_INLINE void store_halves(Register<float> v, Bfloat16* p, int count = Register<float>::size) {
  const FloatHalves halves =
      __builtin_convertvector(__builtin_bit_cast(FloatBits, rounded<Bfloat16>(v).packet()) >> 16, FloatHalves);
  std::memcpy(p, &halves, static_cast<std::size_t>(count) * sizeof(Bfloat16));
}
/// Converts n bfloat16 numbers to floats: to[i] = from[i].
inline void widen(const Bfloat16* from, Index n, float* to) {
  constexpr int size = Register<float>::size;
  Index i = 0;
  for (; i + size <= n; i += size) load_halves(from + i).store(to + i);
  if (const int rest = static_cast<int>(n - i)) load_halves(from + i, rest).store(to + i, rest);
}

#if defined(GATEFOLD_BFLOAT16_PAIRS)
// The functions below return pairs of bfloat16 in the 32-bit lanes of a float register. The first value of a pair is in
// the lower half. The conversion instructions treat subnormal numbers as 0, and the scalar function pair() does the
// same.

/// Rounds two registers to bfloat16 and returns neighbouring values as pairs. Lane i holds values 2 i and 2 i + 1 of
/// the sequence that consists of `first`, then `second`.
GATEFOLD_INLINE Register<float> pairs_along(Register<float> first, Register<float> second) {
  return Register<float>(
      _mm512_castsi512_ps(__builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(second.packet(), first.packet()))));
}
/// Rounds two rows of values to bfloat16 and returns them as pairs: lane i holds upper[i] and lower[i].
GATEFOLD_INLINE Register<float> pairs_across(Register<float> upper, Register<float> lower) {
  alignas(64) static constexpr std::uint16_t order[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return Register<float>(_mm512_castsi512_ps(_mm512_permutexvar_epi16(
      _mm512_load_si512(order), __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(lower.packet(), upper.packet())))));
}
/// Rounds two values to bfloat16 and returns the pair in the bits of one float, with `first` in the lower half.
inline float pair(float first, float second) {
  const auto half = [](float v) -> std::uint32_t {
    return Bfloat16::from(std::abs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v).bits;
  };
  return __builtin_bit_cast(float, half(first) | half(second) << 16);
}
#endif

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
