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
///
/// where `a` is what the gate saw and d its adjoint. Items with valid[n] = 0 are padding and count nowhere.
namespace gatefold {

/// What a gate shows its auxiliary losses.
template <class T, class B>
struct GateOutcome {
  View<const T, 2, B> logits, probabilities;  // [N, E]
  const SparsePlan<T, B>& plan;
  View<const T, 1, B> valid;  // [N] 1 = item, 0 = padding; empty: all are items
  View<const T, 2, B> rank{};            // [N, E] what experts were ranked by, without noise
  NoisyRank<const T, B> noisy{};         // with noise; empty where none was drawn
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

/// share[e] = picks of e among valid items;  mean[e] = Σ_n valid q[n,e]
template <class T, class B>
struct LoadOfExpert {
  View<const Index, 1, B> offsets, rows;
  View<const T, 2, B> q;
  Valid<T, B> valid;
  View<T, 1, B> picks, total;
  GATEFOLD_HD void operator()(Index e) const {
    T c = 0, p = 0;
    for (Index s = offsets(e); s < offsets(e + 1); ++s) c += valid(rows(s));
    for (Index n = 0; n < q.extent(0); ++n)
      if (valid(n) != 0) p += q(n, e);  // padding may hold NaN
    picks(e) = c;
    total(e) = p;
  }
};
/// value = weight · E · Σ_e f_e P_e, and f_e · weight · E / (probability normaliser) for backward
template <class T, class B>
struct BalanceValue {
  View<const T, 1, B> picks, total, items;
  T weight;
  bool per_pick;
  View<T, 1, B> value, slope;
  GATEFOLD_HD void operator()(Index) const {
    const Index experts = picks.size();
    T count = 0, sum = 0;
    for (Index e = 0; e < experts; ++e) count += picks(e);
    const T normaliser = per_pick ? count : items(0);
    for (Index e = 0; e < experts; ++e) {
      const T f = count > 0 ? picks(e) / count : T(0);
      slope(e) = normaliser > 0 ? weight * T(experts) * f / normaliser : T(0);
      sum += slope(e) * total(e);
    }
    if (value.data()) value(0) = sum;
  }
};
template <class T, class B>
struct BalanceBackward {
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

/// The number of valid items, on the backend.
template <class C, class T, class B>
View<T, 1, B> count_valid(C& ctx, const GateOutcome<T, B>& a) {
  auto items = ctx.template scratch<T>(1);
  fill(ctx, items, 0);
  B::template reduce<T>(ctx, a.logits.extent(0), Valid<T, B>{a.valid}, items.data());
  return items;
}

}  // namespace fn

/// Ask for an even load.
///
///     loss = weight · E · Σ_e f_e P_e,   f_e = share of the picks,   P_e = (1/N) Σ_n q[n,e]              (1)
///
/// 1 at perfect balance (times weight). f is a count: the gradient flows through P alone.
/// Source: Fedus et al. 2021, arXiv:2101.03961, eq. (4)-(6), for K picks. With per_pick, P_e is divided by N·K as in
/// the reference code of papers 001 and 002: 1/K at balance.
/// @cost N·E reads
struct Balance {
  double weight = 0.01;
  bool per_pick = false;

  static Balance reference() { return {.weight = 0.01, .per_pick = true}; }

  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    slopes(ctx, a, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    auto slope = slopes(ctx, a, {});
    B::for_each(ctx, d.probabilities.size(), fn::BalanceBackward<T, B>{slope, {a.valid}, d.probabilities});
  }

 private:
  template <class T, class B>
  View<T, 1, B> slopes(auto& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    const Index experts = a.probabilities.extent(1);
    auto picks = ctx.template scratch<T>(experts), total = ctx.template scratch<T>(experts);
    auto slope = ctx.template scratch<T>(experts);
    auto items = fn::count_valid(ctx, a);
    B::for_each(ctx, experts, fn::LoadOfExpert<T, B>{a.plan.offsets, a.plan.rows, a.probabilities, {a.valid}, picks, total});
    B::for_each(ctx, 1, fn::BalanceValue<T, B>{picks, total, items, T(weight), per_pick, value, slope});
    return slope;
  }
};

/// Keep the logits small.
///
///     loss = weight · (1/N) Σ_n (log Σ_e exp z[n,e])²                                                    (2)
///
/// Source: Zoph et al. 2022, arXiv:2202.08906, eq. (5).
/// @cost N·E exponentials
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
