#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// to[i] = from[i]
inline void widen(const Bfloat16* from, Index n, float* to) {
  Index i = 0;
#if defined(EIGEN_VECTORIZE_AVX512)
  for (; i + 16 <= n; i += 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_si512(to + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
#endif
  for (; i < n; ++i) to[i] = from[i];
}

/// A register of neighbouring weights.
template <class T>
Register<T> load_weights(const T* p) {
  return Register<T>::load(p);
}
inline Register<float> load_weights(const Bfloat16* p) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (Register<float>::is<float, 64>)
    return Register<float>(_mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16)));
#endif
  alignas(64) float wide[Register<float>::size];
  for (int i = 0; i < Register<float>::size; ++i) wide[i] = p[i];
  return Register<float>::load(wide);
}

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
