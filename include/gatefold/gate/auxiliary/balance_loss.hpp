#pragma once

#include "gatefold/gate/auxiliary/auxiliary.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

namespace functor {

template <class T, class B>
struct TotalBackward;
template <class C, class T, class B>
View<T, 1, B> balance(C& ctx, const GateOutcome<T, B>& a, Index stride, NonDeduced<T> weight, bool per_pick,
                      Out<T, 1, B> value);

}  // namespace functor

/// An auxiliary loss that rewards an even load of E experts on N items. q [N, E] are the probabilities of the router.
///
///     loss = weight · E · Σ_e f_e P_e,   f_e = share of the picks,   P_e = (1/N) Σ_n q[n,e]              (1)
///
/// At perfect balance, the loss is `weight`. f_e counts the picks of expert e, including picks that were dropped
/// because of a capacity. A count has no derivative, so the gradient flows only through P.
/// Source: Fedus et al. 2021, arXiv:2101.03961, eq. (4)-(6), for K = 1; (1) extends it to K picks. If `per_pick` is
/// true, the sum in P_e is divided by N·K instead of N, as in the reference code of papers 001 and 002. The loss is
/// then weight / K at perfect balance.
/// @throws ArgumentError unless weight is finite
/// @cost  N·(E + K) reads and a counting sort of the picks
/// @order picks are counted in integers; P is summed in double, on the CPU in the order of the items
struct Balance {
  double weight = 0.01;
  bool per_pick = false;

  static Balance reference() { return reference({}); }
  static Balance reference(Balance options) {
    options.per_pick = true;
    return options;
  }

  void validate(Index) const { expect_finite("Balance", "weight", weight); }
  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    functor::balance(ctx, a, 1, T(weight), per_pick, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    auto slope = functor::balance(ctx, a, 1, T(weight), per_pick, {});
    B::for_rows(ctx, d.probabilities.extent(0), functor::TotalBackward<T, B>{slope, {a.valid}, d.probabilities});
  }
};

/// An auxiliary loss that rewards an even load of E experts, in which only the first choice (best expert) of each of N
/// items counts. q [N, E] are the probabilities of the router.
///
///     loss = weight · E² · (1/E) Σ_e c_e m_e,   c_e = share of first choices,   m_e = (1/N) Σ_n q[n,e]     (1)
///
/// At perfect balance, the loss is `weight`. c_e counts the first choices of expert e, including dropped ones. A count
/// has no derivative, so the gradient flows only through m. With one pick per item the loss is equal to Balance.
/// Source: Lepikhin et al. 2020, arXiv:2006.16668, algorithm 1. The factor E² is from FastMoE's code; it makes the
/// value independent of E.
/// @param a  result of a gate. Its selection must write picks n·K … n·K + K − 1 for item n, best first
/// @throws ArgumentError unless weight is finite and, on a host backend, the picks are in the order of the items
/// @cost  N·E reads and a counting sort of the first choices
/// @order first choices are counted in integers; m is summed in double, on the CPU in the order of the items
struct GShard {
  static constexpr bool needs_picks_by_item = true;
  double weight = 0.01;

  void validate(Index) const { expect_finite("GShard", "weight", weight); }
  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    functor::balance(ctx, a, functor::picks_per_item(a), T(weight), false, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    auto slope = functor::balance(ctx, a, functor::picks_per_item(a), T(weight), false, {});
    B::for_rows(ctx, d.probabilities.extent(0), functor::TotalBackward<T, B>{slope, {a.valid}, d.probabilities});
  }
};

namespace functor {

/// Writes total[g,e], the sum of the probabilities q[n,e] over the items n of sequence g, without padding. One call
/// computes `width` adjacent experts e.
template <class T, class B>
struct TotalOfExperts {
  static constexpr Index width = 8;
  View<const T, 2, B> q;
  Valid<T, B> valid;
  Index length;  // number of items of a sequence
  View<T, 2, B> total;

