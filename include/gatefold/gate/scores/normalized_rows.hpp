#pragma once

#include <cmath>

#include "gatefold/tensor/view.hpp"

/// Functors that scale rows of a matrix to length 1, and the gradients of this operation. Scores that compare
/// directions use them.
namespace gatefold {

/// Selects how a row x is scaled to length 1, and how a division by a length near 0 is avoided.
///
///     clamped   x / ‖x‖ if ‖x‖ > ε, else 0                                                              (1)
///     outside   x / (‖x‖ + ε)                                                                           (2)
///     inside    x / √(‖x‖² + ε)                                                                         (3)
///     none      x                                                                                       (4)
///
/// (1) equals x / max(‖x‖, ε) except for rows of length ε or less. These rows give 0 and get no gradient, because the
/// derivative of x / ε would be as large as 1/ε. Rows with a squared length that overflows (length 1.8e19 in float)
/// give 0 or NaN.
enum class UnitNorm { clamped, outside, inside, none };

namespace functor {

/// Computes two factors for a row x that is scaled to length 1. f is the factor in the result û = f x. h is the factor
/// in the gradient dx = f · (dû − h ⟨x, dû⟩ û). Both depend on ‖x‖².
template <class T>
struct UnitFactor {
  UnitNorm form;
  T epsilon;

  GATEFOLD_HD T f(T square) const {
    if (form == UnitNorm::none) return 1;
    if (form == UnitNorm::inside) return 1 / std::sqrt(square + epsilon);
    const T length = std::sqrt(square);
    if (form == UnitNorm::outside) return 1 / (length + epsilon);
    return length <= epsilon ? T(0) : 1 / length;
  }
  GATEFOLD_HD T h(T square) const {
    if (form == UnitNorm::none) return 0;
    return form != UnitNorm::outside ? f(square) : square > 0 ? 1 / std::sqrt(square) : T(0);
  }
};

/// Writes each row of x, scaled to length 1 (UnitNorm) and multiplied by `scale`, to `unit`. `scale` points to memory
/// of the backend; null means 1.
template <class T, class B>
struct UnitRows {
  View<const T, 2, B> x;
  UnitFactor<T> factor;
  const T* scale;
  View<T, 2, B> unit;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    T square = 0;
    for (Index d = lanes.lane; d < x.extent(1); d += lanes.size) square += x(n, d) * x(n, d);
    const T f = (scale ? *scale : T(1)) * factor.f(lanes.sum(square));
    for (Index d = lanes.lane; d < x.extent(1); d += lanes.size) unit(n, d) = f * x(n, d);
  }
};

/// Backward pass of UnitRows: adds scale · f (dunit[n,:] − h ⟨x, dunit⟩ f x[n,:]) to dx[n,:]. dunit is the gradient of
/// the scaled rows; f and h are the factors of UnitFactor.
template <class T, class B>
struct UnitRowsBackward {
  View<const T, 2, B> x;
  UnitFactor<T> factor;
  const T* scale;
  View<const T, 2, B> dunit;
  View<T, 2, B> dx;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    T square = 0, dot = 0;
    for (Index d = lanes.lane; d < x.extent(1); d += lanes.size) {
      square += x(n, d) * x(n, d);
      dot += x(n, d) * dunit(n, d);
    }
    square = lanes.sum(square);
    const T s = scale ? *scale : T(1), f = factor.f(square), along = factor.h(square) * lanes.sum(dot);
    for (Index d = lanes.lane; d < x.extent(1); d += lanes.size)
      dx(n, d) += s * f * (dunit(n, d) - along * (f * x(n, d)));
  }
};

/// Returns the contribution of row n to the gradient of the factor `scale` of UnitRows. It is the scalar product of the
/// row, scaled to length 1, and the gradient dunit[n,:] of the scaled row.
template <class T, class B>
struct UnitRowsScale {
  View<const T, 2, B> x;
  UnitFactor<T> factor;
  View<const T, 2, B> dunit;

  GATEFOLD_HD T operator()(Index n) const {
    T square = 0, dot = 0;
    for (Index d = 0; d < x.extent(1); ++d) {
      square += x(n, d) * x(n, d);
      dot += x(n, d) * dunit(n, d);
    }
    return factor.f(square) * dot;
  }
};

}  // namespace functor
}  // namespace gatefold
