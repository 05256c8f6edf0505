#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/core/config.hpp"

/// SIMD vectors: the vector types of compilers, in the width that Eigen chooses, and functions for vector instructions
/// that have no operator in C++.
///
/// Eigen has such functions too, but they are inline functions with the same names in object files compiled for
/// different instruction sets. A linker would keep one copy of each function for all of these files. The functions here
/// are inside the inline namespace of the instruction set.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu::packet {

#if defined(EIGEN_VECTORIZE_AVX512)
using Floats = __m512;
using Doubles = __m512d;
#elif defined(EIGEN_VECTORIZE_AVX)
using Floats = __m256;
using Doubles = __m256d;
#elif defined(EIGEN_VECTORIZE_SSE2)
using Floats = __m128;
using Doubles = __m128d;
#elif defined(EIGEN_VECTORIZE)
using Floats = Eigen::internal::packet_traits<float>::type;
using Doubles = Eigen::internal::packet_traits<double>::type;
#else
using Floats = float;
using Doubles = double;
#endif
template <class T>
struct VectorOf {
  using Type = T;
};
template <>
struct VectorOf<float> {
  using Type = Floats;
};
template <>
struct VectorOf<double> {
  using Type = Doubles;
};
/// The type of a SIMD vector of T, or T itself if the target has no vector of T.
template <class T>
using Of = typename VectorOf<T>::Type;

template <class T>
inline constexpr int size = static_cast<int>(sizeof(Of<T>) / sizeof(T));

/// True if A is T, and a SIMD vector of T has `bytes` bytes. Used to select the intrinsics of one vector type.
template <class T, class A, int bytes>
inline constexpr bool is = std::is_same_v<A, T>&& size<T> != 1 && size<T> * sizeof(T) == bytes;

#if defined(EIGEN_VECTORIZE_AVX512)
// Masks that select all lanes of an AVX-512 vector. They are passed to the zeroing (maskz) forms of intrinsics. g++ 12
// defines many of the plain forms with an uninitialized vector, and warns about it in the functions into which they are
// inlined (GCC bug 105593). The zeroing forms compile to the same instructions, without a warning. A pragma around the
// headers that disables this warning has no effect on precompiled headers and with -flto.
inline constexpr __mmask8 all8 = 0xff;
inline constexpr __mmask16 all16 = 0xffff;
#endif

/// A SIMD vector that can be loaded from and stored to any address, without alignment.
template <class T>
struct [[gnu::packed, gnu::may_alias]] Unaligned {
  Of<T> packet;
};
template <class T>
GATEFOLD_INLINE Of<T> load(const T* p) {
  return reinterpret_cast<const Unaligned<T>*>(p)->packet;
}
template <class T>
GATEFOLD_INLINE void store(T* p, const Of<T>& v) {
  reinterpret_cast<Unaligned<T>*>(p)->packet = v;
}

#if defined(EIGEN_VECTORIZE_SSE2) && !defined(__clang__)
GATEFOLD_INLINE void stream_vector(float* p, __m128 v) { _mm_stream_ps(p, v); }
GATEFOLD_INLINE void stream_vector(double* p, __m128d v) { _mm_stream_pd(p, v); }
#if defined(EIGEN_VECTORIZE_AVX)
GATEFOLD_INLINE void stream_vector(float* p, __m256 v) { _mm256_stream_ps(p, v); }
GATEFOLD_INLINE void stream_vector(double* p, __m256d v) { _mm256_stream_pd(p, v); }
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
GATEFOLD_INLINE void stream_vector(float* p, __m512 v) { _mm512_stream_ps(p, v); }
GATEFOLD_INLINE void stream_vector(double* p, __m512d v) { _mm512_stream_pd(p, v); }
#endif
#endif
/// Stores v at the aligned address p, with a non-temporal store if the target has one. Use it for values that are not
/// read soon. The values are visible to other threads after end_of_stream().
template <class T>
GATEFOLD_INLINE void stream(T* p, const Of<T>& v) {
#if defined(__clang__)
  __builtin_nontemporal_store(v, reinterpret_cast<Of<T>*>(p));
#else
  if constexpr (requires { stream_vector(p, v); }) {
    stream_vector(p, v);
  } else {
    store(p, v);
  }
#endif
}
/// Makes the values that stream() has written with non-temporal stores visible to other threads.
GATEFOLD_INLINE void end_of_stream() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

