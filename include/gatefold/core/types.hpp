#pragma once

#include <cstdint>
#include <limits>

#include "gatefold/core/config.hpp"

namespace gatefold {

/// Sizes, offsets and expert ids. 64 bits, so that N·K·D never overflows.
using Index = std::int64_t;

/// The `ignore` of losses and metrics that ignore no label.
inline constexpr Index ignore_none = std::numeric_limits<Index>::min();

/// ⌈a / b⌉ of counts
template <class A, class B>
GATEFOLD_HD constexpr auto divide_up(A a, B b) {
  return (a + b - 1) / b;
}

/// Bijective 64-bit mixing (finaliser of splitmix64, Steele et al. 2014).
GATEFOLD_HD constexpr std::uint64_t mix64(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// The origin of a stream of random numbers. `fork(k)` gives independent streams for parts, layers, steps.
struct Seed {
  std::uint64_t value = 0;

  GATEFOLD_HD constexpr Seed fork(std::uint64_t k) const { return {mix64(value ^ mix64(k + 1))}; }
  friend constexpr bool operator==(const Seed&, const Seed&) = default;
};

/// A place in a stream: what noisy policies take as an extra input. Same place, same numbers.
struct Random {
  Seed seed{};
  std::uint64_t step = 0;

  GATEFOLD_HD constexpr Random at(Index layer) const { return {seed.fork(static_cast<std::uint64_t>(layer)), step}; }
};

}  // namespace gatefold
