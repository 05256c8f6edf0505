#pragma once

#include <cstdint>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Computes `size` consecutive random numbers of one Philox stream at the same time, beginning with number `first`.
/// They have the same bits as the numbers that gatefold::uniform returns one by one.
///
/// Philox turns a counter into a block of four words of 32 bits, in several rounds. Here a SIMD register holds the same
/// word of several blocks, in lanes of 64 bits whose upper halves are ignored. The multiplication of a round reads the
/// lower halves and writes both words of each product to the lane.
struct PhiloxRun {
  static constexpr int size = 16;

  PhiloxRun(Random at, std::uint64_t first) {
#if defined(EIGEN_VECTORIZE_AVX512) || defined(EIGEN_VECTORIZE_AVX2)
    // Computes several registers alternately, because each round has to wait for the result of its multiplication.
    constexpr int parts = size / Lanes::size;
    Lanes c[parts][4];
    for (int i = 0; i < parts; ++i) {
      alignas(64) std::uint64_t low[Lanes::size];
      for (int j = 0; j < Lanes::size; ++j) low[j] = first + static_cast<std::uint64_t>(i * Lanes::size + j);
      c[i][0] = Lanes::load(low);
      c[i][1] = c[i][0].high();
      c[i][2] = Lanes(at.step);
      c[i][3] = Lanes(at.step >> 32);
    }
    std::uint32_t k0 = static_cast<std::uint32_t>(at.seed.value), k1 = static_cast<std::uint32_t>(at.seed.value >> 32);
    for (int round = 0; round < Philox::rounds; ++round) {
      const Lanes key0(k0), key1(k1);
#pragma GCC unroll 8
      for (int i = 0; i < parts; ++i) {
        const Lanes p0 = c[i][0] * Philox::multiplier_0, p1 = c[i][2] * Philox::multiplier_1;
        c[i][0] = p1.high() ^ c[i][1] ^ key0;
        c[i][1] = p1;
        c[i][2] = p0.high() ^ c[i][3] ^ key1;
        c[i][3] = p0;
      }
      k0 += Philox::weyl_0;
      k1 += Philox::weyl_1;
    }
    for (int i = 0; i < parts; ++i)
      for (int w = 0; w < 2; ++w) c[i][w].store(words_[w] + i * Lanes::size);
#else
    for (int j = 0; j < size; ++j) {
      const Philox::Words c = Philox::block(at.seed.value, first + static_cast<std::uint64_t>(j), at.step);
      for (int w = 0; w < 2; ++w) words_[w][j] = c.w[w];
    }
#endif
  }

  /// Returns random number j of this run. It equals the value of gatefold::uniform for number first + j of the stream.
  template <class T>
  T uniform(int j) const {
    return Philox::uniform<T>(static_cast<std::uint32_t>(words_[0][j]), static_cast<std::uint32_t>(words_[1][j]));
  }

 private:
#if defined(EIGEN_VECTORIZE_AVX512)
  struct Lanes {
    static constexpr int size = 8;
    __m512i v;
    Lanes() = default;
    GATEFOLD_INLINE explicit Lanes(__m512i x) : v(x) {}
    GATEFOLD_INLINE explicit Lanes(std::uint64_t x) : v(_mm512_set1_epi64(static_cast<long long>(x))) {}
    GATEFOLD_INLINE static Lanes load(const std::uint64_t* p) { return Lanes(_mm512_load_si512(p)); }
    GATEFOLD_INLINE void store(std::uint64_t* p) const { _mm512_storeu_si512(p, v); }
    GATEFOLD_INLINE Lanes high() const { return Lanes(_mm512_maskz_srli_epi64(packet::all8, v, 32)); }
    GATEFOLD_INLINE friend Lanes operator^(Lanes a, Lanes b) { return Lanes(_mm512_xor_si512(a.v, b.v)); }
    GATEFOLD_INLINE friend Lanes operator*(Lanes a, std::uint32_t m) {
      return Lanes(_mm512_maskz_mul_epu32(packet::all8, a.v, Lanes(m).v));
    }
  };
#elif defined(EIGEN_VECTORIZE_AVX2)
  struct Lanes {
    static constexpr int size = 4;
    __m256i v;
    Lanes() = default;
    GATEFOLD_INLINE explicit Lanes(__m256i x) : v(x) {}
    GATEFOLD_INLINE explicit Lanes(std::uint64_t x) : v(_mm256_set1_epi64x(static_cast<long long>(x))) {}
    GATEFOLD_INLINE static Lanes load(const std::uint64_t* p) {
      return Lanes(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
    }
    GATEFOLD_INLINE void store(std::uint64_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
    GATEFOLD_INLINE Lanes high() const { return Lanes(_mm256_srli_epi64(v, 32)); }
    GATEFOLD_INLINE friend Lanes operator^(Lanes a, Lanes b) { return Lanes(_mm256_xor_si256(a.v, b.v)); }
    GATEFOLD_INLINE friend Lanes operator*(Lanes a, std::uint32_t m) {
      return Lanes(_mm256_mul_epu32(a.v, Lanes(m).v));
    }
  };
#endif

  std::uint64_t words_[2][size];
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
