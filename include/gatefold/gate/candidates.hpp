#pragma once

#include <concepts>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/policy/probe.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/view.hpp"

/// What stands between the parts of a gate.
///
/// A scores policy turns items into logits; one with an Extra takes it as a last argument:
///
///     forward (ctx, params, x, z) const;                                                   // writes z [N, E]
///     backward(ctx, params, x, dz, dx, grads) const;                                       // adds to dx
///
/// A mixing policy turns logits into probabilities, and says what to rank experts by:
///
///     forward (ctx, params, x, z, q, saved, extra) const;                                  // writes q [N, E]
///     rank    (z, saved) const;                                                            // a view [N, E]
///     backward(ctx, params, x, z, q, saved, drank, dq, dz, dx, grads, extra, dextra) const;  // writes dz, adds to dx
///
/// A selection policy turns candidates into a plan:
///
///     forward (ctx, params, candidates, plan, saved, extra) const;
///     backward(ctx, params, candidates, plan, saved, dplan, d, grads, extra) const;        // adds to d.x, d.rank, d.q
///
/// Where mixing and selection work on every item alone and neither has Saved, they may do so row by row, in one pass
/// while a row is in cache (`rows`, `rows_backward` of policy/hooks.hpp). Such a mixing ranks by z, and such a
/// selection reads row n of rank and q and adds to q alone.
///
/// Where scores have forward_rows, a backend keeps the logits of some items close and routes them there, if these
/// functors take rows wherever they stand: mixing's as f.row(lanes, n, z_row, q_row), selection's as f.choose(lanes, n,
/// rank_row) and f.weigh(lanes, n, q_row), all optional. Then rank and q of the candidates may have extents alone, and
/// no memory.
///
/// What lane 0 chose, and element e of a row, is written and read by lane 0 and lane e mod size.
///
/// Picks p of the plan stand in any order; TopK and its relatives write pick j of item n at n·K + j, best first, which
/// Capacity and some losses need (a selection of which that is not true says `picks_by_item = false`). A pick that was
/// chosen and then dropped stands as ~expert, a place that no pick uses as no_pick.
///
/// Each part may have validate: scores.validate(params), mixing.validate(params, items, extra) and
/// selection.validate(params, items, extra); a selection also validate_options(experts). Options a part left 0 are
/// filled: `model_dim` through with_model_dim, `experts` through with_experts.
namespace gatefold {

/// What a selection chooses from.
template <class T, class B>
struct Candidates {
  View<const T, 2, B> x;         // [N, D] the items
  View<const T, 2, B> rank;      // [N, E] larger is better: logits, or log q after mixing
  View<const T, 2, B> q;         // [N, E] probabilities
  View<const T, 1, B> valid{};   // [N] 1 = item, 0 = padding; empty: all are items. For selections that compare items
  bool first_evaluation = true;  // false when a rule evaluates the same layer again: what counts per step counts once
};

/// What a noisy selection ranked by: rank + deviation · noise. Empty views where no noise was drawn.
template <class T, class B>
struct NoisyRank {
  View<T, 2, B> value{}, deviation{};  // [N, E]
};

/// The adjoint of candidates; a selection adds to x, rank and q. `noisy` comes in, from auxiliary losses that looked at
/// NoisyRank; its views are empty where there are none.
template <class T, class B>
struct CandidatesGrad {
  View<T, 2, B> x, rank, q;
  NoisyRank<T, B> noisy{};
};

/// Require that forward of this selection made the plan: of each item as many picks as it takes.
/// @throws ArgumentError
template <class T, class B>
void expect_picks(const char* where, const SparsePlan<T, B>& plan, Index items, Index each) {
  expect(plan.weight.size() == items * each, where, "saved picks",
         Joined{items * each, " (", each, " of each of ", items, " items)"}, plan.weight.size());
}

namespace detail_::policy {

template <class S, class T, class B, class Given = Params<S, T, B>>
concept ScoresForward = requires(const S scores, Probe<T, B> a, const Given& params, const Extra<S, T, B>& extra) {
  requires requires { scores.forward(a.ctx, params, a.in, a.out); } || requires {
    scores.forward(a.ctx, params, a.in, a.out, extra);
  };
};
template <class S, class T, class B, class Given = Params<S, T, B>>
concept ScoresBackward = requires(const S scores, Probe<T, B> a, const Given& params, Params<S, T, B>& grads,
                                  const Extra<S, T, B>& extra) {
  requires requires { scores.backward(a.ctx, params, a.in, a.in, a.out, grads); } || requires {
    scores.backward(a.ctx, params, a.in, a.in, a.out, grads, extra);
  };
};
template <class M, class T, class B, class Given = Params<M, T, B>>
concept MixingForward = requires(const M mixing, Probe<T, B> a, const Given& params, Saved<M, T, B>& saved,
                                 const Extra<M, T, B>& extra) {
  mixing.forward(a.ctx, params, a.in, a.in, a.out, saved, extra);
  { mixing.rank(a.in, saved) } -> std::convertible_to<View<const T, 2, B>>;
};
/// Whether what a mixing ranks by ends with the call that returns it.
template <class M, class T, class B>
concept RanksByTensor = requires(const M mixing, Probe<T, B> a, Saved<M, T, B>& saved) {
  requires detail_::pack::is_tensor<decltype(mixing.rank(a.in, saved))>;
};
template <class M, class T, class B, class Given = Params<M, T, B>>
concept MixingBackward = requires(const M mixing, Probe<T, B> a, const Given& params, const Saved<M, T, B>& saved,
                                  Params<M, T, B>& grads, const Extra<M, T, B>& extra, ExtraGrad<M, T, B>& dextra) {
  mixing.backward(a.ctx, params, a.in, a.in, a.in, saved, a.in, a.in, a.out, a.out, grads, extra, dextra);
};
template <class S, class T, class B, class Given = Params<S, T, B>>
concept SelectionForward = requires(const S selection, Probe<T, B> a, const Given& params, const Candidates<T, B>& c,
                                    SparsePlan<T, B>& plan, Saved<S, T, B>& saved, const Extra<S, T, B>& extra) {
  selection.forward(a.ctx, params, c, plan, saved, extra);
};
template <class S, class T, class B, class Given = Params<S, T, B>>
concept SelectionBackward = requires(const S selection, Probe<T, B> a, const Given& params, const Candidates<T, B>& c,
                                     const SparsePlan<T, B>& plan, const Saved<S, T, B>& saved,
                                     const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                                     Params<S, T, B>& grads, const Extra<S, T, B>& extra) {
  selection.backward(a.ctx, params, c, plan, saved, dplan, d, grads, extra);
};

/// Whether a part keeps nothing for backward: one pass over rows has no place for it.
template <class P, class T, class B>
concept KeepsNothing = std::same_as<Saved<P, T, B>, Nothing<T, B>>;

/// Whether mixing and selection work row by row, forward and backward.
template <class M, class S, class T, class B>
concept RowByRow = KeepsNothing<M, T, B> && KeepsNothing<S, T, B> &&
    detail_::hook::mixing::rows<M, T, B>() && detail_::hook::selection::rows<S, T, B>();
/// Whether they do so on rows that stand anywhere.
template <class M, class S, class T, class B>
concept RowAnywhere = RowByRow<M, S, T, B> &&
    requires(const M mixing, const S selection, Probe<T, B> a, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
             const Extra<S, T, B>& extra, OneLane lanes, const T* from, T* to) {
  mixing.rows(a.in, a.out).row(lanes, Index(0), from, to);
  selection.rows(c, plan, extra).choose(lanes, Index(0), from);
  selection.rows(c, plan, extra).weigh(lanes, Index(0), from);
};
template <class M, class S, class T, class B>
concept RowByRowBackward = KeepsNothing<M, T, B> && KeepsNothing<S, T, B> &&
    detail_::hook::mixing::rows_backward<M, T, B>() && detail_::hook::selection::rows_backward<S, T, B>();

/// True for three parts of a gate; otherwise the first unmet requirement is reported in one sentence.
template <class ScoresT, class MixingT, class SelectionT, class T, class B>
constexpr bool check_parts() {
  GATEFOLD_EXPECT(
      (HasInit<ScoresT, T, B> && HasInit<MixingT, T, B> && HasInit<SelectionT, T, B>),
      "gatefold: scores, mixing and selection with Params need Params<T, B> init<T, B>(ctx, seed) const; see "
      "docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT(
      !detail_::named::Saved<ScoresT>() && !detail_::named::ExtraGrad<ScoresT>(),
      "gatefold: scores keep nothing for backward, which is given x again, and send no adjoint to their Extra: they "
      "have no Saved or ExtraGrad of their own; see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT((ScoresForward<ScoresT, T, B>),
                  "gatefold: scores need forward(ctx, params, x, z) const, with an extra as last argument if they have "
                  "Extra; see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT(
      (ScoresBackward<ScoresT, T, B>),
      "gatefold: scores need backward(ctx, params, x, dz, dx, grads) const, with an extra as last argument if "
      "they have Extra; see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT(
      (MixingForward<MixingT, T, B>),
      "gatefold: a mixing needs forward(ctx, params, x, z, q, saved, extra) const and rank(z, saved) const; "
      "see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT((!RanksByTensor<MixingT, T, B>),
                  "gatefold: rank of a mixing returns a view of what lives on, of z or of saved: a tensor of its own "
                  "ends with the call; see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT(
      (MixingBackward<MixingT, T, B>),
      "gatefold: a mixing needs backward(ctx, params, x, z, q, saved, drank, dq, dz, dx, grads, extra, dextra) "
      "const; see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT((SelectionForward<SelectionT, T, B>),
                  "gatefold: a selection needs forward(ctx, params, candidates, plan, saved, extra) const; see "
                  "docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT(
      (SelectionBackward<SelectionT, T, B>),
      "gatefold: a selection needs backward(ctx, params, candidates, plan, saved, dplan, d, grads, extra) const; "
      "see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT((!ScoresForward<ScoresT, T, B, Foreign> && !ScoresBackward<ScoresT, T, B, Foreign> &&
                   !MixingForward<MixingT, T, B, Foreign> && !MixingBackward<MixingT, T, B, Foreign> &&
                   !SelectionForward<SelectionT, T, B, Foreign> && !SelectionBackward<SelectionT, T, B, Foreign>),
                  "gatefold: forward and backward of scores, mixing and selection take params as const Params<T, B>& "
                  "(const Nothing<T, B>& without any), never as const auto&, which would take those of another model; "
                  "see docs/how-to/extending.md#what-all-policies-share")
  return detail_::hook::scores::all<ScoresT, T, B>() && detail_::hook::mixing::all<MixingT, T, B>() &&
         detail_::hook::selection::all<SelectionT, T, B>();
}

}  // namespace detail_::policy
}  // namespace gatefold
