#pragma once

#include <limits>
#include <type_traits>

#include "gatefold/backend/math.hpp"
#include "gatefold/backend/order.hpp"
#include "gatefold/gate/candidates.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), PickTopK, PickTopKBackward);

/// Picks the K best experts of each item.
///
///     I(n) = top_K rank[n,:],   w[n,e] = q[n,e] / Σ_{f ∈ I(n)} q[n,f]   (renormalise)                    (1)
///                               w[n,e] = q[n,e]                          (otherwise, V-MoE)              (2)
///
/// Source: (1) Shazeer et al. 2017, arXiv:1701.06538, eq. (3), (5), without noise: softmax over the picked logits;
/// (2) Riquelme et al. 2021, arXiv:2106.05974, sec. 2.1.
/// With k = 1 and renormalise the weight is always 1, so the task loss gives the router exactly zero gradient. Use
/// renormalise = false or an auxiliary loss.
/// @param rank [N, E] in   values to rank by;  q [N, E] in  probabilities
/// @throws ArgumentError unless 1 <= k <= experts
/// @cost   2·N·K·E comparisons, S = N·K picks
/// @order  ties go to the lower expert index; NaN ranks below every number; picks are distinct for any input
struct TopK {
  Index k = 2;
  bool renormalise = true;

  static constexpr bool items_adjoint_is_optional = true, complete_picks = true;

  void validate_options(Index experts) const {
    expect(k >= 1 && k <= experts, "TopK", "k", Joined{"1 <= k <= experts = ", experts}, k);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Nothing<T, B>& extra) const {
    B::for_rows(ctx, c.q.extent(0), rows(c, plan, extra));
    plan.build_complete(ctx);
  }
  template <class T, class B>
  functor::PickTopK<T, B> rows(const Candidates<T, B>& c, SparsePlan<T, B>& plan, const Nothing<T, B>&) const {
    const Index items = c.q.extent(0), experts = c.q.extent(1);
    validate_options(experts);
    plan.resize(items, experts, items * k);
    return {c.rank, c.q, k, renormalise, plan.item, plan.expert, plan.weight};
  }
  /// Adds the gradient of q to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Nothing<T, B>&, const Nothing<T, B>& extra) const {
    B::for_rows(ctx, c.q.extent(0), rows_backward(c, plan, dplan, d.q, extra));
  }
  template <class T, class B>
  functor::PickTopKBackward<T, B> rows_backward(const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                                                const typename SparsePlan<T, B>::Grad& dplan, Out<T, 2, B> dq,
                                                const Nothing<T, B>&) const {
    expect_picks("TopK.backward", plan, c.q.extent(0), k);
    return {c.q, plan.expert, dplan.weight, k, renormalise, dq};
  }
};

