#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// A hash of 8-byte words at equal distances in host memory. It detects that contents were replaced, and its cost does
/// not depend on their size.
///
///     h ← rotate(h ⊕ word, 23) · 0x9e3779b97f4a7c15,   words 0, s, 2 s, … and the last one                 (1)
///
/// The stride s is odd, because an even one could read the same columns of every row.
struct SampledHash {
  std::uint64_t hash = 0;
  std::uint64_t bits = 0;  // bitwise or of all words that were read; 0 if the elements are 0

  /// Adds x to the hash. Reads all words of x if it has at most `most` words. Does nothing on a device.
  template <class T, int Rank, class B>
  void add(View<const T, Rank, B> x, std::size_t most = 16) {
    if constexpr (B::is_host) {
      const char* const from = reinterpret_cast<const char*>(x.data());
      const std::size_t bytes = static_cast<std::size_t>(x.size()) * sizeof(T), words = bytes / 8;
      hash = std::rotl(hash ^ bytes, 23) * 0x9e3779b97f4a7c15u;
      const std::size_t stride = words > most ? ((words - 1) / most + 1) | 1 : 1;
      for (std::size_t i = 0; i < words; i += stride) add_word(from + i * 8, 8);
      if (bytes > 0) add_word(from + (words > 0 ? bytes - 8 : 0), words > 0 ? 8 : bytes);
    }
  }

 private:
  void add_word(const char* from, std::size_t bytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, bytes);
    hash = std::rotl(hash ^ word, 23) * 0x9e3779b97f4a7c15u;
    bits |= word;
  }
};

}  // namespace gatefold
