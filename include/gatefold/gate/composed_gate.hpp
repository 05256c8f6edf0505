#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/gate/auxiliary.hpp"
#include "gatefold/gate/candidates.hpp"
#include "gatefold/gate/dense.hpp"
#include "gatefold/gate/independent.hpp"
#include "gatefold/gate/linear_scores.hpp"
#include "gatefold/gate/top_k.hpp"
#include "gatefold/routing/attention_trace.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/policy.hpp"

namespace gatefold {

/// A gate out of three answers: how an item scores the experts, whether items share their probabilities, who is taken.
///
///     z = scores(x),   (q, rank) = mixing(x, z),   plan = selection(x, rank, q)                         (1)
///
/// A scores policy maps x to logits [N, E]; a mixing maps logits to probabilities q [N, E] and says what to rank by; a
/// selection turns both into a plan of picks (their interfaces: candidates.hpp). Auxiliary losses see the outcome; their values stand in
/// `saved.auxiliary` (already weighted), their gradients are added in `backward`.
/// @cost the sum of its parts
template <class ScoresT, class MixingT, class SelectionT, class... AuxiliaryT>
struct ComposedGate {
  using Scores = ScoresT;
  using Mixing = MixingT;
  using Selection = SelectionT;

  Scores scores{};
  Mixing mixing{};
  Selection selection{};
  std::tuple<AuxiliaryT...> auxiliary{};

  template <class T, class B>
  using Plan = SparsePlan<T, B>;

  template <class T, class B>
  struct Params {
    gatefold::Params<Scores, T, B> scores;
    gatefold::Params<Mixing, T, B> mixing;
    gatefold::Params<Selection, T, B> selection;
    template <class F, class... P>
    static void each(F&& f, P&... p) {
      f("scores", p.scores...);
      f("mixing", p.mixing...);
      f("selection", p.selection...);
    }
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> logits, probabilities;  // [N, E]
    gatefold::Saved<Scores, T, B> scores;
    gatefold::Saved<Mixing, T, B> mixing;
    gatefold::Saved<Selection, T, B> selection;
    Tensor<T, 1, B> auxiliary;  // one value per auxiliary loss, weighted; empty on further evaluations
  };
  /// Extra inputs of the parts, and which items are real. `valid` concerns auxiliary losses alone.
  template <class T, class B>
  struct Extra {
    gatefold::Extra<Mixing, T, B> mixing{};
    gatefold::Extra<Selection, T, B> selection{};
    View<const T, 1, B> valid{};  // [N] 1 = item, 0 = padding; empty: all are items
    bool count_auxiliary = true;

    Extra at(Index layer) const {
      return {at_layer(mixing, layer), at_layer(selection, layer), valid, count_auxiliary};
    }
    Extra without_auxiliary() const { return {mixing, selection, valid, false}; }

    struct Rest {
      gatefold::WithoutTrace<gatefold::Extra<Mixing, T, B>> mixing{};
      gatefold::Extra<Selection, T, B> selection{};
      View<const T, 1, B> valid{};
      bool count_auxiliary = true;

      Rest at(Index layer) const {
        return {at_layer(mixing, layer), at_layer(selection, layer), valid, count_auxiliary};
      }
    };
    /// What is left to give when a Block supplies the attention trace: everything, where no part asks for one.
    using WithoutTrace = std::conditional_t<
        std::is_same_v<gatefold::WithoutTrace<gatefold::Extra<Mixing, T, B>>, gatefold::Extra<Mixing, T, B>>, Extra, Rest>;
    static Extra with_trace(const WithoutTrace& rest, const AttentionTrace<const T, B>& trace) {
      return {gatefold::with_trace<gatefold::Extra<Mixing, T, B>>(rest.mixing, trace), rest.selection, rest.valid,
              rest.count_auxiliary};
    }
  };
  template <class T, class B>
  struct ExtraGrad {
    gatefold::ExtraGrad<Mixing, T, B> mixing;
    gatefold::ExtraGrad<Selection, T, B> selection;
    void set_trace(const AttentionTrace<T, B>& trace) { gatefold::set_trace(mixing, trace); }
  };