namespace functor {

template <class T>
inline constexpr T iota[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
/// Returns the column number j as a floating-point value. If the accessor `at` loads vector registers, returns a
/// register with j, j + 1, …
template <class T, class A>
GATEFOLD_HD typename A::Value column_numbers(const A& at, Index j) {
  if constexpr (std::is_same_v<typename A::Value, T>) {
    return T(j);
  } else {
    return at.load(iota<T>) + T(j);
  }
}

/// Steps through the experts of one item from best to worst, in the order of ranks_before: larger ranks come first,
/// NaN comes last, and ties go to the lower expert index.
template <class T>
struct RankedRow {
  const T* rank;
  Index experts;

  /// Returns the next best expert after `last`, or the best of all experts if `last` is −1. Returns −1 if no expert is
  /// left. All lanes (threads of the row) return the same value.
  GATEFOLD_HD Index after(const auto& lanes, Index last) const {
    if (finite_math_only || (last >= 0 && !is_finite(rank[last]))) return after_one_by_one(last);
    const T bound = last < 0 ? infinity : rank[last];
    const T top = max_columns<T>(lanes, experts, [&](auto at, Index e) {
      using functor::math::where_positive;
      using V = typename decltype(at)::Value;
      const V v = at.load(rank + e), below = bound - v;
      const V tie = where_positive(column_numbers<T>(at, e) - T(last), v, V(-infinity));
      return where_positive(below, v, where_positive(-below, V(-infinity), tie));
    });
    if (!is_finite(top)) return after_one_by_one(last);
    const Index from = top < bound ? 0 : last + 1;
    return from - static_cast<Index>(max_columns<T>(lanes, experts - from, [&](auto at, Index i) {
             using functor::math::where_positive;
             using V = typename decltype(at)::Value;
             const V d = at.load(rank + from + i) - top;  // NaN if the rank is NaN; such an expert is skipped
             return where_positive(d, V(-infinity), where_positive(-d, V(-infinity), d - column_numbers<T>(at, i)));
           }));
  }

 private:
  static constexpr T infinity = std::numeric_limits<T>::infinity();

  /// Returns the same expert as `after`, with one comparison at a time. It compares integers (order_key), so it handles
  /// infinities and NaN. Builds with fast math use it for all rows, because the faster code of `after` computes with
  /// infinities.
  GATEFOLD_HD Index after_one_by_one(Index last) const {
    const auto bound = last < 0 ? order_key(infinity) : order_key(rank[last]);
    Index best = -1;
    auto top = bound;
    for (Index e = 0; e < experts; ++e) {
      const auto key = order_key(rank[e]);
      if ((key < bound || (key == bound && e > last)) && (best < 0 || key > top)) {
        best = e;
        top = key;
      }
    }
    return best;
  }
};

/// Returns the probability of one picked expert on every lane (thread of the row). Each lane reads only values that it
/// wrote itself: lane 0 the expert, and lane e mod size the entry q[e].
template <class T, class Lanes>
GATEFOLD_HD T weight_of_pick(const Lanes& lanes, const T* q, const Index& expert) {
  const Index e = lanes.max(lanes.lane == 0 ? expert : Index(-1));
  return lanes.sum(e % lanes.size == lanes.lane ? q[e] : T(0));
}

/// Picks the K best experts of item n, best first, and computes their weights. The functor consists of two functions,
/// `choose` and `weigh`, so that a mixing can compute the probabilities q between the two calls.
template <class T, class B>
struct PickTopK {
  View<const T, 2, B> rank, q;
  Index k;
  bool renormalise;
  View<Index, 1, B> item, expert;
  View<T, 1, B> weight;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    choose(lanes, n);
    weigh(lanes, n);
  }
  /// Chooses the experts of item n from its ranks, without reading the probabilities q.
  GATEFOLD_HD void choose(const auto& lanes, Index n) const { choose(lanes, n, &rank(n, 0)); }
  /// Computes the weights of the picks of item n from the probabilities q and the chosen experts.
  GATEFOLD_HD void weigh(const auto& lanes, Index n) const { weigh(lanes, n, &q(n, 0)); }
  /// Chooses the experts of item n from its row of ranks, which can be at any address.
  GATEFOLD_HD void choose(const auto& lanes, Index n, const T* rank_row) const {
    const RankedRow<T> row{rank_row, rank.extent(1)};
    Index best = -1;
    for (Index j = n * k; j < n * k + k; ++j) {
      best = row.after(lanes, best);
      if (lanes.lane > 0) continue;
      item(j) = n;
      expert(j) = best;
    }
  }
  GATEFOLD_HD void weigh(const auto& lanes, Index n, const T* q_row) const {
    T total = 0;
    for (Index j = n * k; j < n * k + k; ++j) {
      const T w = weight_of_pick(lanes, q_row, expert(j));
      if (lanes.lane == 0) weight(j) = w;
      total += w;
    }
    if (!renormalise || lanes.lane > 0) return;
    // If the q of the item sum to 1 and the largest q is picked, total is positive or NaN, because this q is >= 1/E.
    for (Index j = n * k; j < n * k + k; ++j) weight(j) /= total;
  }
};

/// Adds the gradient of the probabilities q of the picked experts to dq. The weight of a pick is q / Σ q over the picks
/// of the item if `renormalise` is true, and q otherwise.
template <class T, class B>
struct PickTopKBackward {
  View<const T, 2, B> q;
  View<const Index, 1, B> expert;
  View<const T, 1, B> dweight;
  Index k;
  bool renormalise;
  View<T, 2, B> dq;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    T total = 0, dot = 0;
    for (Index j = n * k; j < n * k + k; ++j) total += q(n, chosen(expert(j)));
    for (Index j = n * k; j < n * k + k; ++j) dot += q(n, chosen(expert(j))) / total * dweight(j);
    for (Index j = n * k; j < n * k + k; ++j) {
      const Index e = chosen(expert(j));
      if (e % lanes.size != lanes.lane) continue;
      if (!renormalise) {
        dq(n, e) += dweight(j);
      } else if (k > 1) {  // for k = 1 the gradient is 0, but dweight - dot could have a rounding error
        dq(n, e) += (dweight(j) - dot) / total;
      }
    }
  }
};

}  // namespace functor

}  // namespace gatefold