template <class T, int... At>
GATEFOLD_INLINE Of<T> filled(T v, std::integer_sequence<int, At...>) {
  return Of<T>{((void)At, v)...};
}
/// Returns a vector with v in every lane.
template <class T>
GATEFOLD_INLINE Of<T> filled(T v) {
  return filled<T>(v, std::make_integer_sequence<int, size<T>>{});
}
/// Returns a vector with the lanes 0, 1, 2, …
template <class T>
GATEFOLD_INLINE Of<T> lane_numbers() {
  return []<int... At>(std::integer_sequence<int, At...>) { return Of<T>{static_cast<T>(At)...}; }
  (std::make_integer_sequence<int, size<T>>{});
}

/// Returns a · b + c, rounded once if the target has a fused multiply-add instruction, and twice otherwise.
template <class T>
GATEFOLD_INLINE Of<T> madd(const Of<T>& a, const Of<T>& b, const Of<T>& c) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (is<T, float, 64>) return _mm512_fmadd_ps(a, b, c);
  if constexpr (is<T, double, 64>) return _mm512_fmadd_pd(a, b, c);
#endif
#if defined(EIGEN_VECTORIZE_FMA)
  if constexpr (is<T, float, 32>) return _mm256_fmadd_ps(a, b, c);
  if constexpr (is<T, double, 32>) return _mm256_fmadd_pd(a, b, c);
#endif
#if defined(EIGEN_VECTORIZE_NEON) && defined(__ARM_FEATURE_FMA)
  if constexpr (is<T, float, 16>) return vfmaq_f32(c, a, b);
#endif
#if defined(EIGEN_VECTORIZE_NEON) && defined(__aarch64__)
  if constexpr (is<T, double, 16>) return vfmaq_f64(c, a, b);
#endif
  return a * b + c;
}

/// Returns v unchanged, and hides from the compiler how v was computed. Otherwise compilers fuse a product with a later
/// sum in some copies of an expression and not in others, which changes rounding. With -ffast-math they also turn
/// x + a - b into x + (a - b).
template <class P>
GATEFOLD_INLINE P sealed(P v) {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__)) && defined(__SSE2__)
  __asm__("" : "+v"(v));
#elif defined(__GNUC__) && defined(__aarch64__)
  __asm__("" : "+w"(v));
#endif
  return v;
}

/// Returns b if b < a, else a. If a is NaN, the result is NaN; if only b is NaN, the result is a.
template <class T>
GATEFOLD_INLINE Of<T> min(const Of<T>& a, const Of<T>& b) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (is<T, float, 64>) return _mm512_maskz_min_ps(all16, b, a);
  if constexpr (is<T, double, 64>) return _mm512_maskz_min_pd(all8, b, a);
#endif
#if defined(EIGEN_VECTORIZE_AVX)
  if constexpr (is<T, float, 32>) return _mm256_min_ps(b, a);
  if constexpr (is<T, double, 32>) return _mm256_min_pd(b, a);
#endif
#if defined(EIGEN_VECTORIZE_SSE2)
  if constexpr (is<T, float, 16>) return _mm_min_ps(b, a);
  if constexpr (is<T, double, 16>) return _mm_min_pd(b, a);
#endif
  return b < a ? b : a;
}

/// Returns |v|.
template <class T>
GATEFOLD_INLINE Of<T> abs(const Of<T>& v) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (is<T, float, 64>) return _mm512_abs_ps(v);
  if constexpr (is<T, double, 64>) return _mm512_abs_pd(v);
#endif
  if constexpr (size<T> == 1) {
    return std::abs(v);
  } else {
    using Bits = decltype(v < v);
    return reinterpret_cast<Of<T>>(reinterpret_cast<Bits>(v) & ~reinterpret_cast<Bits>(filled(T(-0.0))));
  }
}

/// Returns the square root, correctly rounded.
template <class T>
GATEFOLD_INLINE Of<T> sqrt(const Of<T>& v) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (is<T, float, 64>) return _mm512_maskz_sqrt_ps(all16, v);
  if constexpr (is<T, double, 64>) return _mm512_maskz_sqrt_pd(all8, v);
#endif
#if defined(EIGEN_VECTORIZE_AVX)
  if constexpr (is<T, float, 32>) return _mm256_sqrt_ps(v);
  if constexpr (is<T, double, 32>) return _mm256_sqrt_pd(v);
#endif
#if defined(EIGEN_VECTORIZE_SSE2)
  if constexpr (is<T, float, 16>) return _mm_sqrt_ps(v);
  if constexpr (is<T, double, 16>) return _mm_sqrt_pd(v);
#endif
  if constexpr (size<T> == 1) {
    return std::sqrt(v);
  } else {
    Of<T> r = v;
    for (int i = 0; i < size<T>; ++i) r[i] = std::sqrt(v[i]);
    return r;
  }
}

