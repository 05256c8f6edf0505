#pragma once

#include <cmath>

#include "gatefold/metric/routing_table.hpp"

namespace gatefold::metric {

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

/// Returns the entropy of the clusters that each expert of a plan serves, equation (1) above, averaged over all picks.
/// @param labels [N] in  the clusters, in [0, clusters)
/// @param valid  [N] in  1 = item, 0 = padding; empty: all are items
/// @throws ArgumentError as routing_table does
template <class T, class B>
double dispatch_entropy(typename B::Context& ctx, const SparsePlan<T, B>& plan, In<Index, 1, B> labels, Index clusters,
                        In<T, 1, B> valid = {}) {
  return dispatch_entropy(routing_table(ctx, plan, labels, clusters, valid));
}

}  // namespace gatefold::metric
