#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "gatefold/metric/metric.hpp"

namespace gatefold {

namespace functor {

/// −Σ_e q[n,e] ln q[n,e],   0 ln 0 = 0
template <class T, class B>
struct ItemEntropy {
  View<const T, 2, B> q;
  GATEFOLD_HD double operator()(Index n) const {
    double h = 0;
    for (Index e = 0; e < q.extent(1); ++e)
      if (const double v = static_cast<double>(q(n, e)); v != 0) h -= v * std::log(v);
    return h;
  }
};

}  // namespace functor

namespace metric {

/// How undecided the router is about each item.
///
///     H[n] = −Σ_e q[n,e] ln q[n,e],   0 ln 0 = 0                                                        (1)
///
/// From 0 (one expert) to ln E (even). Source: paper 002 (Graph of Tokens), sec. 4 and fig. 3, of the probabilities
/// before top-K; its "entropy ratio" is the mean of one model divided by that of another.
/// @param q [N, E] in  probabilities: `saved.gate.probabilities`
/// @return [N]
/// @cost  N·E logarithms
template <class T, class B>
std::vector<double> entropies(typename B::Context& ctx, View<T, 2, B> q) {
  return each<B>(ctx, q.extent(0), functor::ItemEntropy<std::remove_const_t<T>, B>{q});
}

/// The mean entropy of the router.
///
///     H = (1/N) Σ_n H[n]                                                                                (2)
///
/// @param valid [N] in  1 = item, 0 = padding; empty: all are items
/// @throws ArgumentError unless `valid` fits
template <class T, class B>
double entropy(typename B::Context& ctx, View<T, 2, B> q, In<std::remove_const_t<T>, 1, B> valid = {}) {
  using U = std::remove_const_t<T>;
  return mean<U, B>(ctx, q.extent(0), functor::ItemEntropy<U, B>{q}, valid);
}

}  // namespace metric
}  // namespace gatefold
