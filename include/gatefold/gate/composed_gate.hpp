#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/gate/auxiliary/auxiliary.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/gate/mixing/independent.hpp"
#include "gatefold/gate/scores/linear_scores.hpp"
#include "gatefold/gate/selection/dense.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/routing/sequence.hpp"

namespace gatefold {

/// A gate made of three parts: scores of the experts, mixing of the items' probabilities, and selection of experts.
///
///     z = scores(x),   (q, rank) = mixing(x, z),   plan = selection(x, rank, q)                         (1)
///
/// A scores policy maps items x [N, D] to logits z [N, E]. A mixing maps logits to probabilities q [N, E] and to ranks
/// [N, E], which order the experts. A selection turns q and ranks into a plan, which lists the chosen experts of all
/// items. candidates.hpp describes the interfaces of the parts. Auxiliary losses read the result: `forward` writes
/// their weighted values to `saved.auxiliary`, and `backward` adds their gradients. If `model_dim` or `experts` of
/// mixing or selection is 0, the gate takes the value from the scores.
/// @cost the sum of the costs of its parts
template <class ScoresT, class MixingT = detail_::policy::Misplaced<>, class SelectionT = detail_::policy::Misplaced<>,
          class... AuxiliaryT>
struct ComposedGate {
  GATEFOLD_REQUIRE(!detail_::policy::is_misplaced<SelectionT>,
                   "gatefold: ComposedGate takes scores, mixing, selection and optional auxiliary losses, for example "
                   "ComposedGate<LinearScores, Independent, TopK>; see docs/how-to/extending_parts.md#parts-of-a-gate");
  GATEFOLD_REQUIRE((detail_::auxiliary::fits<AuxiliaryT, SelectionT> && ...),
                   "gatefold: this auxiliary loss does not fit the selection: Load needs noise (NoisyTopK), GShard and "
                   "Load need picks in the order of the items (not ExpertChoice); see docs/how-to/extending.md#gate");
  GATEFOLD_REQUIRE(
      (!detail_::hook::selection::needs_logits<SelectionT>() || detail_::hook::mixing::ranks_are_logits<MixingT>()),
      "gatefold: this selection reads ranks as logits (ReluRouting), so use it with the mixing Independent, "
      "for example ComposedGate<LinearScores, Independent, ReluRouting>");
  using Scores = ScoresT;
  using Mixing = MixingT;
  using Selection = SelectionT;
  static constexpr bool items_adjoint_is_optional = detail_::hook::any::items_adjoint_is_optional<Scores>() &&
                                                    detail_::hook::any::items_adjoint_is_optional<Mixing>() &&
                                                    detail_::hook::any::items_adjoint_is_optional<Selection>();

  Scores scores{};
  Mixing mixing{};
  Selection selection{};
  std::conditional_t<
      (sizeof...(AuxiliaryT) > 0), std::tuple<AuxiliaryT...>,
      detail_::policy::Misuse<"gatefold: auxiliary losses are part of the type of a gate: WithAuxiliary<SoftmaxTopK, "
                              "Balance>{.scores = {.experts = 8}, .auxiliary = {Balance{.weight = 0.01}}}; see "
                              "docs/how-to/extending_parts.md#parts-of-a-gate">>
      auxiliary{};
  // The members below are not options. If a user sets one of them, the compiler prints its message, because the option
  // belongs to a part of the gate.
  [[no_unique_address]] detail_::policy::Misuse<
      "gatefold: the number of experts is an option of the scores of a gate: SoftmaxTopK{.scores = {.experts = 8}, "
      ".selection = {.k = 2}}; count_experts(gate) returns it; see docs/how-to/extending_parts.md#parts-of-a-gate">
      experts{};
  [[no_unique_address]] detail_::policy::Misuse<
      "gatefold: model_dim is an option of the scores of a gate: SoftmaxTopK{.scores = {.model_dim = 16, .experts = "
      "8}}; 0 takes the width of the experts; see docs/how-to/extending_parts.md#parts-of-a-gate">
      model_dim{};
  [[no_unique_address]] detail_::policy::Misuse<
      "gatefold: k is an option of the selection of a gate: SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = "
      "2}}; see docs/how-to/extending_parts.md#parts-of-a-gate">
      k{};

  template <class T, class B>
  using Plan = SparsePlan<T, B>;

