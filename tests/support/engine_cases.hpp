#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/bounded.hpp"

/// Random cases for the CPU engine. One seed determines a case. bounded.hpp has exact results with error bounds.
namespace gatefold::engine_cases {

using support::apply;
using support::Bounded;
using support::BoundedSum;
using support::unit_roundoff;
using support::within;

/// Makes all random choices of one case.
class Choice {
 public:
  explicit Choice(std::uint64_t seed) : state_(seed) {}
  Index below(Index n) { return static_cast<Index>(next() % static_cast<std::uint64_t>(n)); }
  Index from(Index least, Index most) { return least + below(most - least + 1); }
  bool one_in(Index n) { return below(n) == 0; }
  template <std::size_t N>
  Index of(const std::array<Index, N>& values) {
    return values[static_cast<std::size_t>(below(static_cast<Index>(N)))];
  }
  template <class T>
  std::vector<T> numbers(Index n) {
    std::vector<T> x(static_cast<std::size_t>(n));
    for (T& v : x) v = static_cast<T>(static_cast<double>(next() >> 11) * 0x1p-52 - 1);
    return x;
  }

 private:
  /// SplitMix64 (Steele et al. 2014). Most random numbers are operands. Tried: the generators of the standard library;
  /// they took a fifth of the time of a test.
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

/// Random slots for a random number of experts. The loads are even or skewed, and some experts can have no slots. The
/// slots read items in any order.
struct Slots {
  std::vector<Index> offsets{0}, rows;
  Index items = 0, spare = 0;

  /// @param most  the largest number of slots of an expert, except in cases in which each expert has at most 28 slots
  Slots(Choice& choose, Index most) {
    const Index experts = choose.one_in(3) ? choose.from(8, 24) : choose.from(1, 9);
    const Index mode = choose.below(6), favoured = choose.below(experts);
    for (Index e = 0; e < experts; ++e) {
      Index n = 0;
      if (mode == 0) n = choose.from(0, most);
      if (mode == 1) n = choose.from(0, std::min<Index>(most, 40));  // some tiles each
      if (mode == 2) n = e == favoured ? most : choose.from(0, 3);   // one expert has nearly all slots
      if (mode == 3)
        n = choose.one_in(2) ? 0 : choose.from(1, std::min<Index>(most, 9));  // few slots, many experts without any
      if (mode == 4) n = choose.from(std::min<Index>(most, 9), std::min<Index>(most, 70));
      if (mode == 5) n = choose.one_in(4) ? choose.from(7, 28) : choose.from(1, 6);  // hardly more than a tile
      offsets.push_back(offsets.back() + n);
    }
    items = count() / choose.from(1, 2) + 1;
    spare = choose.one_in(3) ? choose.from(1, 20) : 0;  // the host allocates for more slots than are used
    for (Index s = 0; s < count() + spare; ++s) rows.push_back(choose.below(items));
  }
  Index count() const { return offsets.back(); }
  Index experts() const { return static_cast<Index>(offsets.size()) - 1; }
  Index rows_of(Index e) const { return offsets[std::size_t(e) + 1] - offsets[std::size_t(e)]; }
  template <class B = Cpu>
  Groups<B> groups() const {
    return {offsets, rows, count() + spare};
  }
  /// Returns the expert of each slot.
  std::vector<Index> owners() const {
    std::vector<Index> e(static_cast<std::size_t>(count()));
    for (Index i = 0; i < experts(); ++i)
      std::fill(e.begin() + offsets[std::size_t(i)], e.begin() + offsets[std::size_t(i) + 1], i);
    return e;
  }
};

template <class T>
bool same_bits(const T* a, const T* b, Index n) {
  return n == 0 || std::memcmp(a, b, static_cast<std::size_t>(n) * sizeof(T)) == 0;
}
template <class T, int R, class B>
bool same_bits(const Tensor<T, R, B>& a, const Tensor<T, R, B>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

}  // namespace gatefold::engine_cases
