#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/sampled_hash.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// Detects whether backward gets the batch x of forward: by its extents and, on host backends, by its contents. Builds
/// with assertions read all elements. Other builds read a sample (SampledHash), which detects another batch or an
/// overwritten x, but possibly not a few changed elements. x may be in other memory.
/// @cost  one read of the elements in builds with assertions, of at most 17 words in others
struct BatchStamp {
  std::uint64_t hash = 0;      // 0 if x was on a device or take was not called
  Index items = 0, width = 0;  // of x; ids are 1 wide

  template <class T, int Rank, class B>
  void take(View<const T, Rank, B> x) {
    hash = of(x);
    items = x.extent(0);
    width = width_of(x);
  }
  /// @throws ArgumentError unless x is the x of take
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