  template <class T, class B>
  struct Params {
    gatefold::Params<Scores, T, B> scores;
    gatefold::Params<Mixing, T, B> mixing;
    gatefold::Params<Selection, T, B> selection;
    GATEFOLD_PACK(scores, mixing, selection)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> logits, probabilities;  // [N, E]
    gatefold::Saved<Mixing, T, B> mixing;
    gatefold::Saved<Selection, T, B> selection;
    Tensor<T, 1, B> auxiliary;  // weighted value of each auxiliary loss; empty unless extra.count_auxiliary
  };
  /// Additional inputs of the parts of a gate, and the mask `valid` of padding. An item that is padding goes to no
  /// expert, so the mixture writes 0 for it. Auxiliary losses do not count it. Its values affect no other item and no
  /// gradient of the gate and the experts.
  template <class T, class B, bool HasTrace>
  struct Inputs {
    using OfMixing = gatefold::Extra<Mixing, T, B>;
    using OfMixingWithoutTrace = gatefold::WithoutTrace<OfMixing>;
    gatefold::Extra<Scores, T, B> scores{};
    std::conditional_t<HasTrace, OfMixing, OfMixingWithoutTrace> mixing{};
    gatefold::Extra<Selection, T, B> selection{};
    View<const T, 1, B> valid{};  // [N] mask: 1 = item, 0 = padding; empty: no padding
    bool count_auxiliary = true;

    Inputs without_auxiliary() const { return {scores, mixing, selection, valid, false}; }
    /// The same inputs without the attention trace (tensors of the preceding attention). The caller passes this type if
    /// a Block supplies the trace.
    using WithoutTrace = Inputs<T, B, std::is_same_v<OfMixing, OfMixingWithoutTrace>>;
    static Inputs with_trace(const WithoutTrace& rest, const AttentionTrace<const T, B>& trace) {
      return {rest.scores, gatefold::with_trace<OfMixing>(rest.mixing, trace), rest.selection, rest.valid,
              rest.count_auxiliary};
    }
  };
  template <class T, class B>
  using Extra = Inputs<T, B, true>;
  template <class T, class B>
  struct ExtraGrad {
    gatefold::ExtraGrad<Mixing, T, B> mixing;
    void set_trace(const AttentionTrace<T, B>& trace) { gatefold::set_trace(mixing, trace); }
  };

  GATEFOLD_INIT(ComposedGate) {
    validate_options();
    const auto g = filled();
    return {init_params<T, B>(scores, ctx, seed.fork(0)), init_params<T, B>(g.mixing, ctx, seed.fork(1)),
            init_params<T, B>(g.selection, ctx, seed.fork(2))};
  }

  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    validate_options();
    const auto g = filled();
    if constexpr (detail_::hook::scores::validate<Scores, T, B>()) scores.validate(p.scores);
    if constexpr (detail_::hook::mixing::validate<Mixing, T, B>()) g.mixing.validate(p.mixing, items, extra.mixing);
    if constexpr (detail_::hook::selection::validate<Selection, T, B>())
      g.selection.validate(p.selection, items, extra.selection);
    if (extra.valid.data()) expect_shape("Gate.forward", "extra.valid", extra.valid, {items});
  }