/// Returns v · 2^n for whole numbers n. The result is rounded only once if it is a normal number and |n| <= 252
/// (2044 in double).
template <class T>
GATEFOLD_INLINE Of<T> scaled(const Of<T>& v, const Of<T>& n) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (is<T, float, 64>) return _mm512_maskz_scalef_ps(all16, v, n);
  if constexpr (is<T, double, 64>) return _mm512_maskz_scalef_pd(all8, v, n);
#endif
  if constexpr (size<T> == 1) {
    return std::isnan(n) ? n : std::ldexp(v, static_cast<int>(n));
  } else {
    // Adding 1.5 · 2^m, with m mantissa bits in T, rounds a number to an integer and leaves it in the last bits of the
    // sum.
    using Bits = decltype(v < v);
    constexpr int mantissa = std::is_same_v<T, float> ? 23 : 52, bias = std::is_same_v<T, float> ? 127 : 1023;
    constexpr T large = std::is_same_v<T, float> ? T(0x1.8p23) : T(0x1.8p52);
    const auto power = [](const Of<T>& e) {
      return reinterpret_cast<Of<T>>(reinterpret_cast<Bits>(e + filled(T(large + bias))) << mantissa);
    };
    const Of<T> half = sealed(sealed(n * filled(T(0.5)) + filled(large)) - filled(large));
    // Multiplies by 2^n in two steps, because 2^n can overflow even if v · 2^n does not.
    return sealed(v * power(half)) * power(sealed(n - half));
  }
}

// sum_of returns the sum of the lanes of a SIMD vector, and largest_of returns the largest lane. Both combine the two
// halves of the vector, then the halves of the result, and so on, until one lane is left. The last four lanes of an
// AVX-512 vector of doubles are an exception: sum_of adds them as pairs of neighbours.
#if defined(EIGEN_VECTORIZE_SSE2)
GATEFOLD_INLINE float sum_of(__m128 v) {
  const __m128 half = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
GATEFOLD_INLINE double sum_of(__m128d v) { return _mm_cvtsd_f64(_mm_add_sd(v, _mm_unpackhi_pd(v, v))); }
GATEFOLD_INLINE float largest_of(__m128 v) {
  const __m128 half = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}
GATEFOLD_INLINE double largest_of(__m128d v) { return _mm_cvtsd_f64(_mm_max_sd(v, _mm_unpackhi_pd(v, v))); }
#endif
#if defined(EIGEN_VECTORIZE_AVX)
GATEFOLD_INLINE float sum_of(__m256 v) {
  return sum_of(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
}
GATEFOLD_INLINE double sum_of(__m256d v) {
  return sum_of(_mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1)));
}
GATEFOLD_INLINE float largest_of(__m256 v) {
  return largest_of(_mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
}
GATEFOLD_INLINE double largest_of(__m256d v) {
  return largest_of(_mm_max_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1)));
}
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
GATEFOLD_INLINE __m256d lower(__m512d v) { return _mm512_maskz_extractf64x4_pd(all8, v, 0); }
GATEFOLD_INLINE __m256d upper(__m512d v) { return _mm512_maskz_extractf64x4_pd(all8, v, 1); }
GATEFOLD_INLINE __m256 lower(__m512 v) { return _mm256_castpd_ps(lower(_mm512_castps_pd(v))); }
GATEFOLD_INLINE __m256 upper(__m512 v) { return _mm256_castpd_ps(upper(_mm512_castps_pd(v))); }
GATEFOLD_INLINE float sum_of(__m512 v) { return sum_of(_mm256_add_ps(lower(v), upper(v))); }
GATEFOLD_INLINE float largest_of(__m512 v) { return largest_of(_mm256_max_ps(lower(v), upper(v))); }
GATEFOLD_INLINE double sum_of(__m512d v) {
  const __m256d half = _mm256_add_pd(lower(v), upper(v));
  return sum_of(_mm256_castpd256_pd128(half)) + sum_of(_mm256_extractf128_pd(half, 1));
}
GATEFOLD_INLINE double largest_of(__m512d v) { return largest_of(_mm256_max_pd(lower(v), upper(v))); }
#endif

