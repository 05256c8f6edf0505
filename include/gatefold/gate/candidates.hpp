#pragma once

#include <concepts>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/routing/sparse_plan.hpp"

/// Interfaces of the three parts of a gate (scores, mixing and selection), and the data that they pass to each other.
///
/// A scores policy computes a logit for each of N items and E experts. If it declares additional inputs (`Extra`),
/// forward and backward take them as last argument:
///
///     forward (ctx, params, x, z) const;                                                   // writes z [N, E]
///     backward(ctx, params, x, dz, dx, grads) const;                                       // adds to dx
///
/// A mixing policy turns logits into probabilities, and returns the values by which experts are ranked:
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
/// If mixing and selection compute each item independently and neither has Saved, they can work row by row, in one pass
/// while a row is in cache (`rows`, `rows_backward` of policy/hooks.hpp). A mixing with `rows` must rank by z. For item
/// n, a selection with `rows` may read only row n of rank and q, and its backward may add only to the gradient of q.
///
/// If the scores have forward_rows, a backend can compute the logits of a few items and choose the experts of these
/// items while the logits are in cache. This needs functors that accept a row at any address: f.row(lanes, n, z_row,
/// q_row) of the mixing, and f.choose(lanes, n, rank_row) and f.weigh(lanes, n, q_row) of the selection. These
/// functions are optional. If the parts have them, rank and q of the candidates can be views that have extents but no
/// memory.
///
/// In these functors, several lanes (threads) can compute one row together. Lane 0 writes and reads the chosen experts.
/// Lane e mod size, with `size` the number of lanes, writes and reads element e of a row.
///
/// The picks of a plan can have any order. TopK and similar selections write pick j of item n at n·K + j, best first.
/// Capacity and some losses need this order. Selections with a different order have `picks_by_item = false`. A pick
/// that was chosen and then dropped is stored as ~expert. In an unused entry of the plan, the expert is no_pick.
///
/// Each part can have validate: scores.validate(params), mixing.validate(params, items, extra) and
/// selection.validate(params, items, extra). A selection can also have validate_options(experts). If `model_dim` or
/// `experts` of a mixing or a selection is 0, the gate takes the value from the scores (with_model_dim, with_experts).
namespace gatefold {

/// The input of a selection.
template <class T, class B>
struct Candidates {
  View<const T, 2, B> x;         // [N, D] the items
  View<const T, 2, B> rank;      // [N, E] larger is better: logits, or log q if the mixing averages over items
  View<const T, 2, B> q;         // [N, E] probabilities
  View<const T, 1, B> valid{};   // [N] 1 = item, 0 = padding; empty: no padding. Read by selections that compare items
  bool first_evaluation = true;  // false in a later evaluation of the layer in one pass: loads and losses do not count
};

/// The noisy values by which a selection ordered the experts, value = rank + deviation · noise, and the deviations.
/// Both views are empty if no noise was drawn.
template <class T, class B>
struct NoisyRank {
  View<T, 2, B> value{}, deviation{};  // [N, E]
};

namespace detail_::selection {

/// Returns the noisy values by which a selection ordered the experts, or empty views if the selection has no member
/// `noisy`.
template <class T, class B, class SelectionT, class SavedT>
NoisyRank<const T, B> noisy_rank(const SelectionT& selection, const SavedT& saved) {
  if constexpr (detail_::hook::selection::noisy<SelectionT, T, B>()) {
    return selection.noisy(saved);
  } else {
    return {};
  }
}

}  // namespace detail_::selection

/// Gradients of the members of Candidates. backward of a selection adds to x, rank and q. `noisy` is an input: the
/// gradients of the auxiliary losses with respect to NoisyRank. Its views are empty if the gate has no auxiliary losses
/// or drew no noise.
template <class T, class B>
struct CandidatesGrad {
  View<T, 2, B> x, rank, q;
  NoisyRank<T, B> noisy{};
};

/// Checks in backward of a selection that the plan (the list of picks of a batch) has `each` picks per item, as forward
/// wrote it.
/// @throws ArgumentError if the plan has a different number of picks
template <class T, class B>
void expect_picks(const char* where, const SparsePlan<T, B>& plan, Index items, Index each) {
  expect(plan.weight.size() == items * each, where, "saved picks",
         Joined{items * each, " (", each, " for each of ", items, " items)"}, plan.weight.size());
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
/// True if the function rank() of a mixing returns a tensor by value instead of a view. This is an error, because the
/// view that the gate takes of this tensor would dangle.
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

/// True if a part of a gate saves no values for backward. Only then can mixing and selection run row by row, because a
/// functor for one row has no access to saved values.
template <class P, class T, class B>
concept KeepsNothing = std::same_as<Saved<P, T, B>, Nothing<T, B>>;

/// True if forward of the mixing and of the selection can run item by item, in one pass over the rows of the logits.
/// Both parts then have a function `rows` that returns a functor for one row.
template <class M, class S, class T, class B>
concept RowByRow = KeepsNothing<M, T, B> && KeepsNothing<S, T, B> &&
    detail_::hook::mixing::rows<M, T, B>() && detail_::hook::selection::rows<S, T, B>();
/// True if the functors of mixing and selection also accept a row of logits at any address, for example in cache. They
/// then have the functions `row`, `choose` and `weigh`, which take a pointer to the row.
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

/// Returns true if the three types can be the parts of a gate: scores, a mixing and a selection. If they cannot, the
/// compiler reports the first unmet requirement.
template <class ScoresT, class MixingT, class SelectionT, class T, class B>
constexpr bool check_parts() {
  GATEFOLD_EXPECT(
      (HasInit<ScoresT, T, B> && HasInit<MixingT, T, B> && HasInit<SelectionT, T, B>),
      "gatefold: scores, mixing and selection with Params need Params<T, B> init<T, B>(ctx, seed) const; see "
      "docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT(!detail_::named::Saved<ScoresT>() && !detail_::named::ExtraGrad<ScoresT>(),
                  "gatefold: scores must not have Saved or ExtraGrad: their backward gets x again and computes no "
                  "adjoint of their Extra; see docs/how-to/extending_parts.md#parts-of-a-gate")
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
                  "gatefold: rank of a mixing must return a view of z or of saved: a local tensor is destroyed when "
                  "rank returns; see docs/how-to/extending_parts.md#parts-of-a-gate")
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
                  "gatefold: forward and backward of scores, mixing and selection must take params as const Params<T, "
                  "B>&, or as const Nothing<T, B>& if the policy has no parameters. const auto& would also accept the "
                  "parameters of another model; see docs/how-to/extending.md#what-all-policies-share")
  return detail_::hook::scores::all<ScoresT, T, B>() && detail_::hook::mixing::all<MixingT, T, B>() &&
         detail_::hook::selection::all<SelectionT, T, B>();
}

}  // namespace detail_::policy