  template <class T, class B>
  [[gnu::noinline]] void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Plan<T, B>& plan,
                                 Saved<T, B>& saved, const Extra<T, B>& extra = {}) const {
    validate_items(p, x, extra);
    const auto g = filled();
    auto mark = ctx.mark();
    const View<const T, 2, B> clean = without_padding<T, B>(ctx, x, extra.valid);
    for (auto* t : {&saved.logits, &saved.probabilities}) t->resize(x.extent(0), count_experts(scores));
    if constexpr (row_by_row<T, B>) {
      route_rows(ctx, g, p, clean, saved.logits.view(), saved.probabilities.view(), plan, extra);
    } else {
      with_extra_of_scores(
          extra, [&](const auto&... of) { scores.forward(ctx, p.scores, clean, saved.logits.view(), of...); });
      g.mixing.forward(ctx, p.mixing, clean, saved.logits, saved.probabilities, saved.mixing,
                       with_valid(extra.mixing, extra.valid));
      g.selection.forward(ctx, p.selection, candidates<T, B>(clean, saved, extra), plan, saved.selection,
                          with_valid(extra.selection, extra.valid));
      if (extra.valid.data()) build_without_padding(ctx, plan, extra);
    }

    constexpr bool own_loss = detail_::hook::selection::auxiliary_loss<Selection, T, B>();
    saved.auxiliary.resize(extra.count_auxiliary ? Index(sizeof...(AuxiliaryT)) + own_loss : 0);
    if (extra.count_auxiliary) {
      for_each_auxiliary([&](const auto& loss, Index i) {
        loss.template forward<T, B>(ctx, outcome(plan, saved, extra), saved.auxiliary.view().rows(i, 1));
      });
      if constexpr (own_loss)
        g.selection.auxiliary_loss(ctx, p.selection, candidates<T, B>(clean, saved, extra), plan, saved.selection,
                                   saved.auxiliary.view().rows(sizeof...(AuxiliaryT), 1));
    }
  }

  /// Writes the plan for inference, without auxiliary losses and without saved values. If mixing and selection work row
  /// by row, the logits are the only array [N, E] in scratch memory. If, in addition, the scores have forward_rows and
  /// the functors of mixing and selection accept rows at any address (see candidates.hpp), scratch memory holds the
  /// logits of only a few items at a time.
  template <class T, class B>
  [[gnu::noinline]] void infer(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Plan<T, B>& plan,
                               const Extra<T, B>& extra = {}) const {
    if constexpr (row_by_row<T, B>) {
      validate_items(p, x, extra);
      auto mark = ctx.mark();
      const View<const T, 2, B> clean = without_padding<T, B>(ctx, x, extra.valid);
      View<T, 2, B> z(nullptr, x.extent(0), count_experts(scores));
      if constexpr (!in_one_pass<T, B>) z = ctx.template scratch<T>(x.extent(0), count_experts(scores));
      route_rows(ctx, filled(), p, clean, z, z, plan, extra);
    } else {
      auto discarded = ctx.template acquire<Saved<T, B>>();
      forward(ctx, p, x, plan, *discarded, extra.without_auxiliary());
    }
  }

  template <class T, class B>
  [[gnu::noinline]] void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x,
                                  const Plan<T, B>& plan, const Saved<T, B>& saved,
                                  const typename Plan<T, B>::Grad& dplan, Out<T, 2, B> dx, Params<T, B>& grads,
                                  const Extra<T, B>& extra, ExtraGrad<T, B>& dextra) const {
    const Index items = x.extent(0);
    expect(plan.items() == items && plan.experts() == count_experts(scores), "Gate.backward", "saved plan",
           Joined{items, " items, ", count_experts(scores), " experts"},
           Joined{plan.items(), " items, ", plan.experts(), " experts"});
    expect_shape("Gate.backward", "saved.logits", saved.logits, {items, count_experts(scores)});
    expect_shape("Gate.backward", "saved.probabilities", saved.probabilities, {items, count_experts(scores)});
    auto mark = ctx.mark();
    const View<const T, 2, B> clean = without_padding<T, B>(ctx, x, extra.valid);
    const auto array = [&] { return ctx.template scratch<T>(x.extent(0), count_experts(scores)); };
    const auto zeros = [&] {
      auto d = array();
      fill(ctx, d, 0);
      return d;
    };
    constexpr bool rows = detail_::policy::RowByRowBackward<Mixing, Selection, T, B>;
    const bool losses = extra.count_auxiliary && sizeof...(AuxiliaryT) > 0;
    const auto g = filled();
    auto dz = array();
    View<T, 2, B> dq, drank, from_auxiliary;
    if (rows && !losses) {
      dq = array();
    } else {
      dq = zeros();
      drank = zeros();
    }
    NoisyRank<T, B> dnoisy{};
    if (losses) {
      from_auxiliary = zeros();
      const GateOutcome<T, B> seen = outcome(plan, saved, extra);
      if (seen.noisy.value.data()) dnoisy = {zeros(), zeros()};
      for_each_auxiliary([&](const auto& loss, Index) {
        loss.template backward<T, B>(ctx, seen, GateOutcomeGrad<T, B>{from_auxiliary, dq, drank, dnoisy});
      });
    }
    const Candidates<T, B> seen = candidates<T, B>(clean, saved, extra);
    const auto selection_extra = with_valid(extra.selection, extra.valid);
    if constexpr (rows) {
      B::for_rows(
          ctx, x.extent(0),
          functor::RouteRowBackward{g.mixing.rows_backward(seen.q, dq, dz),
                                    g.selection.rows_backward(seen, plan, dplan, dq, selection_extra), dq, losses});
      if (losses) add(ctx, drank, dz);
    } else {
      g.selection.backward(ctx, p.selection, seen, plan, saved.selection, dplan,
                           CandidatesGrad<T, B>{dx, drank, dq, dnoisy}, grads.selection, selection_extra);
      g.mixing.backward(ctx, p.mixing, clean, saved.logits, saved.probabilities, saved.mixing, drank, dq, dz, dx,
                        grads.mixing, with_valid(extra.mixing, extra.valid), dextra.mixing);
    }
    if (from_auxiliary.data()) add(ctx, from_auxiliary, dz);
    with_extra_of_scores(
        extra, [&](const auto&... of) { scores.backward(ctx, p.scores, clean, dz, dx, grads.scores, of...); });
  }

  /// Backward pass of a loss that reads only the probabilities, not the picks: adds gradients to dx, grads and dextra.
  /// `forward` wrote `saved`.
  /// @param dq  [N, E] in  the gradient of saved.probabilities
  template <class T, class B>
  void backward_probabilities(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved,
                              In<T, 2, B> dq, Out<T, 2, B> dx, Params<T, B>& grads, const Extra<T, B>& extra,
                              ExtraGrad<T, B>& dextra) const {
    auto mark = ctx.mark();
    const View<const T, 2, B> clean = without_padding<T, B>(ctx, x, extra.valid);
    const auto drank = ctx.template scratch<T>(dq.extent(0), dq.extent(1)),
               dz = ctx.template scratch<T>(dq.extent(0), dq.extent(1));
    fill(ctx, drank, 0);
    filled().mixing.backward(ctx, p.mixing, clean, saved.logits, saved.probabilities, saved.mixing, drank, dq, dz, dx,
                             grads.mixing, with_valid(extra.mixing, extra.valid), dextra.mixing);
    with_extra_of_scores(
        extra, [&](const auto&... of) { scores.backward(ctx, p.scores, clean, dz, dx, grads.scores, of...); });
  }

 private:
  void for_each_auxiliary(auto&& f) const {
    if constexpr (sizeof...(AuxiliaryT) > 0)
      std::apply([&, i = Index(0)](const auto&... loss) mutable { (f(loss, i++), ...); }, auxiliary);
  }
  /// The mixing and the selection of the gate with all options filled in. Options that were 0, for example `experts`,
  /// have the values of the scores.
  struct Filled {
    Mixing mixing;
    Selection selection;
  };
  Filled filled() const {
    const Index width = item_width(scores);
    if (width == 0) return {mixing, gatefold::with_experts(selection, count_experts(scores))};
    return {gatefold::with_model_dim(mixing, width),
            gatefold::with_experts(gatefold::with_model_dim(selection, width), count_experts(scores))};
  }
  void validate_options() const {
    expect(count_experts(scores) >= 1, "Gate", "scores.experts", "at least 1", count_experts(scores));
    if constexpr (detail_::hook::selection::validate_options<Selection>())
      filled().selection.validate_options(count_experts(scores));
    for_each_auxiliary([&](const auto& loss, Index) {
      if constexpr (detail_::hook::auxiliary::validate<std::remove_cvref_t<decltype(loss)>>())
        loss.validate(count_experts(scores));
    });
  }
  template <class T, class B>
  static constexpr bool row_by_row = detail_::policy::RowByRow<Mixing, Selection, T, B>;
  /// True if scores, mixing and selection of an item can run in one pass, while the logits of the item are in cache.
  template <class T, class B>
  static constexpr bool in_one_pass =
      detail_::policy::RowAnywhere<Mixing, Selection, T, B>&& detail_::hook::scores::forward_rows<Scores, T, B>();

  template <class T, class B>
  void validate_items(const Params<T, B>& p, View<const T, 2, B> x, const Extra<T, B>& extra) const {
    if (item_width(scores) > 0) expect_shape("Gate.forward", "x", x, {any_extent, item_width(scores)});
    validate(p, x.extent(0), extra);
  }
  /// Calls f with the extra inputs of the scores, or without an argument if the scores have none.
  static void with_extra_of_scores(const auto& extra, const auto& f) {
    if constexpr (detail_::named::Extra<Scores>()) {
      f(extra.scores);
    } else {
      f();
    }
  }
  /// Computes scores, mixing and selection row by row, and writes the plan. The probabilities q can be in the same
  /// memory as the logits z.
  template <class T, class B>
  void route_rows(auto& ctx, const Filled& g, const Params<T, B>& p, View<const T, 2, B> x, View<T, 2, B> z,
                  View<T, 2, B> q, Plan<T, B>& plan, const Extra<T, B>& extra) const {
    const View<const T, 2, B> logits = z;
    const Candidates<T, B> seen{x, logits, q, extra.valid, extra.count_auxiliary};
    const auto mix = g.mixing.rows(logits, q);
    const auto pick = g.selection.rows(seen, plan, with_valid(extra.selection, extra.valid));
    if constexpr (in_one_pass<T, B>) {
      scores.forward_rows(ctx, p.scores, x, z, functor::RouteRowAnywhere{mix, pick, q});
    } else {
      with_extra_of_scores(extra, [&](const auto&... of) { scores.forward(ctx, p.scores, x, z, of...); });
      B::for_rows(ctx, x.extent(0), functor::RouteRow{mix, pick});
    }
    if (extra.valid.data()) {
      build_without_padding(ctx, plan, extra);
    } else if constexpr (detail_::hook::selection::complete_picks<Selection>()) {
      plan.build_complete(ctx);
    } else {
      plan.build(ctx);
    }
  }
  template <class T, class B>
  static void build_without_padding(auto& ctx, Plan<T, B>& plan, const Extra<T, B>& extra) {
    B::for_each(ctx, plan.item.size(), functor::DropPadding<T, B>{extra.valid, plan.item, plan.expert});
    plan.build(ctx);
  }
  /// Returns the ranks [N, E] that the mixing computed. The selection orders the experts of each item by them; larger
  /// is better.
  template <class T, class B>
  View<const T, 2, B> rank(const Saved<T, B>& saved) const {
    const View<const T, 2, B> rank = mixing.rank(saved.logits.view(), saved.mixing);
    expect_shape("Gate", "rank(z, saved) of the mixing", rank, {saved.logits.extent(0), count_experts(scores)});
    return rank;
  }
  template <class T, class B>
  Candidates<T, B> candidates(In<T, 2, B> x, const Saved<T, B>& saved, const Extra<T, B>& extra) const {
    return {x, rank(saved), saved.probabilities, extra.valid, extra.count_auxiliary};
  }
  template <class T, class B>
  GateOutcome<T, B> outcome(const Plan<T, B>& plan, const Saved<T, B>& saved, const Extra<T, B>& extra) const {
    return {saved.logits, saved.probabilities, plan,
            extra.valid,  rank(saved),         detail_::selection::noisy_rank<T, B>(selection, saved.selection)};
  }
};