/// Returns the sum of all lanes of a SIMD vector.
/// @order  adds the second half of the lanes to the first, and repeats this until one lane is left. On AVX-512, the
///         last four doubles are added as pairs of neighbours
template <class T>
GATEFOLD_INLINE T sum(const Of<T>& v) {
  if constexpr (requires { sum_of(v); }) {
    return sum_of(v);
  } else {
    T all[size<T>];
    store(all, v);
    for (int half = size<T> / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) all[i] += all[i + half];
    return all[0];
  }
}
/// Returns the value of the largest lane of a SIMD vector.
template <class T>
GATEFOLD_INLINE T largest(const Of<T>& v) {
  if constexpr (requires { largest_of(v); }) {
    return largest_of(v);
  } else {
    T all[size<T>];
    store(all, v);
    for (int half = size<T> / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) all[i] = all[i] < all[i + half] ? all[i + half] : all[i];
    return all[0];
  }
}

// Shuffles of two SIMD vectors a and b, which are the steps of a matrix transposition. `low` and `high` interleave the
// elements of the lower or upper halves of a and b, in every 16 bytes. `low_pair` and `high_pair` return the lower or
// upper pairs of a, then of b, in every 16 bytes. The functions with `part` in their names move parts of 16 bytes.
#if defined(EIGEN_VECTORIZE_SSE2)
GATEFOLD_INLINE __m128 low(__m128 a, __m128 b) { return _mm_unpacklo_ps(a, b); }
GATEFOLD_INLINE __m128 high(__m128 a, __m128 b) { return _mm_unpackhi_ps(a, b); }
GATEFOLD_INLINE __m128 low_pair(__m128 a, __m128 b) { return _mm_movelh_ps(a, b); }
GATEFOLD_INLINE __m128 high_pair(__m128 a, __m128 b) { return _mm_movehl_ps(b, a); }
GATEFOLD_INLINE __m128d low(__m128d a, __m128d b) { return _mm_unpacklo_pd(a, b); }
GATEFOLD_INLINE __m128d high(__m128d a, __m128d b) { return _mm_unpackhi_pd(a, b); }
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__aarch64__)
GATEFOLD_INLINE float32x4_t low(float32x4_t a, float32x4_t b) { return vzip1q_f32(a, b); }
GATEFOLD_INLINE float32x4_t high(float32x4_t a, float32x4_t b) { return vzip2q_f32(a, b); }
GATEFOLD_INLINE float32x4_t low_pair(float32x4_t a, float32x4_t b) {
  return vcombine_f32(vget_low_f32(a), vget_low_f32(b));
}
GATEFOLD_INLINE float32x4_t high_pair(float32x4_t a, float32x4_t b) {
  return vcombine_f32(vget_high_f32(a), vget_high_f32(b));
}
GATEFOLD_INLINE float64x2_t low(float64x2_t a, float64x2_t b) { return vzip1q_f64(a, b); }
GATEFOLD_INLINE float64x2_t high(float64x2_t a, float64x2_t b) { return vzip2q_f64(a, b); }
#endif
#if defined(EIGEN_VECTORIZE_AVX)
GATEFOLD_INLINE __m256 low(__m256 a, __m256 b) { return _mm256_unpacklo_ps(a, b); }
GATEFOLD_INLINE __m256 high(__m256 a, __m256 b) { return _mm256_unpackhi_ps(a, b); }
GATEFOLD_INLINE __m256 low_pair(__m256 a, __m256 b) { return _mm256_shuffle_ps(a, b, 0x44); }
GATEFOLD_INLINE __m256 high_pair(__m256 a, __m256 b) { return _mm256_shuffle_ps(a, b, 0xee); }
GATEFOLD_INLINE __m256d low(__m256d a, __m256d b) { return _mm256_unpacklo_pd(a, b); }
GATEFOLD_INLINE __m256d high(__m256d a, __m256d b) { return _mm256_unpackhi_pd(a, b); }
GATEFOLD_INLINE __m256 low_part(__m256 a, __m256 b) { return _mm256_permute2f128_ps(a, b, 0x20); }
GATEFOLD_INLINE __m256 high_part(__m256 a, __m256 b) { return _mm256_permute2f128_ps(a, b, 0x31); }
GATEFOLD_INLINE __m256d low_part(__m256d a, __m256d b) { return _mm256_permute2f128_pd(a, b, 0x20); }
GATEFOLD_INLINE __m256d high_part(__m256d a, __m256d b) { return _mm256_permute2f128_pd(a, b, 0x31); }
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
GATEFOLD_INLINE __m512 low(__m512 a, __m512 b) { return _mm512_maskz_unpacklo_ps(all16, a, b); }
GATEFOLD_INLINE __m512 high(__m512 a, __m512 b) { return _mm512_maskz_unpackhi_ps(all16, a, b); }
GATEFOLD_INLINE __m512 low_pair(__m512 a, __m512 b) { return _mm512_maskz_shuffle_ps(all16, a, b, 0x44); }
GATEFOLD_INLINE __m512 high_pair(__m512 a, __m512 b) { return _mm512_maskz_shuffle_ps(all16, a, b, 0xee); }
GATEFOLD_INLINE __m512d low(__m512d a, __m512d b) { return _mm512_maskz_unpacklo_pd(all8, a, b); }
GATEFOLD_INLINE __m512d high(__m512d a, __m512d b) { return _mm512_maskz_unpackhi_pd(all8, a, b); }
/// Shuffles of two AVX-512 vectors a and b in parts of 16 bytes, for a transposition. They return two parts of a, then
/// the same two parts of b: parts 0 and 1 (low_parts), 2 and 3 (high_parts), 0 and 2 (even_parts), or 1 and 3
/// (odd_parts).
GATEFOLD_INLINE __m512 low_parts(__m512 a, __m512 b) { return _mm512_maskz_shuffle_f32x4(all16, a, b, 0x44); }
GATEFOLD_INLINE __m512 high_parts(__m512 a, __m512 b) { return _mm512_maskz_shuffle_f32x4(all16, a, b, 0xee); }
GATEFOLD_INLINE __m512 even_parts(__m512 a, __m512 b) { return _mm512_maskz_shuffle_f32x4(all16, a, b, 0x88); }
GATEFOLD_INLINE __m512 odd_parts(__m512 a, __m512 b) { return _mm512_maskz_shuffle_f32x4(all16, a, b, 0xdd); }
GATEFOLD_INLINE __m512d low_parts(__m512d a, __m512d b) { return _mm512_maskz_shuffle_f64x2(all8, a, b, 0x44); }
GATEFOLD_INLINE __m512d high_parts(__m512d a, __m512d b) { return _mm512_maskz_shuffle_f64x2(all8, a, b, 0xee); }
GATEFOLD_INLINE __m512d even_parts(__m512d a, __m512d b) { return _mm512_maskz_shuffle_f64x2(all8, a, b, 0x88); }
GATEFOLD_INLINE __m512d odd_parts(__m512d a, __m512d b) { return _mm512_maskz_shuffle_f64x2(all8, a, b, 0xdd); }
#endif

