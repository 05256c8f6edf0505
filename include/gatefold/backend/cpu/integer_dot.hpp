#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/core/config.hpp"

/// Dot products of four bytes in each lane of a SIMD register, which is the innermost step of a product with weights of
/// 8 or 4 bits:
///
///     s + Σ_{j < 4} (w_j + offset) x_j                                                                    (1)
///
/// The numbers w_j are signed weights, and x_j are the bytes of one 32-bit word, the same for all lanes. The bytes of a
/// lane are w_j + offset. A product begins with s = −offset Σ x_j, which cancels the offset. Weights of 4 bits have an
/// offset with which no byte is negative. Weights of 8 bits have the offset 128 if the processor has an instruction of
/// AVX512-VNNI or AVX-VNNI, which multiplies unsigned by signed bytes, and otherwise no offset.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A SIMD vector with one 32-bit integer for each lane of a float register.
using Ints = std::int32_t __attribute__((vector_size(sizeof(packet::Of<float>))));

#if (defined(EIGEN_VECTORIZE_AVX512) && defined(__AVX512VNNI__)) || \
    (!defined(EIGEN_VECTORIZE_AVX512) && defined(EIGEN_VECTORIZE_AVX2) && defined(__AVXVNNI__))
#define GATEFOLD_UNSIGNED_DOT
#endif

/// The offset of eq. (1) for signed bytes.
#if defined(GATEFOLD_UNSIGNED_DOT)
inline constexpr std::int32_t signed_offset = 128;
#else
inline constexpr std::int32_t signed_offset = 0;
#endif

/// Returns a vector with v in every lane.
GATEFOLD_INLINE Ints filled_ints(std::int32_t v) { return Ints{} + v; }
/// Loads a vector from any address.
GATEFOLD_INLINE Ints load_ints(const std::byte* p) {
  Ints v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

/// Returns the bytes w with signed_offset added to each of them. The result is an operand of signed_dot.
GATEFOLD_INLINE Ints with_signed_offset(Ints w) {
  return signed_offset ? w ^ filled_ints(static_cast<std::int32_t>(0x80808080U)) : w;
}

namespace dot {

// Computes eq. (1) lane by lane, for targets without an instruction for it.
GATEFOLD_INLINE Ints by_lanes(Ints s, Ints w, std::int32_t x) {
  const auto bits = static_cast<std::uint32_t>(x);
  for (unsigned j = 0; j < 32; j += 8)
    s += (w << static_cast<std::int32_t>(24 - j) >> 24) * filled_ints(static_cast<std::int8_t>(bits >> j));
  return s;
}

}  // namespace dot

/// Computes eq. (1) for lanes w with bytes w_j + offset from 0 to 127. Some targets accept more, and signed_dot uses
/// this: bytes from 0 to 255 if GATEFOLD_UNSIGNED_DOT is defined, and signed bytes if no x86 instruction below is used.
GATEFOLD_INLINE Ints small_dot(Ints s, Ints w, std::int32_t x) {
#if defined(EIGEN_VECTORIZE_AVX512) && defined(__AVX512VNNI__)
  return __builtin_bit_cast(
      Ints, _mm512_dpbusd_epi32(__builtin_bit_cast(__m512i, s), __builtin_bit_cast(__m512i, w), _mm512_set1_epi32(x)));
#elif defined(EIGEN_VECTORIZE_AVX512) && defined(__AVX512BW__)
  const __m512i pairs = _mm512_maddubs_epi16(__builtin_bit_cast(__m512i, w), _mm512_set1_epi32(x));
  return s + __builtin_bit_cast(Ints, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#elif !defined(EIGEN_VECTORIZE_AVX512) && defined(EIGEN_VECTORIZE_AVX2) && defined(__AVXVNNI__)
  return __builtin_bit_cast(Ints, _mm256_dpbusd_avx_epi32(__builtin_bit_cast(__m256i, s),
                                                          __builtin_bit_cast(__m256i, w), _mm256_set1_epi32(x)));
#elif !defined(EIGEN_VECTORIZE_AVX512) && defined(EIGEN_VECTORIZE_AVX2)
  const __m256i pairs = _mm256_maddubs_epi16(__builtin_bit_cast(__m256i, w), _mm256_set1_epi32(x));
  return s + __builtin_bit_cast(Ints, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__ARM_FEATURE_DOTPROD)
  return __builtin_bit_cast(Ints, vdotq_s32(__builtin_bit_cast(int32x4_t, s), __builtin_bit_cast(int8x16_t, w),
                                            vreinterpretq_s8_s32(vdupq_n_s32(x))));
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__aarch64__)
  const int8x16_t a = __builtin_bit_cast(int8x16_t, w), b = vreinterpretq_s8_s32(vdupq_n_s32(x));
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b))), high = vpaddlq_s16(vmull_high_s8(a, b));
  return s + __builtin_bit_cast(Ints, vpaddq_s32(low, high));
#else
  return dot::by_lanes(s, w, x);
#endif
}

/// Computes eq. (1) for signed bytes from −127 to 127, to which with_signed_offset has added the offset.
GATEFOLD_INLINE Ints signed_dot(Ints s, Ints w, std::int32_t x) {
#if defined(GATEFOLD_UNSIGNED_DOT)
  return small_dot(s, w, x);
// The instruction maddubs below multiplies unsigned by signed bytes and adds pairs of products in 16 bits. The unsigned
// factor is |x|, and the signed factor is w · sign(x). The sums do not overflow, because they are at most 2 · 127² <
// 2¹⁵ in absolute value.
#elif defined(EIGEN_VECTORIZE_AVX512) && defined(__AVX512BW__)
  const __m512i all = _mm512_set1_epi32(x), v = __builtin_bit_cast(__m512i, w);
  const __m512i product = _mm512_mask_sub_epi8(v, _mm512_movepi8_mask(all), _mm512_setzero_si512(), v);
  return s + __builtin_bit_cast(
                 Ints, _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_abs_epi8(all), product), _mm512_set1_epi16(1)));
#elif !defined(EIGEN_VECTORIZE_AVX512) && defined(EIGEN_VECTORIZE_AVX2)
  const __m256i all = _mm256_set1_epi32(x), product = _mm256_sign_epi8(__builtin_bit_cast(__m256i, w), all);
  return s + __builtin_bit_cast(
                 Ints, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(all), product), _mm256_set1_epi16(1)));
#else
  return small_dot(s, w, x);
#endif
}

/// Returns table[c] for each byte c, which must be from 0 to 15.
GATEFOLD_INLINE Ints looked_up(const std::uint8_t (&table)[16], Ints codes) {
#if defined(EIGEN_VECTORIZE_AVX512) && defined(__AVX512BW__)
  const __m512i values =
      _mm512_maskz_broadcast_i32x4(packet::all16, _mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return __builtin_bit_cast(Ints, _mm512_shuffle_epi8(values, __builtin_bit_cast(__m512i, codes)));
#elif !defined(EIGEN_VECTORIZE_AVX512) && defined(EIGEN_VECTORIZE_AVX2)
  const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return __builtin_bit_cast(Ints, _mm256_shuffle_epi8(values, __builtin_bit_cast(__m256i, codes)));
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__aarch64__)
  return __builtin_bit_cast(Ints, vqtbl1q_u8(vld1q_u8(table), __builtin_bit_cast(uint8x16_t, codes)));
#else
  std::uint8_t bytes[sizeof(Ints)];
  std::memcpy(bytes, &codes, sizeof(codes));
  for (std::uint8_t& byte : bytes) byte = table[byte];
  std::memcpy(&codes, bytes, sizeof(codes));
  return codes;
#endif
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