template <class S, class M, class P>
ComposedGate(S, M, P) -> ComposedGate<S, M, P>;
template <class S, class M, class P, class... A>
ComposedGate(S, M, P, std::tuple<A...>) -> ComposedGate<S, M, P, A...>;
template <class... P>
ComposedGate(P...) -> ComposedGate<detail_::policy::Misplaced<P...>>;

namespace detail_::policy {

template <class Scores, class Mixing, class Selection, class... AuxiliaryT>
struct Parts<ComposedGate<Scores, Mixing, Selection, AuxiliaryT...>> {
  template <class T, class B>
  static constexpr bool check() {
    return check_gate_parts<T, B, Scores, Mixing, Selection, AuxiliaryT...>();
  }
};

}  // namespace detail_::policy

/// The gate of the sparse mixture of experts: linear scores, softmax, and the K best experts.
///
/// Source: Shazeer et al. 2017, arXiv:1701.06538, without noise.
using SoftmaxTopK = ComposedGate<LinearScores, Independent, TopK>;
/// A gate that uses every expert, weighted by the softmax.
///
/// Source: Jacobs et al. 1991, "Adaptive mixtures of local experts".
using SoftmaxDense = ComposedGate<LinearScores, Independent, Dense>;

namespace detail_::lookup {

template <class Base, class... AuxiliaryT>
struct WithAuxiliary {
  GATEFOLD_REQUIRE(std::is_void_v<Base>,
                   "gatefold: WithAuxiliary takes a ComposedGate (scores, mixing, selection) and one or more auxiliary "
                   "losses: WithAuxiliary<SoftmaxTopK, Balance>; see docs/how-to/extending_parts.md#parts-of-a-gate");
  using Type = Base;
};
template <class Base, class... AuxiliaryT>
requires(sizeof...(AuxiliaryT) > 0) && requires {
  typename Base::Scores;
  typename Base::Mixing;
  typename Base::Selection;
}
struct WithAuxiliary<Base, AuxiliaryT...> {
  using Type = ComposedGate<typename Base::Scores, typename Base::Mixing, typename Base::Selection, AuxiliaryT...>;
};

}  // namespace detail_::lookup

/// The gate `Base` with the given auxiliary losses instead of its own, for example `WithAuxiliary<SoftmaxTopK,
/// Balance>{.scores = {…}, .auxiliary = {Balance{…}}}`.
template <class Base, class... AuxiliaryT>
using WithAuxiliary = typename detail_::lookup::WithAuxiliary<Base, AuxiliaryT...>::Type;

}  // namespace gatefold
