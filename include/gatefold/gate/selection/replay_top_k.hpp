#pragma once

#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), ReplayPicks);

/// Picks recorded experts instead of the best ones (router replay). The weights are computed as in TopK from the
/// probabilities q of this model, so that the router of this model is trained.
///
///     I(n) = recorded[n·K … n·K + K − 1],   w[n,e] = q[n,e] / Σ_{f ∈ I(n)} q[n,f]   (renormalise)        (1)
///                                           w[n,e] = q[n,e]                          (otherwise)         (2)
///
/// Use ReplayTopK if a text was generated with slightly different parameters or by another program, and training must
/// use the experts of the generation. Row l of `recorded` is the member `expert` of the plan of layer l:
///
///     for_each_mixture(saved, [&](const auto& mixture) { /* append mixture.plan.expert, [N·K] */ });
///     using Gate = ComposedGate<LinearScores, Independent, ReplayTopK>;
///     Mixture{Gate{.scores = {.experts = 8}, .selection = {.k = 2}}, expert}
///
/// If the experts of an item depend only on its token (the hash routing of DeepSeek-V4), make `recorded` from a table
/// with the experts of each token.
///
/// Source: Ma et al. 2025, arXiv:2510.11370 (rollout routing replay); the weights as in TopK. If `renormalise` is true
/// and the probabilities of all recorded experts of an item underflow to 0, the weights of the item are NaN.
/// @param extra  recorded [layers, N·K]: the experts of each item in each layer of a stack
/// @param q [N, E] in   probabilities
/// @throws ArgumentError unless 1 <= k <= experts and `recorded` has N·K entries for each layer. On a host backend,
///         also unless the entries are in [0, E) and the experts of each item are different
/// @cost   S = N·K picks
/// @order  the recorded order
struct ReplayTopK {
  Index k = 2;
  bool renormalise = true;

  template <class T, class B>
  struct Extra {
    View<const Index, 2, B> recorded{};  // [layers, N·K]

    Extra at(Index l) const {
      expect(l < recorded.extent(0), "ReplayTopK", "extra.recorded",
             Joined{"at least ", l + 1, " rows, because layer ", l, " reads its row"}, recorded.extent(0));
      return {recorded.rows(l, 1)};
    }
  };

  void validate_options(Index experts) const {
    expect(k >= 1 && k <= experts, "ReplayTopK", "k", Joined{"1 <= k <= experts = ", experts}, k);
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, const Extra<T, B>& extra) const {
    expect(extra.recorded.extent(0) >= 1, "ReplayTopK", "extra.recorded",
           "the recorded experts [layers, items · k] in the extra inputs", "none");
    expect(extra.recorded.extent(1) == items * k, "ReplayTopK", "extra.recorded",
           Joined{"rows of ", items * k, " experts (", items, " items, k = ", k, ")"},
           Joined{"rows of ", extra.recorded.extent(1)});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Extra<T, B>& extra) const {
    const Index items = c.q.extent(0), experts = c.q.extent(1);
    validate_options(experts);
    validate(p, items, extra);
    const View<const Index, 1, B> recorded(extra.recorded.data(), items * k);
    if constexpr (B::is_host)
      for (Index i = 0; i < recorded.extent(0); ++i) {
        bool fits = 0 <= recorded(i) && recorded(i) < experts;
        for (Index j = i / k * k; j < i; ++j) fits = fits && recorded(j) != recorded(i);
        expect(fits, "ReplayTopK", Joined{"extra.recorded(0, ", i, ")"},
               Joined{"an expert from 0 to ", experts - 1, " that item ", i / k, " has not picked yet"}, recorded(i));
      }
    plan.resize(items, experts, items * k);
    B::for_rows(ctx, items,
                functor::ReplayPicks<T, B>{recorded, {c.q, c.q, k, renormalise, plan.item, plan.expert, plan.weight}});
    plan.build_complete(ctx);
  }
  /// Adds the gradient of q to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Nothing<T, B>&, const Extra<T, B>&) const {
    expect_picks("ReplayTopK.backward", plan, c.q.extent(0), k);
    B::for_rows(ctx, c.q.extent(0),
                functor::PickTopKBackward<T, B>{c.q, plan.expert, dplan.weight, k, renormalise, d.q});
  }
};

namespace functor {

/// Writes the recorded experts of item n to the plan, and computes their weights.
template <class T, class B>
struct ReplayPicks {
  View<const Index, 1, B> recorded;
  PickTopK<T, B> picks;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    if (lanes.lane == 0)
      for (Index j = n * picks.k; j < (n + 1) * picks.k; ++j) {
        picks.item(j) = n;
        picks.expert(j) = recorded(j);
      }
    picks.weigh(lanes, n);
  }
};

}  // namespace functor

}  // namespace gatefold
