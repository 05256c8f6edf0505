#pragma once

#include "gatefold/backend/lanes.hpp"

namespace gatefold::functor {

/// Computes the sum over the first `count` positions of each sequence n, times the factor `share`: total[n] = share ·
/// Σ_l x[n, l] for l < count, in this order. x[n, l] are the D values of sequence n at position l.
template <class T, class B>
struct SumPositions {
  Index count;  // at least 1
  T share;
  View<const T, 2, B> x;  // [N, length · D], length >= count
  View<T, 2, B> total;    // [N, D]

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index dim = total.extent(1);
    const T* const from = x.data() + n * x.extent(1);
    T* const to = total.data() + n * dim;
    each_column<T>(lanes, dim, [&](const auto& at, Index d) {
      auto sum = at.load(from + d);
      for (Index l = 1; l < count; ++l) sum += at.load(from + l * dim + d);
      at.store(to + d, sum * share);
    });
  }
};
/// The backward pass of SumPositions (total[n] = share · Σ_l x[n, l]): adds the gradient of `total` to that of x, dx[n,
/// l] += share · dtotal[n] for l < count.
template <class T, class B>
struct SumPositionsBackward {
  Index count;
  T share;
  View<const T, 2, B> dtotal;
  View<T, 2, B> dx;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index dim = dtotal.extent(1);
    const T* const from = dtotal.data() + n * dim;
    T* const to = dx.data() + n * dx.extent(1);
    each_column<T>(lanes, dim, [&](const auto& at, Index d) {
      const auto v = at.load(from + d) * share;
      for (Index l = 0; l < count; ++l) at.store(to + l * dim + d, at.load(to + l * dim + d) + v);
    });
  }
};

}  // namespace gatefold::functor