namespace functor {

/// Runs the mixing and the selection of a gate for item n. The experts are chosen from the ranks before the mixing
/// writes the probabilities, so that ranks and probabilities can be in the same memory.
template <class MixT, class PickT>
struct RouteRow {
  MixT mix;
  PickT pick;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    pick.choose(lanes, n);
    mix(lanes, n);
    pick.weigh(lanes, n);
  }
};
template <class M, class P>
RouteRow(M, P) -> RouteRow<M, P>;
/// Runs the mixing and the selection of a gate for item n like RouteRow, but reads the logits from a row at any
/// address. If q has no memory, the probabilities overwrite the logits in this row.
template <class MixT, class PickT, class T, class B>
struct RouteRowAnywhere {
  MixT mix;
  PickT pick;
  View<T, 2, B> q;

  GATEFOLD_HD void operator()(const auto& lanes, Index n, T* z_row) const {
    T* const q_row = q.data() ? q.data() + n * q.extent(1) : z_row;
    pick.choose(lanes, n, z_row);
    mix.row(lanes, n, z_row, q_row);
    pick.weigh(lanes, n, q_row);
  }
};
template <class M, class P, class T, class B>
RouteRowAnywhere(M, P, View<T, 2, B>) -> RouteRowAnywhere<M, P, T, B>;
/// Runs backward of the selection and then of the mixing for item n. `pick` is backward of the selection, which adds to
/// dq[n,:], the gradient of the probabilities. If `accumulate` is false, dq[n,:] is set to 0 first.
template <class MixT, class PickT, class T, class B>
struct RouteRowBackward {
  MixT mix;
  PickT pick;
  View<T, 2, B> dq;
  bool accumulate;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    if (!accumulate) zero_columns(lanes, &dq(n, 0), dq.extent(1));
    pick(lanes, n);
    mix(lanes, n);
  }
};
template <class M, class P, class T, class B>
RouteRowBackward(M, P, View<T, 2, B>, bool) -> RouteRowBackward<M, P, T, B>;

/// Marks pick p of a plan as dropped if its item is padding.
template <class T, class B>
struct DropPadding {
  View<const T, 1, B> valid;
  View<const Index, 1, B> item;
  View<Index, 1, B> expert;
  GATEFOLD_HD void operator()(Index p) const {
    if (valid(item(p)) == 0 && expert(p) >= 0) expert(p) = ~expert(p);
  }
};

}  // namespace functor

}  // namespace gatefold