/// Transposes in place a square matrix that is stored as `size` SIMD vectors: swaps rows[i][j] and rows[j][i].
template <class T>
GATEFOLD_INLINE void transpose(Of<T>* rows) {
  constexpr int n = size<T>;
#if defined(EIGEN_VECTORIZE_SSE2) || (defined(EIGEN_VECTORIZE_NEON) && defined(__aarch64__))
  if constexpr (n > 1) {
    constexpr int part = 16 / sizeof(T), parts = n / part;
    Of<T> t[std::size_t{n}];
    for (int i = 0; i < n; i += 2) {
      t[i] = low(rows[i], rows[i + 1]);
      t[i + 1] = high(rows[i], rows[i + 1]);
    }
    if constexpr (part == 4)
      for (int i = 0; i < n; i += 4) {
        const Of<T> a = t[i], b = t[i + 1], c = t[i + 2], d = t[i + 3];
        t[i] = low_pair(a, c);
        t[i + 1] = high_pair(a, c);
        t[i + 2] = low_pair(b, d);
        t[i + 3] = high_pair(b, d);
      }
    // An intermediate vector t[i] consists of parts of 16 bytes, with `part` elements each. Part p of t[part · q + j]
    // is part q of row part · p + j of the transposed matrix.
    for (int j = 0; j < part; ++j) {
      if constexpr (parts == 1) rows[j] = t[j];
      if constexpr (parts == 2) {
        rows[j] = low_part(t[j], t[part + j]);
        rows[part + j] = high_part(t[j], t[part + j]);
      }
      if constexpr (parts == 4) {
        const Of<T> a = low_parts(t[j], t[part + j]), b = high_parts(t[j], t[part + j]);
        const Of<T> c = low_parts(t[2 * part + j], t[3 * part + j]), d = high_parts(t[2 * part + j], t[3 * part + j]);
        rows[j] = even_parts(a, c);
        rows[part + j] = odd_parts(a, c);
        rows[2 * part + j] = even_parts(b, d);
        rows[3 * part + j] = odd_parts(b, d);
      }
    }
    return;
  }
#endif
  if constexpr (n > 1)
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < i; ++j) {
        const T v = rows[i][j];
        rows[i][j] = rows[j][i];
        rows[j][i] = v;
      }
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu::packet
