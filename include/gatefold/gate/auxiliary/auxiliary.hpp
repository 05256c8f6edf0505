#pragma once

#include <cmath>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/gate/candidates.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/routing/sparse_plan.hpp"

/// Auxiliary losses of a gate. An auxiliary loss is an aggregate with
///
///     forward (ctx, a, value) const;               // writes weight · loss to value [1]
///     backward(ctx, a, d) const;                   // adds its gradient to the members of d it used
///     validate(experts) const;                     // optional: checks its options before anything is written
///
/// Here `a` is the outcome of the gate and d its gradient. Items with valid[n] = 0 are padding and do not count. A loss
/// that reads picks n·K … n·K + K − 1 as the picks of item n has `static constexpr bool needs_picks_by_item = true;`. A
/// loss that reads `noisy` has `needs_noise = true`. A gate does not compile if its selection lacks the required
/// property.
namespace gatefold {

/// The outcome of a gate, which its auxiliary losses read.
template <class T, class B>
struct GateOutcome {
  View<const T, 2, B> logits, probabilities;  // [N, E]
  const SparsePlan<T, B>& plan;
  View<const T, 1, B> valid;      // [N] 1 = item, 0 = padding; empty: all are items
  View<const T, 2, B> rank{};     // [N, E] the values by which experts were ranked, without noise
  NoisyRank<const T, B> noisy{};  // the same with noise; empty if none was drawn
};
/// The gradient of a GateOutcome. `noisy` is empty if that of the outcome is.
template <class T, class B>
struct GateOutcomeGrad {
  View<T, 2, B> logits, probabilities, rank;  // [N, E]
  NoisyRank<T, B> noisy{};
};

namespace detail_::auxiliary {

/// Whether a selection has the properties that a loss needs.
template <class LossT, class SelectionT>
inline constexpr bool fits = (!detail_::hook::auxiliary::needs_picks_by_item<LossT>() ||
                              detail_::hook::selection::picks_by_item<SelectionT>()) &&
                             (!detail_::hook::auxiliary::needs_noise<LossT>() ||
                              detail_::hook::selection::shows_noise<SelectionT>());

}  // namespace detail_::auxiliary

namespace detail_::policy {

template <class L, class T, class B>
concept AuxiliaryForward = requires(const L loss, typename B::Context& ctx, const GateOutcome<T, B>& a,
                                    View<T, 1, B> value) {
  loss.template forward<T, B>(ctx, a, value);
};
template <class L, class T, class B>
concept AuxiliaryBackward = requires(const L loss, typename B::Context& ctx, const GateOutcome<T, B>& a,
                                     const GateOutcomeGrad<T, B>& d) {
  loss.template backward<T, B>(ctx, a, d);
};
/// Whether a part of a gate is in the place of another kind of part.
template <class P, bool stands, class T, class B>
concept Elsewhere = !stands && (ScoresForward<P, T, B> || MixingForward<P, T, B> || SelectionForward<P, T, B> ||
                                AuxiliaryForward<P, T, B>);

/// Returns true for the parts of a gate. Otherwise the compiler reports the first unmet requirement in one sentence.
template <class T, class B, class ScoresT, class MixingT, class SelectionT, class... AuxiliaryT>
constexpr bool check_gate_parts() {
  GATEFOLD_EXPECT(
      (!Elsewhere<ScoresT, ScoresForward<ScoresT, T, B>, T, B> &&
       !Elsewhere<MixingT, MixingForward<MixingT, T, B>, T, B> &&
       !Elsewhere<SelectionT, SelectionForward<SelectionT, T, B>, T, B> &&
       (!Elsewhere<AuxiliaryT, AuxiliaryForward<AuxiliaryT, T, B>, T, B> && ...)),
      "gatefold: the parts of this gate are in another order: ComposedGate<scores, mixing, selection, auxiliary "
      "losses...>, ComposedGate<LinearScores, Independent, TopK, Balance> say; see "
      "docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT((AuxiliaryForward<AuxiliaryT, T, B> && ...),
                  "gatefold: this is no auxiliary loss of a gate, Balance or ZLoss say, which needs forward<T, B>(ctx, "
                  "a, value) const of a GateOutcome a; see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT((AuxiliaryBackward<AuxiliaryT, T, B> && ...),
                  "gatefold: an auxiliary loss needs backward<T, B>(ctx, a, d) const, which adds to what d, a "
                  "GateOutcomeGrad, has; see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT(
      (!detail_::named::Params<AuxiliaryT>() && ...) && (!detail_::named::Saved<AuxiliaryT>() && ...) &&
          (!detail_::named::Extra<AuxiliaryT>() && ...),
      "gatefold: an auxiliary loss is options and what it computes of a GateOutcome: it has no Params, Saved "
      "or Extra of its own; see docs/how-to/extending_parts.md#parts-of-a-gate")
  return check_parts<ScoresT, MixingT, SelectionT, T, B>() && (detail_::hook::auxiliary::all<AuxiliaryT>() && ...);
}

}  // namespace detail_::policy

namespace functor {

template <class T, class B>
struct Valid {
  View<const T, 1, B> valid;
  GATEFOLD_HD T operator()(Index n) const { return valid.data() ? valid(n) : T(1); }
};

/// total[e] = Σ_n q[n,e] over the valid items, for one strip of adjacent experts
template <class T, class B>
struct TotalOfExperts {
  static constexpr Index width = 8;
  View<const T, 2, B> q;
  Valid<T, B> valid;
  View<T, 1, B> total;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index strip) const {
    const Index first = strip * width, left = q.extent(1) - first;
    double sum[width] = {};  // in double, because a float sum over all items would lose small terms
    for (Index n = lanes.lane; n < q.extent(0); n += lanes.size) {
      if (valid(n) == 0) continue;  // padding can hold NaN
      const T* row = q.data() + n * q.extent(1) + first;
      if (left >= width) {
        for (Index i = 0; i < width; ++i) sum[i] += static_cast<double>(row[i]);
      } else {
        for (Index i = 0; i < left; ++i) sum[i] += static_cast<double>(row[i]);
      }
    }
    for (Index i = 0; i < width && i < left; ++i) {
      const double all = lanes.sum(sum[i]);
      if (lanes.lane == 0) total(first + i) = static_cast<T>(all);
    }
  }
};
/// key[i] = the expert of pick i · stride, dropped or not; -1 for padding and for places without a pick
template <class T, class B>
struct LoadKey {
  View<const Index, 1, B> item, expert;
  Index stride;
  Valid<T, B> valid;
  View<Index, 1, B> key;
  GATEFOLD_HD void operator()(Index i) const {
    const Index p = i * stride;
    key(i) = expert(p) == no_pick || valid(item(p)) == 0 ? Index(-1) : chosen(expert(p));
  }
};
/// value = weight · E · Σ_e f_e P_e, and slope[e] = f_e · weight · E / (normaliser of P_e) for backward
template <class T, class B>
struct BalanceValue {
  View<const Index, 1, B> offsets;  // [E + 1] of the picks, grouped by expert
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
/// dq[n,e] += slope[e] for valid items: the gradient of a loss that depends on q only through TotalOfExperts
template <class T, class B>
struct TotalBackward {
  View<const T, 1, B> slope;
  Valid<T, B> valid;
  View<T, 2, B> dq;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const T scale = valid(n);
    T* to = &dq(n, 0);
    each_column<T>(lanes, dq.extent(1),
                   [&](auto at, Index e) { at.store(to + e, at.load(to + e) + scale * at.load(slope.data() + e)); });
  }
};

/// (log Σ_e exp z[n,e])² of a valid item
template <class T, class B>
struct SquaredLogSumExp {
  View<const T, 2, B> z;
  Valid<T, B> valid;
  /// Keeps two numbers, because in top + log(total) a large top would swallow digits of the logarithm.
  struct Sum {
    T top, total;  // total of exp(z − top)
    GATEFOLD_HD T log() const { return top + std::log(total); }
  };
  GATEFOLD_HD Sum sum_exp(Index n) const {
    T top = z(n, 0), total = 0;
    for (Index e = 1; e < z.extent(1); ++e) top = z(n, e) > top ? z(n, e) : top;
    for (Index e = 0; e < z.extent(1); ++e) total += std::exp(z(n, e) - top);
    return {top, total};
  }
  GATEFOLD_HD T operator()(Index n) const {
    if (valid(n) == 0) return 0;
    const T v = sum_exp(n).log();
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
    const auto sum = row.sum_exp(n);
    const T scale = 2 * weight * sum.log() / count(0) / sum.total;
    for (Index e = 0; e < dz.extent(1); ++e) dz(n, e) += scale * std::exp(row.z(n, e) - sum.top);
  }
};

/// Returns K, the number of picks of every item.
/// @throws ArgumentError on the host, unless the picks of item n are n·K … n·K + K − 1
template <class T, class B>
Index picks_per_item(const GateOutcome<T, B>& a) {
  const Index items = a.plan.items(), picks = a.plan.expert.size();
  const Index each = items > 0 && picks > items ? picks / items : Index(1);
  if constexpr (B::is_host)  // on a device the check would have to wait for the stream
    for (Index p = 0; p < picks; ++p)
      if (const Index item = p / each; a.plan.item(p) != item)
        expect(false, "Gate", Joined{"the item of pick ", p},
               Joined{item,
                      " (an auxiliary loss needs picks by item; a selection that has others says `static "
                      "constexpr bool picks_by_item = false`)"},
               a.plan.item(p));
  return each;
}

/// Returns the number of valid items, in memory of the backend.
template <class C, class T, class B>
View<T, 1, B> count_valid(C& ctx, const GateOutcome<T, B>& a) {
  auto items = ctx.template scratch<T>(1);
  fill(ctx, items, 0);
  B::template reduce<T>(ctx, a.logits.extent(0), Valid<T, B>{a.valid}, items.data());
  return items;
}

/// Writes Σ_n q[n,:] over the valid items.
template <class C, class T, class B>
void expert_totals(C& ctx, const GateOutcome<T, B>& a, View<T, 1, B> total) {
  const TotalOfExperts<T, B> strips{a.probabilities, {a.valid}, total};
  B::for_rows(ctx, divide_up(total.size(), strips.width), strips);
}

/// Computes value and slopes of E Σ_e f_e P_e, with f_e the share of e in every `stride`-th pick. The slopes are in
/// scratch memory, so take a mark first.
template <class C, class T, class B>
View<T, 1, B> balance(C& ctx, const GateOutcome<T, B>& a, Index stride, NonDeduced<T> weight, bool per_pick,
                      Out<T, 1, B> value) {
  const Index experts = a.probabilities.extent(1), picks = divide_up(a.plan.expert.size(), stride);
  auto key = ctx.template scratch<Index>(picks), order = ctx.template scratch<Index>(picks);
  auto offsets = ctx.template scratch<Index>(experts + 1);
  auto total = ctx.template scratch<T>(experts), slope = ctx.template scratch<T>(experts);
  auto items = count_valid(ctx, a);
  B::for_each(ctx, picks, LoadKey<T, B>{a.plan.item, a.plan.expert, stride, {a.valid}, key});
  B::group_by(ctx, key, offsets, order);
  expert_totals(ctx, a, total);
  B::for_each(ctx, 1, BalanceValue<T, B>{offsets, total, items, weight, per_pick, value, slope});
  return slope;
}

}  // namespace functor

