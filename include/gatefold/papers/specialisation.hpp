#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "gatefold/metric/metric.hpp"
#include "gatefold/metric/routing_table.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), LargestProduct);

namespace metric {

/// The result of `specialisation`: the signal that each expert has learned.
struct Specialisation {
  Index count = 0;                          // number of signals, C
  std::vector<double> products;             // [E, C] ⟨W_i, v_n⟩ of expert i and signal n
  std::vector<Index> signal;                // [E] n*_i of each expert
  std::vector<std::vector<Index>> experts;  // [C] M_n, ascending

  double product(Index e, Index n) const { return products[static_cast<std::size_t>(e * count + n)]; }
};

/// Returns for each expert i the signal n*_i on which it is specialised: the signal v_n with the largest inner product
/// with the expert's weights W_i. Also returns for each signal n the set M_n of experts specialised on it.
///
///     n*_i = argmax_n ⟨W_i, v_n⟩,   M_n = {i : n*_i = n}                                                (1)
///
/// Source: paper 000 (Mixture-of-Transformers), definition 2. If an expert has J neurons, ⟨W_i, v_n⟩ is the largest
/// product over its neurons. With `magnitude`, it is the largest |⟨·⟩|, as in the reference code of paper 003's setup.
/// @param weights   [E, J, D] in  neurons of the experts; the paper has J = 1: `w.as(E, 1, D)`
/// @param signals   [C, D]    in  v_n, one per class
/// @throws ArgumentError unless J >= 1, C >= 1, and neurons and signals have the same D
/// @cost   E·J·C·D multiply-adds
/// @order  ties go to the lower signal; a NaN product counts as less than any other
template <class T, class B>
Specialisation specialisation(typename B::Context& ctx, View<T, 3, B> weights, In<std::remove_const_t<T>, 2, B> signals,
                              bool magnitude = false) {
  expect(weights.extent(1) >= 1, "specialisation", "weights.extent(1)", "at least 1", weights.extent(1));
  expect(signals.extent(0) >= 1, "specialisation", "signals.extent(0)", "at least 1", signals.extent(0));
  expect_shape("specialisation", "signals", signals, {any_extent, weights.extent(2)});
  const Index experts = weights.extent(0), count = signals.extent(0);
  const functor::LargestProduct<std::remove_const_t<T>, B> product{weights, signals, magnitude};
  Specialisation s{count, each<B>(ctx, experts * count, product), {}, {}};
  s.experts.resize(static_cast<std::size_t>(count));
  for (Index e = 0; e < experts; ++e) {
    Index best = 0;
    for (Index n = 1; n < count; ++n)
      if (s.product(e, n) > s.product(e, best) || (std::isnan(s.product(e, best)) && !std::isnan(s.product(e, n))))
        best = n;
    s.signal.push_back(best);
    s.experts[static_cast<std::size_t>(best)].push_back(e);
  }
  return s;
}

/// Returns how strongly the experts mix clusters (classes of items). For each expert, computes the entropy of the
/// clusters of the items that the gate sends to it. Returns the mean over the experts, weighted by their number of
/// picks.
///
///     H = −Σ_m (n_m / n) Σ_k (n_{k,m} / n_m) ln(n_{k,m} / n_m),   n_m = Σ_k n_{k,m},   n = Σ_m n_m      (1)
///
/// n_{k,m} is the number of picks of cluster k that go to expert m. Experts without picks contribute 0. The result is
/// 0 if every expert serves at most one cluster, and ln K if all clusters are mixed evenly.
///
/// Source: paper 003 (Expert Count), eq. (7), there with one pick per item.
inline double dispatch_entropy(const RoutingTable& table) {
  double h = 0, all = 0;
  for (Index m = 0; m < table.experts; ++m) {
    const double load = static_cast<double>(table.of_expert(m));
    all += load;
    for (Index k = 0; k < table.classes; ++k)
      if (const double share = table.share_of_expert(k, m); share > 0) h -= load * share * std::log(share);
  }
  return all > 0 ? h / all : 0;
}

/// Returns the dispatch entropy of the picks of a plan, equation (1) of the overload above.
/// @param labels [N] in  the clusters, in [0, clusters)
/// @param valid  [N] in  1 = item, 0 = padding; empty: all are items
/// @throws ArgumentError as routing_table does
template <class T, class B>
double dispatch_entropy(typename B::Context& ctx, const SparsePlan<T, B>& plan, In<Index, 1, B> labels, Index clusters,
                        In<T, 1, B> valid = {}) {
  return dispatch_entropy(routing_table(ctx, plan, labels, clusters, valid));
}

}  // namespace metric

namespace functor {

/// Returns the largest inner product of signal v[n] with the neurons w[e,j] of expert e, max_j ⟨w[e,j], v[n]⟩. If
/// `magnitude` is true, uses absolute values. A call handles i = e · (number of signals) + n.
template <class T, class B>
struct LargestProduct {
  View<const T, 3, B> weights;
  View<const T, 2, B> signals;
  bool magnitude;
  GATEFOLD_HD double operator()(Index i) const {
    const Index e = i / signals.extent(0), n = i % signals.extent(0);
    double largest = 0;
    for (Index j = 0; j < weights.extent(1); ++j) {
      double product = 0;
      for (Index d = 0; d < signals.extent(1); ++d)
        product += static_cast<double>(weights(e, j, d)) * static_cast<double>(signals(n, d));
      if (product != product) return product;
      if (magnitude) product = std::abs(product);
      if (j == 0 || product > largest) largest = product;
    }
    return largest;
  }
};

}  // namespace functor

}  // namespace gatefold
