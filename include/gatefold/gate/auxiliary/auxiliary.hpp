#pragma once

#include "gatefold/gate/candidates.hpp"

/// Interface of the auxiliary losses of a gate, for example for an even load of the experts. An auxiliary loss is a
/// struct of options with the members below. `a` is the result of the gate (GateOutcome), and `d` is its gradient.
///
///     forward (ctx, a, value) const;               // writes weight · loss to value [1]
///     backward(ctx, a, d) const;                   // adds the gradient of value to d
///     validate(experts) const;                     // optional: checks its options before anything is written
///
/// backward adds to a member of `d` only if the loss reads the same member of `a`. Items with valid[n] = 0 are padding
/// and do not count. A loss that reads picks n·K … n·K + K − 1 as the picks of item n declares `static constexpr bool
/// needs_picks_by_item = true;`. A loss that reads `noisy` declares `needs_noise = true`. A gate does not compile if
/// its selection lacks a required property.
namespace gatefold {

/// The result of a gate for a batch of N items and E experts, which its auxiliary losses read.
template <class T, class B>
struct GateOutcome {
  View<const T, 2, B> logits, probabilities;  // [N, E]
  const SparsePlan<T, B>& plan;
  View<const T, 1, B> valid;      // [N] mask: 1 = item, 0 = padding; empty: no padding
  View<const T, 2, B> rank{};     // [N, E] values by which the experts were ranked, before noise was added
  NoisyRank<const T, B> noisy{};  // noisy ranks and deviations; empty if the selection drew no noise or has no `noisy`
};
/// Gradients of auxiliary losses with respect to the members of GateOutcome. The views of `noisy` are empty if those of
/// GateOutcome::noisy are empty.
template <class T, class B>
struct GateOutcomeGrad {
  View<T, 2, B> logits, probabilities, rank;  // [N, E]
  NoisyRank<T, B> noisy{};
};

namespace detail_::auxiliary {

/// True if the selection of a gate (the part that chooses experts) fulfils the requirements of an auxiliary loss. A
/// loss can require picks in the order of the items, and access to the noise.
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
/// True if P is a part of a gate that was passed in the wrong place, for example a selection in the place of the
/// scores.
/// @tparam stands  true if P is the kind of part that belongs in the place where it was passed
template <class P, bool stands, class T, class B>
concept Elsewhere = !stands && (ScoresForward<P, T, B> || MixingForward<P, T, B> || SelectionForward<P, T, B> ||
                                AuxiliaryForward<P, T, B>);

/// Returns true if a gate can consist of the given types: scores, mixing, selection and auxiliary losses. If it cannot,
/// the compiler reports the first unmet requirement.
template <class T, class B, class ScoresT, class MixingT, class SelectionT, class... AuxiliaryT>
constexpr bool check_gate_parts() {
  GATEFOLD_EXPECT((!Elsewhere<ScoresT, ScoresForward<ScoresT, T, B>, T, B> &&
                   !Elsewhere<MixingT, MixingForward<MixingT, T, B>, T, B> &&
                   !Elsewhere<SelectionT, SelectionForward<SelectionT, T, B>, T, B> &&
                   (!Elsewhere<AuxiliaryT, AuxiliaryForward<AuxiliaryT, T, B>, T, B> && ...)),
                  "gatefold: the parts of this gate are in the wrong order: ComposedGate<scores, mixing, selection, "
                  "auxiliary losses...>, for example ComposedGate<LinearScores, Independent, TopK, Balance>; see "
                  "docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT(
      (AuxiliaryForward<AuxiliaryT, T, B> && ...),
      "gatefold: this is not an auxiliary loss of a gate (for example Balance or ZLoss): it needs forward<T, B>(ctx, "
      "a, value) const, with a GateOutcome a; see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT((AuxiliaryBackward<AuxiliaryT, T, B> && ...),
                  "gatefold: an auxiliary loss needs backward<T, B>(ctx, a, d) const, which adds to the "
                  "GateOutcomeGrad d; see docs/how-to/extending_parts.md#parts-of-a-gate")
  GATEFOLD_EXPECT((!detail_::named::Params<AuxiliaryT>() && ...) && (!detail_::named::Saved<AuxiliaryT>() && ...) &&
                      (!detail_::named::Extra<AuxiliaryT>() && ...),
                  "gatefold: an auxiliary loss reads only its options and a GateOutcome: it must not have Params, "
                  "Saved or Extra; see docs/how-to/extending_parts.md#parts-of-a-gate")
  return check_parts<ScoresT, MixingT, SelectionT, T, B>() &&
         (detail_::hook::auxiliary::all<AuxiliaryT, T, B>() && ...);
}

}  // namespace detail_::policy

namespace functor {

template <class T, class B>
struct Valid {
  View<const T, 1, B> valid;
  GATEFOLD_HD T operator()(Index n) const { return valid.data() ? valid(n) : T(1); }
};

/// Returns K, the number of picks (chosen experts) of each item.
/// @throws ArgumentError unless picks n·K … n·K + K − 1 belong to item n. On a GPU, this is not checked
template <class T, class B>
Index picks_per_item(const GateOutcome<T, B>& a) {
  const Index items = a.plan.items(), picks = a.plan.expert.size();
  const Index each = items > 0 && picks > items ? picks / items : Index(1);
  if constexpr (B::is_host)  // on a GPU, the check would have to wait for the stream
    for (Index p = 0; p < picks; ++p)
      if (const Index item = p / each; a.plan.item(p) != item)
        expect(false, "Gate", Joined{"the item of pick ", p},
               Joined{item,
                      " (an auxiliary loss needs picks in the order of the items; a selection with another order must "
                      "declare `static constexpr bool picks_by_item = false`)"},
               a.plan.item(p));
  return each;
}

/// Returns the number of items that are not padding, as a view [1] of scratch memory. The memory is valid until the
/// caller's mark (`auto mark = ctx.mark();`) goes out of scope.
template <class C, class T, class B>
View<T, 1, B> count_valid(C& ctx, const GateOutcome<T, B>& a) {
  auto items = ctx.template scratch<T>(1);
  fill(ctx, items, 0);
  B::template reduce<T>(ctx, a.logits.extent(0), Valid<T, B>{a.valid}, items.data());
  return items;
}

}  // namespace functor

}  // namespace gatefold
