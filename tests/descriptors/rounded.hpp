#pragma once

#include <doctest/doctest.h>

#include <cstdint>

#include "descriptors/composition.hpp"
#include "support/rounding_check.hpp"

namespace gatefold::rows {

/// Calls f(rounded) with the rounded form of a composition (see rounding_check.hpp). Its items are routed alike
/// whichever way values close to a rounding border are rounded.
/// @tparam B  RoundedDouble or RoundedSlots
template <class B, class C, class F>
void with_rounded(const C& c, const F& f) {
  constexpr Size size{.width = 6, .tokens = 2, .hidden = 7, .heads = 2, .experts = 5, .sequence = 7};
  for (std::uint64_t seed = 1;; ++seed) {
    REQUIRE(seed <= 5);  // if routing depended on rounding for all seeds, something would be wrong
    using Layer = decltype(c.make(size));
    const test::RoundedLayer<Layer, B> rounded(
        c.make(size), test::Case{.items = 2 * size.sequence, .length = size.sequence, .seed = {seed}},
        c.most(&Facts::moved));
    if (rounded.steady()) return f(rounded);
  }
}

}  // namespace gatefold::rows