/// A loss for an even load of the experts.
///
///     loss = weight · E · Σ_e f_e P_e,   f_e = share of the picks,   P_e = (1/N) Σ_n q[n,e]              (1)
///
/// The loss is 1 · weight at perfect balance. f is a count, which includes dropped picks, so the gradient flows only
/// through P.
/// Source: Fedus et al. 2021, arXiv:2101.03961, eq. (4)-(6), which has K = 1; here for K picks. With per_pick, P_e is
/// divided by N·K as in the reference code of papers 001 and 002, so the loss is weight / K at balance.
/// @throws ArgumentError unless weight is finite
/// @cost  N·(E + K) reads and a counting sort of the picks
/// @order picks are counted in integers, P is summed in double in the order of the items
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

/// A loss that keeps the logits small.
///
///     loss = weight · (1/N) Σ_n (log Σ_e exp z[n,e])²                                                    (2)
///
/// Source: Zoph et al. 2022, arXiv:2202.08906, eq. (5).
/// @throws ArgumentError unless weight is finite
/// @cost  N·E exponentials
/// @order as `reduce`: first within blocks of items, then over the blocks
struct ZLoss {
  double weight = 0.001;

  void validate(Index) const { expect_finite("ZLoss", "weight", weight); }
  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    auto count = functor::count_valid(ctx, a);
    fill(ctx, value, 0);
    B::template reduce<T>(ctx, a.logits.extent(0), functor::SquaredLogSumExp<T, B>{a.logits, {a.valid}}, value.data());
    B::for_each(ctx, 1, functor::ScaleByCount<T, B>{T(weight), count, value});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    auto count = functor::count_valid(ctx, a);
    B::for_each(ctx, a.logits.extent(0),
                functor::ZLossBackward<T, B>{{a.logits, {a.valid}}, T(weight), count, d.logits});
  }
};

}  // namespace gatefold
