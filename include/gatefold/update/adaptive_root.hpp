#pragma once

#include <limits>

#include "gatefold/backend/math.hpp"
#include "gatefold/core/config.hpp"

namespace gatefold::functor {

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
  template <class V>
  GATEFOLD_HD V value(V v) const {
    using functor::math::sqrt;
    return inside ? sqrt(v + epsilon) : sqrt(v) + epsilon;
  }
  template <class V>
  GATEFOLD_HD V slope(V v) const {
    using functor::math::sqrt;
    using functor::math::where_positive;
    const V root = sqrt(inside ? v + epsilon : v);
    return where_positive(root, T(0.5) / root, V(0));
  }
  /// (w r − 2 r′ (w v − rest)) / r, without what cancels:
  ///
  ///     (w ε + rest / √v) / r,   or (w ε + rest) / r² with ε inside                                   (2)
  ///
  /// and 0 where v has overflowed, whatever rest is.
  template <class V>
  GATEFOLD_HD V passed(V v, T w, V rest) const {
    using functor::math::sqrt;
    using functor::math::where_positive;
    const V r = value(v);
    const V factor =
        inside ? (w * epsilon + rest) / (r * r) : (w * epsilon + where_positive(sqrt(v), rest / sqrt(v), V(0))) / r;
    return where_positive(V(most) - v, factor, V(0));
  }

 private:
  static constexpr T most = std::numeric_limits<T>::max();
};

}  // namespace gatefold::functor
