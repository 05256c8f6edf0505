#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <vector>

#include "gatefold/metric/metric.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), ExpertOrDropped, ItemEntropy);

namespace metric {

/// The distribution of the picks over the experts. All numbers are 0 if there are no picks.
struct Load {
  std::vector<Index> counts;  // [E]
  Index dropped = 0;          // number of dropped picks, for example beyond a capacity

  Index picks() const { return std::accumulate(counts.begin(), counts.end(), Index(0)); }

  /// Returns the coefficient of variation of the numbers c_e of picks per expert, with mean c̄.
  ///
  ///     cv = sqrt(Σ_e (c_e − c̄)² / (E − ddof)) / c̄                                                    (2)
  ///
  /// It is 0 for an even load. With ddof = 0, as in V-MoE's losses, it is sqrt(E − 1) if one expert has all picks.
  /// @throws ArgumentError unless ddof >= 0
  double coefficient_of_variation(Index ddof = 0) const {
    expect(ddof >= 0, "Load", "ddof", "at least 0", ddof);
    const double experts = static_cast<double>(counts.size()), mean = static_cast<double>(picks()) / experts;
    if (!(mean > 0) || experts <= static_cast<double>(ddof)) return 0;
    double squares = 0;
    for (const Index c : counts) squares += (static_cast<double>(c) - mean) * (static_cast<double>(c) - mean);
    return std::sqrt(squares / (experts - static_cast<double>(ddof))) / mean;
  }
  /// Returns the largest share of the picks that one expert has. smallest_share returns the smallest.
  ///
  ///     max_e c_e / Σ_f c_f,   min_e c_e / Σ_f c_f                                                       (3)
  double largest_share() const { return share(std::max_element(counts.begin(), counts.end())); }
  double smallest_share() const { return share(std::min_element(counts.begin(), counts.end())); }
  /// Returns the share of the picks that were dropped.
  ///
  ///     dropped / (dropped + Σ_e c_e)                                                                     (4)
  double overflow() const {
    return dropped > 0 ? static_cast<double>(dropped) / static_cast<double>(dropped + picks()) : 0;
  }

 private:
  double share(std::vector<Index>::const_iterator at) const {
    return picks() > 0 ? static_cast<double>(*at) / static_cast<double>(picks()) : 0;
  }
};

/// Counts the picks of every expert in a plan, and the dropped picks.
///
///     c_e = |{picks p : expert[p] = e}|,   dropped = |{picks p : expert[p] < 0, not no_pick}|           (1)
///
/// Source: paper 001 (MomentumSMoE), sec. 6; overflow: Riquelme et al. 2021, arXiv:2106.05974, sec. 2.4 (capacity).
/// @param valid [N] in  1 = item, 0 = padding; empty: all are items
/// @throws ArgumentError unless `valid` is empty or [N]
/// @cost  O(S + E)
template <class T, class B>
Load load(typename B::Context& ctx, const SparsePlan<T, B>& plan, In<T, 1, B> valid = {}) {
  if (!valid.empty()) expect_shape("load", "valid", valid, {plan.items()});
  const functor::ExpertOrDropped<T, B> key{plan.item, plan.expert, plan.experts(), {valid}};
  Load l{histogram<B>(ctx, plan.expert.size(), key, plan.experts() + 1)};
  l.dropped = l.counts.back();
  l.counts.pop_back();
  return l;
}

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

namespace functor {

/// Returns the expert of pick p, or E (the number of experts) if the pick was dropped. Returns −1 if the item is
/// padding or if entry p of the plan is unused.
template <class T, class B>
struct ExpertOrDropped {
  View<const Index, 1, B> item, expert;
  Index experts;
  IsItem<T, B> is_item;
  GATEFOLD_HD Index operator()(Index p) const {
    if (!is_item(item(p)) || expert(p) == no_pick) return -1;
    return expert(p) >= 0 ? expert(p) : experts;
  }
};
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

}  // namespace gatefold
