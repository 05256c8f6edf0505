#pragma once

#include <cmath>

#include "gatefold/core/config.hpp"

namespace gatefold::fn {

/// What adaptive rules divide by, and its slope in v >= 0.
///
///     r(v) = √v + ε,   or √(v + ε) with ε inside                                                        (1)
///
/// The slope at √0 is infinite; v = 0 needs u = 0, where the rules' product of slope and u is 0, so that is what comes
/// out: slope 0.
template <class T>
struct AdaptiveRoot {
  T epsilon;
  bool inside;
  GATEFOLD_HD T value(T v) const { return inside ? std::sqrt(v + epsilon) : std::sqrt(v) + epsilon; }
  GATEFOLD_HD T slope(T v) const {
    const T root = std::sqrt(inside ? v + epsilon : v);
    return root > 0 ? T(0.5) / root : T(0);
  }
};

}  // namespace gatefold::fn
