#pragma once

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

namespace functor {

/// to[j] = ξ from[j] / (1 − rate) for j < n. ξ is 0 if number first + j of a random stream, uniform in [0, 1), is less
/// than the rate, else 1. The backward pass draws ξ again instead of storing it.
template <class T>
struct Drop {
  Random random;
  double rate;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index first, Index n, const T* from, T* to) const {
    each(lanes, first, n, from, [&](Index j, T value) { to[j] = value; });
  }
  /// Calls f(j, v) for the elements j of this lane, with v = ξ from[j] / (1 − rate).
  template <class Lanes, class F>
  GATEFOLD_HD void each(const Lanes& lanes, Index first, Index n, const T* from, const F& f) const {
    const T least = T(rate), scale = T(1 / (1 - rate));
    Draw<UniformNoise, T>{random, true}.each(lanes, first, n,
                                             [&](Index j, T u) { f(j, u < least ? T(0) : from[j] * scale); });
  }
};
/// to[n,:] = ξ from[n,:] / (1 − rate); element (n, d) uses number n·D + d of the random stream. `to` and `from` can be
/// the same memory.
template <class T, class B>
struct DropRows {
  Drop<T> drop;
  View<const T, 2, B> from;
  View<T, 2, B> to;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const Index columns = to.extent(1);
    drop(lanes, n * columns, columns, from.data() + n * columns, to.data() + n * columns);
  }
  /// Passes each value of row n to `take` instead of storing it (for_rows in elementwise.hpp).
  template <class Lanes, class Take>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n, const Take& take) const {
    const Index columns = to.extent(1), row = n * columns;
    drop.each(lanes, row, columns, from.data() + row, [&](Index j, T value) { take(OneElement<T>{}, row + j, value); });
  }
};

}  // namespace functor
}  // namespace gatefold
