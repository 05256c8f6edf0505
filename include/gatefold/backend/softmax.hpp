#pragma once

#include <cmath>

#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/math.hpp"

/// Softmax of the rows of a matrix, its logarithm and its gradient. Gates (routers) and losses use them.
namespace gatefold::functor {

/// Returns the largest number of a row. Every lane (thread that shares the row) gets the same result.
template <class T, class Lanes>
GATEFOLD_HD T top(const Lanes& lanes, Index columns, const T* row) {
  return max_columns<T>(lanes, columns, [&](auto at, Index e) { return at.load(row + e); });
}

/// The largest number `top` of a row z of logits, and the sum of exp(z[c] − top) over the row.
template <class T>
struct ExpSum {
  T top, total;  // max_c z[c],  Σ_c exp(z[c] − top)
};
/// Computes ExpSum of one row. Every lane (thread that shares the row) gets the same result. It is inlined, because a
/// call made CrossEntropy of 10 classes a fifth (forward) to a third (backward) slower.
template <class T, class Lanes>
GATEFOLD_INLINE GATEFOLD_HD ExpSum<T> exp_sum(const Lanes& lanes, Index columns, const T* row) {
  using functor::math::exp;
  const T top = functor::top(lanes, columns, row);
  return {top, sum_columns<T>(lanes, columns, [&](const auto& at, Index c) { return exp(at.load(row + c) - top); })};
}

/// Writes p[n,:] = softmax(z[n,:]).
template <class T, class B>
struct Softmax {
  View<const T, 2, B> z;
  View<T, 2, B> p;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    row(lanes, n, z.data() + n * z.extent(1), p.data() + n * z.extent(1));
  }
  /// Computes to = softmax(from) for one row of numbers. `to` and `from` can be the same memory.
  template <class Lanes>
  GATEFOLD_HD void row(const Lanes& lanes, Index, const T* from, T* to) const {
    using functor::math::exp;
    const Index columns = z.extent(1);
    const T top = functor::top(lanes, columns, from);
    const T scale = 1 / sum_columns<T>(lanes, columns, [&](auto at, Index e) {
                      const auto v = exp(at.load(from + e) - top);
                      at.store(to + e, v);
                      return v;
                    });
    each_column<T>(lanes, columns, [&](auto at, Index e) { at.store(to + e, at.load(to + e) * scale); });
  }
};

/// Computes the logarithm of the softmax p of each row of z:
///
///     log p[n,:] = (z[n,:] − max z[n,:]) − log Σ_e exp(z[n,e] − max z[n,:])
///
/// The result is accurate even if p underflows, or if max z is so large that max z + log Σ would be rounded to max z.
template <class T, class B>
struct LogSoftmax {
  View<const T, 2, B> z;
  View<T, 2, B> log_p;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    using functor::math::exp;
    const Index columns = z.extent(1);
    const T *from = z.data() + n * columns, top = functor::top(lanes, columns, from);
    T* to = log_p.data() + n * columns;
    const T log_sum =
        std::log(sum_columns<T>(lanes, columns, [&](auto at, Index e) { return exp(at.load(from + e) - top); }));
    each_column<T>(lanes, columns, [&](auto at, Index e) { at.store(to + e, at.load(from + e) - top - log_sum); });
  }
};

/// Writes the gradient of the logits, dz[n,e] = p[n,e] (dp[n,e] − Σ_f p[n,f] dp[n,f]), with p the softmax and dp its
/// gradient.
template <class T, class B>
struct SoftmaxBackward {
  View<const T, 2, B> p, dp;
  View<T, 2, B> dz;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index columns = p.extent(1), first = n * columns;
    const T *q = p.data() + first, *dq = dp.data() + first;
    T* to = dz.data() + first;
    const T dot = sum_columns<T>(lanes, columns, [&](auto at, Index e) { return at.load(q + e) * at.load(dq + e); });
    each_column<T>(lanes, columns,
                   [&](auto at, Index e) { at.store(to + e, at.load(q + e) * (at.load(dq + e) - dot)); });
  }
};

}  // namespace gatefold::functor
