#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "gatefold/metric/metric.hpp"

namespace gatefold {

namespace functor {

/// Returns the entropy −Σ_e q[n,e] ln q[n,e] of the probabilities q of item n, with 0 ln 0 = 0.
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

/// Returns the entropy of the router's probabilities for each item.
///
///     H[n] = −Σ_e q[n,e] ln q[n,e],   0 ln 0 = 0                                                        (1)
///
/// The values are between 0 (one expert has probability 1) and ln E (all probabilities are equal). Source: paper 002
/// (Graph of Tokens), sec. 4 and fig. 3, for the probabilities before top-K. The "entropy ratio" of the paper is the
/// mean entropy of one model divided by the mean entropy of another model.
/// @param q [N, E] in  probabilities: `saved.gate.probabilities`
/// @return [N]
/// @cost  N·E logarithms
template <class T, class B>
std::vector<double> entropies(typename B::Context& ctx, View<T, 2, B> q) {
  return each<B>(ctx, q.extent(0), functor::ItemEntropy<std::remove_const_t<T>, B>{q});
}

/// Returns the mean over the items of the entropy H[n] of the router's probabilities, which `entropies` returns.
///
///     H = (1/N) Σ_n H[n]                                                                                (2)
///
/// @param valid [N] in  1 = item, 0 = padding; empty: all are items
/// @throws ArgumentError unless `valid` is empty or [N]
template <class T, class B>
double entropy(typename B::Context& ctx, View<T, 2, B> q, In<std::remove_const_t<T>, 1, B> valid = {}) {
  using U = std::remove_const_t<T>;
  return mean<U, B>(ctx, q.extent(0), functor::ItemEntropy<U, B>{q}, valid);
}

}  // namespace metric
}  // namespace gatefold