  GATEFOLD_HD void operator()(const auto& lanes, Index i) const {
    const Index strips = divide_up(q.extent(1), width), g = i / strips, begin = g * length,
                end = begin + length < q.extent(0) ? begin + length : q.extent(0);
    const Index first = i % strips * width, left = q.extent(1) - first;
    double sum[width] = {};  // in double, because a float sum over all items would lose small terms
    for (Index n = begin + lanes.lane; n < end; n += lanes.size) {
      if (valid(n) == 0) continue;  // padding can hold NaN
      const T* row = q.data() + n * q.extent(1) + first;
      if (left >= width) {
        for (Index j = 0; j < width; ++j) sum[j] += static_cast<double>(row[j]);
      } else {
        for (Index j = 0; j < left; ++j) sum[j] += static_cast<double>(row[j]);
      }
    }
    for (Index j = 0; j < width && j < left; ++j) {
      const double all = lanes.sum(sum[j]);
      if (lanes.lane == 0) total(g, first + j) = static_cast<T>(all);
    }
  }
};
/// Writes key[i] = g · E + expert, the key by which pick number i · stride is sorted. g is the sequence of the pick's
/// item, and E the number of experts. A dropped pick counts for the expert that the gate chose. The key is −1 if the
/// item is padding or if the entry of the plan is unused.
template <class T, class B>
struct LoadKey {
  View<const Index, 1, B> item, expert;
  Index stride, length, experts;  // length: items of a sequence
  Valid<T, B> valid;
  View<Index, 1, B> key;
  GATEFOLD_HD void operator()(Index i) const {
    const Index p = i * stride;
    key(i) = expert(p) == no_pick || valid(item(p)) == 0 ? Index(-1) : item(p) / length * experts + chosen(expert(p));
  }
};
/// Writes the loss (1) of Balance to `value`, unless that view is empty. Writes the derivative of the loss by q[n,e],
/// which is the same for every item n, to slope[e]. The derivative is weight · E · f_e / N, or with `per_pick` weight ·
/// E · f_e / (number of picks).
template <class T, class B>
struct BalanceValue {
  View<const Index, 1, B> offsets;  // [E + 1] start of each expert in the picks sorted by expert
  View<const T, 1, B> total, items;
  T weight;
  bool per_pick;
  View<T, 1, B> value, slope;
  GATEFOLD_HD void operator()(Index) const {
    const Index experts = total.size(), count = offsets(experts);
    T sum = 0;
    const T normaliser = per_pick ? static_cast<T>(count) : items(0);
    for (Index e = 0; e < experts; ++e) {
      const T f = count > 0 ? static_cast<T>(offsets(e + 1) - offsets(e)) / static_cast<T>(count) : T(0);
      slope(e) = normaliser > 0 ? weight * T(experts) * f / normaliser : T(0);
      sum += slope(e) * total(e);
    }
    if (value.data()) value(0) = sum;
  }
};
/// Adds slope[e] to dq[n,e] for each item n that is not padding. This is the gradient of a loss that depends on the
/// probabilities q only through their sums over the items (TotalOfExperts).
template <class T, class B>
struct TotalBackward {
  View<const T, 1, B> slope;
  Valid<T, B> valid;
  View<T, 2, B> dq;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const T scale = valid(n);
    T* to = &dq(n, 0);
    each_column<T>(lanes, dq.extent(1),
                   [&](auto at, Index e) { at.store(to + e, at.load(to + e) + scale * at.load(slope.data() + e)); });
  }
};

/// Writes total [G, E], the sums of each column of q [N, E] over the items of each sequence that are not padding.
/// @param length  number of items of a sequence
template <class C, class T, class B>
void sum_over_items(C& ctx, View<const T, 2, B> q, View<const T, 1, B> valid, Index length, View<T, 2, B> total) {
  const TotalOfExperts<T, B> strips{q, {valid}, length, total};
  B::for_rows(ctx, total.extent(0) * divide_up(total.extent(1), strips.width), strips);
}
/// Writes total [E], the sum of each expert's probabilities over the items that are not padding.
template <class C, class T, class B>
void expert_totals(C& ctx, const GateOutcome<T, B>& a, View<T, 1, B> total) {
  sum_over_items(ctx, a.probabilities, a.valid, a.probabilities.extent(0), total.as(1, total.size()));
}
/// Sorts picks 0, stride, 2·stride, … by sequence and expert, without the picks of padding. Returns offsets [G·E + 1]
/// for G sequences and E experts: expert e of sequence g has offsets(g·E + e + 1) − offsets(g·E + e) picks. The offsets
/// are in scratch memory, which is valid until the caller's `ctx.mark()` goes out of scope.
/// @param length  number of items of a sequence, at least 1
template <class C, class T, class B>
View<const Index, 1, B> sorted_loads(C& ctx, const GateOutcome<T, B>& a, Index stride, Index sequences, Index length) {
  const Index experts = a.probabilities.extent(1), picks = divide_up(a.plan.expert.size(), stride);
  const auto offsets = ctx.template scratch<Index>(sequences * experts + 1);
  auto mark = ctx.mark();
  const auto key = ctx.template scratch<Index>(picks), order = ctx.template scratch<Index>(picks);
  B::for_each(ctx, picks, LoadKey<T, B>{a.plan.item, a.plan.expert, stride, length, experts, {a.valid}, key});
  B::group_by(ctx, key, offsets, order);
  return offsets;
}

/// Writes the loss (1) of Balance to `value`, with f_e counted only in picks 0, stride, 2·stride, … Returns the
/// derivatives [E] of the loss by the probabilities (`slope` of BalanceValue). They are in scratch memory, which is
/// valid until the caller's `ctx.mark()` goes out of scope.
template <class C, class T, class B>
View<T, 1, B> balance(C& ctx, const GateOutcome<T, B>& a, Index stride, NonDeduced<T> weight, bool per_pick,
                      Out<T, 1, B> value) {
  const Index items = a.probabilities.extent(0), experts = a.probabilities.extent(1);
  auto total = ctx.template scratch<T>(experts), slope = ctx.template scratch<T>(experts);
  const auto offsets = sorted_loads(ctx, a, stride, 1, items > 0 ? items : Index(1));
  auto count = count_valid(ctx, a);
  expert_totals(ctx, a, total);
  B::for_each(ctx, 1, BalanceValue<T, B>{offsets, total, count, weight, per_pick, value, slope});
  return slope;
}

}  // namespace functor

}  // namespace gatefold
