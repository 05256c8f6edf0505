#pragma once

#include <limits>

#include "gatefold/backend/math.hpp"

namespace gatefold::functor {

/// The divisor r(v) of the update rules Adam and RmsProp, and its slope r′(v) = dr/dv, for a moving average of squares
/// v >= 0.
///
///     r(v) = √v + ε,   or √(v + ε) if `inside` is true                                                  (1)
///
/// The slope of √v at v = 0 is infinite, but the function `slope` returns 0 there. The rules only use the slope times
/// u, the output of the branch, and v = 0 implies u = 0.
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
  /// Returns (w r − 2 r′ (w v − rest)) / r for numbers w and `rest`, with r = r(v) and r′ = r′(v). This is a factor in
  /// the gradients of the rules Adam and RmsProp. Terms of this expression cancel. Equation (2) is the same factor
  /// without these terms, so that it has no cancellation error:
  ///
  ///     (w ε + rest / √v) / r,   or (w ε + rest) / r² if `inside`                                     (2)
  ///
  /// Returns 0 if v has overflowed, for any value of `rest`.
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