  Index experts() const { return scores.experts; }
  ComposedGate with_model_dim(Index model_dim) const {
    ComposedGate filled = *this;
    filled.scores = gatefold::with_model_dim(scores, model_dim);
    return filled;
  }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    if constexpr (requires { selection.validate(experts()); }) selection.validate(experts());
    return {init_params<T, B>(scores, ctx, seed.fork(0)), init_params<T, B>(mixing, ctx, seed.fork(1)),
            init_params<T, B>(selection, ctx, seed.fork(2))};
  }

  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    if constexpr (requires { scores.validate(p.scores); }) scores.validate(p.scores);
    if constexpr (requires { mixing.validate(p.mixing, items, extra.mixing); })
      mixing.validate(p.mixing, items, extra.mixing);
    if constexpr (requires { selection.validate(experts()); }) selection.validate(experts());
    if (extra.valid.data()) expect_shape("Gate.forward", "extra.valid", extra.valid, {items});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Plan<T, B>& plan, Saved<T, B>& saved,
               const Extra<T, B>& extra) const {
    const Index items = x.extent(0);
    saved.logits.resize(items, experts());
    saved.probabilities.resize(items, experts());
    scores.forward(ctx, p.scores, x, saved.logits);
    mixing.forward(ctx, p.mixing, x, saved.logits, saved.probabilities, saved.mixing, extra.mixing);
    selection.forward(ctx, p.selection, candidates<T, B>(x, saved), plan, saved.selection, extra.selection);

    saved.auxiliary.resize(extra.count_auxiliary ? Index(sizeof...(AuxiliaryT)) : 0);
    if (extra.count_auxiliary)
      for_each_auxiliary([&](const auto& loss, Index i) {
        loss.template forward<T, B>(ctx, outcome(plan, saved, extra), saved.auxiliary.view().rows(i, 1));
      });
  }

  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Plan<T, B>& plan,
                const Saved<T, B>& saved, const typename Plan<T, B>::Grad& dplan, Out<T, 2, B> dx, Params<T, B>& grads,
                const Extra<T, B>& extra, ExtraGrad<T, B>& dextra) const {
    auto mark = ctx.mark();
    auto zeros = [&] {
      auto d = ctx.template scratch<T>(x.extent(0), experts());
      fill(ctx, d, 0);
      return d;
    };
    auto drank = zeros(), dq = zeros(), dz = zeros(), from_auxiliary = zeros();
    if (extra.count_auxiliary)
      for_each_auxiliary([&](const auto& loss, Index) {
        loss.template backward<T, B>(ctx, outcome(plan, saved, extra), from_auxiliary, dq);
      });
    selection.backward(ctx, p.selection, candidates<T, B>(x, saved), plan, saved.selection, dplan,
                       CandidatesGrad<T, B>{dx, drank, dq}, grads.selection, extra.selection);
    mixing.backward(ctx, p.mixing, x, saved.logits, saved.probabilities, saved.mixing, drank, dq, dz, dx, grads.mixing,
                    extra.mixing, dextra.mixing);
    add(ctx, from_auxiliary, dz);
    scores.backward(ctx, p.scores, x, dz, dx, grads.scores);
  }

 private:
  template <class F>
  void for_each_auxiliary(F&& f) const {
    std::apply(
        [&](const auto&... loss) {
          Index i = 0;
          (f(loss, i++), ...);
        },
        auxiliary);
  }
  template <class T, class B>
  Candidates<T, B> candidates(In<T, 2, B> x, const Saved<T, B>& saved) const {
    return {x, mixing.rank(saved.logits.view(), saved.mixing), saved.probabilities};
  }
  template <class T, class B>
  GateOutcome<T, B> outcome(const Plan<T, B>& plan, const Saved<T, B>& saved, const Extra<T, B>& extra) const {
    return {saved.logits, saved.probabilities, plan, extra.valid};
  }
};

/// The gate of the sparse mixture of experts: linear scores, softmax, the K best.
using SoftmaxTopK = ComposedGate<LinearScores, Independent, TopK>;
/// Every expert, weighted by the softmax.
using SoftmaxDense = ComposedGate<LinearScores, Independent, Dense>;

namespace lookup {

template <class Base, class... AuxiliaryT>
struct WithAuxiliary {
  using Type = ComposedGate<typename Base::Scores, typename Base::Mixing, typename Base::Selection, AuxiliaryT...>;
};

}  // namespace lookup

/// A gate with auxiliary losses: `WithAuxiliary<SoftmaxTopK, Balance>{.scores = {…}, .auxiliary = {Balance{…}}}`.
template <class Base, class... AuxiliaryT>
using WithAuxiliary = typename lookup::WithAuxiliary<Base, AuxiliaryT...>::Type;

}  // namespace gatefold
