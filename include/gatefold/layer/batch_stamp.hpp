#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/sampled_hash.hpp"

namespace gatefold {

/// Checks that backward gets the same batch x as forward. Compares the extents of x and, on host backends, the
/// contents. Builds with assertions read all elements. Other builds read a sample (SampledHash), which detects a
/// different batch or an overwritten x, but can miss a few changed elements. x may have moved to different memory.
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
