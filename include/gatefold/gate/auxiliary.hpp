#pragma once

#include <cmath>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/gate/candidates.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/policy.hpp"

/// Auxiliary losses of a gate. An auxiliary loss is an aggregate with
///
///     forward (ctx, a, value) const;               // writes weight · loss to value [1]
///     backward(ctx, a, d) const;                   // adds its gradient to the members of d it used
///     validate(experts) const;                     // optional: checks its options before anything is written
///
/// where `a` is what the gate saw and d its adjoint. Items with valid[n] = 0 are padding and count nowhere.
/// A loss that reads picks n·K … n·K + K − 1 as those of item n says `static constexpr bool needs_picks_by_item = true;`, one
/// that reads `noisy` `needs_noise = true`: a gate whose selection has it not does not compile.
namespace gatefold {

/// What a gate shows its auxiliary losses.
template <class T, class B>
struct GateOutcome {
  View<const T, 2, B> logits, probabilities;  // [N, E]
  const SparsePlan<T, B>& plan;
  View<const T, 1, B> valid;      // [N] 1 = item, 0 = padding; empty: all are items
  View<const T, 2, B> rank{};     // [N, E] what experts were ranked by, without noise
  NoisyRank<const T, B> noisy{};  // with noise; empty where none was drawn
};
/// Its adjoint. `noisy` is empty where the outcome's is.
template <class T, class B>
struct GateOutcomeGrad {
  View<T, 2, B> logits, probabilities, rank;  // [N, E]
  NoisyRank<T, B> noisy{};
};

namespace fn {

template <class T, class B>
struct Valid {
  View<const T, 1, B> valid;
  GATEFOLD_HD T operator()(Index n) const { return valid.data() ? valid(n) : T(1); }
};

/// Σ_n q[n,e] over the valid items
template <class T, class B>
struct TotalOfExpert {
  View<const T, 2, B> q;
  Valid<T, B> valid;

  template <class Lanes>
  GATEFOLD_HD T operator()(const Lanes& lanes, Index e) const {
    double total = 0;  // over all items, where a float would lose the small ones
    for (Index n = lanes.lane; n < q.extent(0); n += lanes.size)
      if (valid(n) != 0) total += q(n, e);  // padding may hold NaN
    return static_cast<T>(lanes.sum(total));
  }
};
template <class T, class B>
struct StoreTotal {
  TotalOfExpert<T, B> total_of;
  View<T, 1, B> total;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index e) const {
    const T sum = total_of(lanes, e);
    if (lanes.lane == 0) total(e) = sum;
  }
};
/// picks[e] = picks of e among every `stride`-th pick of the valid items, dropped or not;  total[e] as above
template <class T, class B>
struct LoadOfExpert {
  View<const Index, 1, B> item, expert;
  Index stride;
  TotalOfExpert<T, B> total_of;
  View<Index, 1, B> picks;
  View<T, 1, B> total;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index e) const {
    Index count = 0;
    for (Index p = lanes.lane * stride; p < expert.size(); p += lanes.size * stride)
      count += chosen(expert(p)) == e && total_of.valid(item(p)) != 0;
    count = lanes.sum(count);
    const T sum = total_of(lanes, e);
    if (lanes.lane > 0) return;
    picks(e) = count;
    total(e) = sum;
  }
};
/// value = weight · E · Σ_e f_e P_e, and f_e · weight · E / (probability normaliser) for backward
template <class T, class B>
struct BalanceValue {
  View<const Index, 1, B> picks;
  View<const T, 1, B> total, items;
  T weight;
  bool per_pick;
  View<T, 1, B> value, slope;
  GATEFOLD_HD void operator()(Index) const {
    const Index experts = picks.size();
    Index count = 0;
    T sum = 0;
    for (Index e = 0; e < experts; ++e) count += picks(e);
    const T normaliser = per_pick ? static_cast<T>(count) : items(0);
    for (Index e = 0; e < experts; ++e) {
      const T f = count > 0 ? static_cast<T>(picks(e)) / static_cast<T>(count) : T(0);
      slope(e) = normaliser > 0 ? weight * T(experts) * f / normaliser : T(0);
      sum += slope(e) * total(e);
    }
    if (value.data()) value(0) = sum;
  }
};
/// dq[n,e] += slope[e] for valid items: the adjoint of anything that sees q through TotalOfExpert.
template <class T, class B>
struct TotalBackward {
  View<const T, 1, B> slope;
  Valid<T, B> valid;
  View<T, 2, B> dq;
  GATEFOLD_HD void operator()(Index i) const {
    const Index experts = dq.extent(1);
    dq.data()[i] += valid(i / experts) * slope(i % experts);
  }
};

