#pragma once

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/policy/noise.hpp"

namespace gatefold {

namespace functor {

/// Dropout of a row of n values: to[j] = ξ[j] from[j] / (1 − rate). ξ[j] is 0 if random number first + j of a random
/// stream, uniform in [0, 1), is less than the rate. Otherwise ξ[j] is 1. The backward pass draws the same ξ again
/// instead of storing it.
template <class T>
struct Drop {
  Random random;
  double rate;

  GATEFOLD_HD void operator()(const auto& lanes, Index first, Index n, const T* from, T* to) const {
    each(lanes, first, n, from, [&](Index j, T value) { to[j] = value; });
  }
  /// Computes dropout of a row without storing the result. Calls f(j, v) for each element j of the row that this lane
  /// (thread) handles; v is the value of the element after dropout.
  template <class Lanes, class F>
  GATEFOLD_HD void each(const Lanes& lanes, Index first, Index n, const T* from, const F& f) const {
    const T least = T(rate), scale = T(1 / (1 - rate));
    Draw<UniformNoise, T>{random, true}.each(lanes, first, n,
                                             [&](Index j, T u) { f(j, u < least ? T(0) : from[j] * scale); });
  }
};
/// Dropout of a matrix with D columns: to[n,:] = ξ[n,:] from[n,:] / (1 − rate). ξ[n,d] is 0 with probability `rate` and
/// 1 otherwise; it uses random number n·D + d of a random stream. `to` and `from` can be the same memory.
template <class T, class B>
struct DropRows {
  Drop<T> drop;
  View<const T, 2, B> from;
  View<T, 2, B> to;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index columns = to.extent(1);
    drop(lanes, n * columns, columns, from.data() + n * columns, to.data() + n * columns);
  }
  /// Computes row n after dropout and passes each value to the functor `take` instead of storing it. for_rows
  /// (elementwise.hpp) uses this form on devices.
  template <class Lanes, class Take>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n, const Take& take) const {
    const Index columns = to.extent(1), row = n * columns;
    drop.each(lanes, row, columns, from.data() + row, [&](Index j, T value) { take(OneElement<T>{}, row + j, value); });
  }
};

}  // namespace functor
}  // namespace gatefold
