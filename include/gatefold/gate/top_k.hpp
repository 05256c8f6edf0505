#pragma once

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/gate/candidates.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/policy.hpp"

namespace gatefold {

namespace fn {

/// The order of a total order on experts: larger first, NaN last, ties to the lower index.
template <class T>
GATEFOLD_HD bool ranks_before(T a, Index i, T b, Index j) {
  const bool a_is_nan = a != a, b_is_nan = b != b;
  if (a_is_nan != b_is_nan) return b_is_nan;
  if (!a_is_nan && a != b) return a > b;
  return i < j;
}

/// The K best experts of item n, best first.
template <class T, class B>
struct PickTopK {
  View<const T, 2, B> rank, q;
  Index k;
  bool renormalise;
  View<Index, 1, B> item, expert;
  View<T, 1, B> weight;

  GATEFOLD_HD void operator()(Index n) const {
    const Index experts = rank.extent(1);
    T total = 0;
    for (Index j = n * k; j < n * k + k; ++j) {
      Index best = -1;
      for (Index e = 0; e < experts; ++e) {
        const bool after_last = j == n * k || ranks_before(rank(n, expert(j - 1)), expert(j - 1), rank(n, e), e);
        if (after_last && (best < 0 || ranks_before(rank(n, e), e, rank(n, best), best))) best = e;
      }
      item(j) = n;
      expert(j) = best;
      weight(j) = q(n, best);
      total += q(n, best);
    }
    if (!renormalise) return;
    for (Index j = n * k; j < n * k + k; ++j) weight(j) /= total;  // > 0, or NaN: the best pick has q >= 1/E
  }
};

/// dq of the picks: through w = q / Σ q when renormalised, else w = q. Adds to dq.
template <class T, class B>
struct PickTopKBackward {
  View<const T, 2, B> q;
  View<const Index, 1, B> expert;
  View<const T, 1, B> weight, dweight;
  Index k;
  bool renormalise;
  View<T, 2, B> dq;

  GATEFOLD_HD void operator()(Index n) const {
    T total = 0, dot = 0;
    for (Index j = n * k; j < n * k + k; ++j) {
      total += q(n, chosen(expert(j)));
      dot += weight(j) * dweight(j);
    }
    for (Index j = n * k; j < n * k + k; ++j) {
      if (!renormalise) {
        dq(n, chosen(expert(j))) += dweight(j);
      } else if (k > 1) {  // with k = 1 the weight is 1 whatever q is; dweight - dot would leave its rounding
        dq(n, chosen(expert(j))) += (dweight(j) - dot) / total;
      }
    }
  }
};

}  // namespace fn

/// Take the K best experts of each item.
///
///     I(n) = top_K rank[n,:],   w[n,e] = q[n,e] / Σ_{f ∈ I(n)} q[n,f]   (renormalise)                    (1)
///                               w[n,e] = q[n,e]                          (not: V-MoE)                    (2)
///
/// Source: (1) Shazeer et al. 2017, arXiv:1701.06538, eq. (3), (5), without noise: softmax over the picked logits;
/// (2) Riquelme et al. 2021, arXiv:2106.05974, sec. 2.1.
/// With k = 1 and renormalise the weight is always 1, so the task loss gives the router exactly zero gradient: use
/// renormalise = false, or an auxiliary loss.
/// @param rank [N, E] in   what to rank by;  q [N, E] in  probabilities
/// @throws ArgumentError unless 1 <= k <= experts
/// @cost   N·K·E comparisons, S = N·K picks
/// @order  ties go to the lower expert index; NaN ranks below every number; picks are distinct whatever the input
struct TopK {
  Index k = 2;
  bool renormalise = true;

  void validate(Index experts) const {
    expect(k >= 1 && k <= experts, "TopK", "k", Joined{"1 <= k <= experts = ", experts}, k);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Nothing<T, B>&) const {
    const Index items = c.q.extent(0), experts = c.q.extent(1);
    validate(experts);
    plan.resize(items, experts, items * k);
    B::for_each(ctx, items, fn::PickTopK<T, B>{c.rank, c.q, k, renormalise, plan.item, plan.expert, plan.weight});
    plan.build(ctx);
  }
  /// Adds to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Nothing<T, B>&, const Nothing<T, B>&) const {
    B::for_each(ctx, c.q.extent(0),
                fn::PickTopKBackward<T, B>{c.q, plan.expert, plan.weight, dplan.weight, k, renormalise, d.q});
  }
};

}  // namespace gatefold
