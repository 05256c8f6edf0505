#pragma once

#include <cmath>
#include <cstdint>

#include "gatefold/core/types.hpp"

namespace gatefold {

/// A random number generator with a counter instead of a state: Philox4x32 with ten rounds. The same (key, counter)
/// gives the same four words on every backend and every thread. Each round replaces the counter's words r0, l0, r1, l1,
/// and then adds the Weyl constants to the key's words k0, k1:
///
///     r0, l0, r1, l1 ← hi(M1 r1) ⊕ l0 ⊕ k0, lo(M1 r1), hi(M0 r0) ⊕ l1 ⊕ k1, lo(M0 r0)               (1)
///
/// M0 and M1 are the multipliers, hi and lo the upper and lower 32 bits of a product.
/// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
struct Philox {
  static constexpr int rounds = 10;
  static constexpr std::uint32_t multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u;
  static constexpr std::uint32_t weyl_0 = 0x9E3779B9u, weyl_1 = 0xBB67AE85u;
  /// The result for one counter: four random words of 32 bits.
  struct Words {
    std::uint32_t w[4];
  };

  GATEFOLD_HD static constexpr Words block(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
    using Word = std::uint32_t;
    Word r0 = Word(counter_low), l0 = Word(counter_low >> 32), r1 = Word(counter_high), l1 = Word(counter_high >> 32);
    Word k0 = Word(key), k1 = Word(key >> 32);
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t p0 = std::uint64_t(multiplier_0) * r0, p1 = std::uint64_t(multiplier_1) * r1;
      r0 = Word(p1 >> 32) ^ l0 ^ k0;
      l0 = Word(p1);
      r1 = Word(p0 >> 32) ^ l1 ^ k1;
      l1 = Word(p0);
      k0 += weyl_0;
      k1 += weyl_1;
    }
    return {{r0, l0, r1, l1}};
  }
  /// Converts two random words of 32 bits to a number in [0, 1): float uses the upper 24 bits of w1, and double uses
  /// all 32 bits of w1 and the upper 21 bits of w0.
  template <class T>
  GATEFOLD_HD static T uniform(std::uint32_t w0, std::uint32_t w1) {
    if constexpr (sizeof(T) == 4) {
      return static_cast<T>(w1 >> 8) * T(0x1p-24);
    } else {
      return static_cast<T>(((static_cast<std::uint64_t>(w1) << 32) | w0) >> 11) * T(0x1p-53);
    }
  }
};

/// Returns the i-th random number of the stream (seed, step), uniform in [0, 1), with 53 bits in double and 24 in
/// float.
template <class T>
GATEFOLD_HD T uniform(Seed seed, std::uint64_t step, std::uint64_t i) {
  const Philox::Words c = Philox::block(seed.value, i, step);
  return Philox::uniform<T>(c.w[0], c.w[1]);
}

/// Returns the i-th random number of the stream (seed, step) from N(0, 1) (Box and Muller 1958, computed in double).
template <class T>
GATEFOLD_HD T normal(Seed seed, std::uint64_t step, std::uint64_t i) {
  const Philox::Words c = Philox::block(seed.value, i, step);
  const double u = (static_cast<double>(c.w[0]) + 0.5) * 0x1p-32;
  const double v = static_cast<double>(c.w[1]) * 0x1p-32;
  return static_cast<T>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586477 * v));
}

}  // namespace gatefold
