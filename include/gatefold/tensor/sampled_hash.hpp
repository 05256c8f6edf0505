#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// A hash that detects whether an array in host memory was replaced. It reads 8-byte words at equal distances, so that
/// its cost does not depend on the size of the array. h is the hash, s the distance (stride) in words:
///
///     h ← rotate(h ⊕ word, 23) · 0x9e3779b97f4a7c15,   words 0, s, 2 s, … and the last one                 (1)
///
/// The stride s is odd, because with an even one all words could come from the same few columns of a matrix.
struct SampledHash {
  std::uint64_t hash = 0;
  std::uint64_t bits = 0;  // bitwise or of all words that were read; 0 if all of them are 0

  /// Adds the array x to the hash. Reads all 8-byte words of x if there are at most `most`, and otherwise about `most`
  /// of them. Does nothing if x is in device memory.
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

/// Checks that backward gets the same batch x as forward. Compares the extents of x and, on host backends, the
/// contents. Builds with assertions read all elements. Other builds read a sample (SampledHash), which detects a
/// different batch or an overwritten x, but can miss a few changed elements. x may be at a different address than in
/// forward.
/// @cost  reads all elements in builds with assertions, and at most 17 words in other builds
struct BatchStamp {
  std::uint64_t hash = 0;      // hash of the batch x; 0 if x was on a device or `take` was not called
  Index items = 0, width = 0;  // extents of the batch x; ids have width 1

  template <class T, int Rank, class B>
  void take(View<const T, Rank, B> x) {
    hash = of(x);
    items = x.extent(0);
    width = width_of(x);
  }
  /// Checks that x is the batch that the last call of `take` has read.
  /// @throws ArgumentError if it is not
  template <class T, int Rank, class B>
  void expect_same(const char* where, View<const T, Rank, B> x) const {
    const Index taken[] = {items, width};
    expect_extents(where, "saved: x of forward", taken, 2, true, {x.extent(0), width_of(x)});
    expect(hash == 0 || hash == of(x), where, "saved", "the values that forward saved for this x",
           "values of another batch, or x has changed since forward");
  }

 private:
  template <class T, int Rank, class B>
  static Index width_of(View<const T, Rank, B> x) {
    return Rank > 1 ? x.extent(Rank - 1) : 1;
  }
  template <class T, int Rank, class B>
  static std::uint64_t of(View<const T, Rank, B> x) {
    if constexpr (!B::is_host) return 0;
    SampledHash of_x;
#ifdef NDEBUG
    of_x.add(x);
#else
    of_x.add(x, std::numeric_limits<std::size_t>::max());
#endif
    return of_x.hash | 1;
  }
};

}  // namespace gatefold