/// (log Σ_e exp z[n,e])² of a valid item
template <class T, class B>
struct SquaredLogSumExp {
  View<const T, 2, B> z;
  Valid<T, B> valid;
  GATEFOLD_HD T log_sum_exp(Index n) const {
    T top = z(n, 0), total = 0;
    for (Index e = 1; e < z.extent(1); ++e) top = z(n, e) > top ? z(n, e) : top;
    for (Index e = 0; e < z.extent(1); ++e) total += std::exp(z(n, e) - top);
    return top + std::log(total);
  }
  GATEFOLD_HD T operator()(Index n) const {
    if (valid(n) == 0) return 0;
    const T v = log_sum_exp(n);
    return v * v;
  }
};
template <class T, class B>
struct ScaleByCount {
  T weight;
  View<const T, 1, B> count;
  View<T, 1, B> value;
  GATEFOLD_HD void operator()(Index) const { value(0) = count(0) > 0 ? weight * value(0) / count(0) : T(0); }
};
template <class T, class B>
struct ZLossBackward {
  SquaredLogSumExp<T, B> row;
  T weight;
  View<const T, 1, B> count;
  View<T, 2, B> dz;
  GATEFOLD_HD void operator()(Index n) const {
    if (row.valid(n) == 0) return;
    const T v = row.log_sum_exp(n), scale = 2 * weight * v / count(0);
    for (Index e = 0; e < dz.extent(1); ++e) dz(n, e) += scale * std::exp(row.z(n, e) - v);
  }
};

/// K, where every item has as many picks.
template <class T, class B>
Index picks_per_item(const GateOutcome<T, B>& a) {
  const Index items = a.plan.items(), picks = a.plan.expert.size();
  return items > 0 && picks > items ? picks / items : Index(1);
}

/// The number of valid items, on the backend.
template <class C, class T, class B>
View<T, 1, B> count_valid(C& ctx, const GateOutcome<T, B>& a) {
  auto items = ctx.template scratch<T>(1);
  fill(ctx, items, 0);
  B::template reduce<T>(ctx, a.logits.extent(0), Valid<T, B>{a.valid}, items.data());
  return items;
}

}  // namespace fn

namespace fn {

/// Value and slopes of E Σ_e f_e P_e with f_e the share of e in every `stride`-th pick. The slopes live in scratch: take
/// a mark first.
template <class C, class T, class B>
View<T, 1, B> balance(C& ctx, const GateOutcome<T, B>& a, Index stride, Same<T> weight, bool per_pick,
                      Out<T, 1, B> value) {
  const Index experts = a.probabilities.extent(1);
  auto picks = ctx.template scratch<Index>(experts);
  auto total = ctx.template scratch<T>(experts), slope = ctx.template scratch<T>(experts);
  auto items = count_valid(ctx, a);
  B::for_rows(ctx, experts,
              LoadOfExpert<T, B>{a.plan.item, a.plan.expert, stride, {a.probabilities, {a.valid}}, picks, total});
  B::for_each(ctx, 1, BalanceValue<T, B>{picks, total, items, weight, per_pick, value, slope});
  return slope;
}

}  // namespace fn

/// Ask for an even load.
///
///     loss = weight · E · Σ_e f_e P_e,   f_e = share of the picks,   P_e = (1/N) Σ_n q[n,e]              (1)
///
/// 1 at perfect balance (times weight). f is a count, and counts dropped picks too: the gradient flows through P alone.
/// Source: Fedus et al. 2021, arXiv:2101.03961, eq. (4)-(6), for K picks; theirs is K = 1. With per_pick, P_e is divided
/// by N·K as in the reference code of papers 001 and 002: 1/K at balance.
/// @cost  N·E·(K + 1) reads
/// @order picks are counted in integers, P is summed in double in the order of the items
struct Balance {
  double weight = 0.01;
  bool per_pick = false;

  static Balance reference() { return {.weight = 0.01, .per_pick = true}; }

  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    fn::balance(ctx, a, 1, T(weight), per_pick, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    auto slope = fn::balance(ctx, a, 1, T(weight), per_pick, {});
    B::for_each(ctx, d.probabilities.size(), fn::TotalBackward<T, B>{slope, {a.valid}, d.probabilities});
  }
};

/// Keep the logits small.
///
///     loss = weight · (1/N) Σ_n (log Σ_e exp z[n,e])²                                                    (2)
///
/// Source: Zoph et al. 2022, arXiv:2202.08906, eq. (5).
/// @cost  N·E exponentials
/// @order that of `reduce`: blocks of items, then the blocks
struct ZLoss {
  double weight = 0.001;

  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    auto count = fn::count_valid(ctx, a);
    fill(ctx, value, 0);
    B::template reduce<T>(ctx, a.logits.extent(0), fn::SquaredLogSumExp<T, B>{a.logits, {a.valid}}, value.data());
    B::for_each(ctx, 1, fn::ScaleByCount<T, B>{T(weight), count, value});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    auto count = fn::count_valid(ctx, a);
    B::for_each(ctx, a.logits.extent(0),
                fn::ZLossBackward<T, B>{{a.logits, {a.valid}}, T(weight), count, d.logits});
  }
};

}  // namespace gatefold
