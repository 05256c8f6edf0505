#pragma once

#include "layer.hpp"

/// Makes gates that mix items, with the sizes of the paper Graph of Tokens: causal attention over sequences of 512
/// items.
namespace bench {

inline constexpr Index kLength = 512, kHeads = 8;

/// An attention over the items of a batch. An attention-aware gate recomputes the attention weights from its trace: the
/// queries, keys and log-sum-exp that the attention has saved.
class Attended {
 public:
  Attended(Cpu::Context& ctx, const Tensor<float, 2, Cpu>& x)
      : attention_{.model_dim = x.extent(1), .heads = kHeads},
        params_(init_params<float, Cpu>(attention_, ctx, Seed{4})),
        u_(x.extent(0), x.extent(1)) {
    attention_.forward(ctx, params_, x, u_, saved_, {.length = kLength});
  }
  AttentionTrace<const float, Cpu> trace() const { return attention_.trace(params_, saved_); }

 private:
  Attention attention_;
  Params<Attention, float, Cpu> params_;
  Saved<Attention, float, Cpu> saved_;
  Tensor<float, 2, Cpu> u_;  // [N, D]
};

/// Floating-point operations that mixing adds to a causal forward. TokenSimilarity computes the inner products of all
/// pairs of items. For AttentionPosterior, posterior_flop also counts a projection of each item. The implementation of
/// AttentionPosterior needs fewer operations than posterior_flop for these sizes (see its @cost).
inline double similarity_flop(Index items, Index dim) { return 1.0 * static_cast<double>(items * kLength * dim); }
inline double posterior_flop(Index items, Index dim) {
  return similarity_flop(items, dim) + 2.0 * static_cast<double>(items * dim * (dim / kHeads));
}

template <class MixingT>
using MixingGate = ComposedGate<LinearScores, MixingT, TopK>;

template <class MixingT>
MixingGate<MixingT> mixing_gate(const Shape& s, const MixingT& mixing) {
  return {.scores = {.experts = s.experts, .bias = false}, .mixing = mixing, .selection = {.k = s.picks}};
}
inline auto mixing_extra(const TokenSimilarity&, const AttentionTrace<const float, Cpu>&) {
  return Extra<MixingGate<TokenSimilarity>, float, Cpu>{.mixing = {.length = kLength}};
}
inline auto mixing_extra(const AttentionPosterior&, const AttentionTrace<const float, Cpu>& trace) {
  return Extra<MixingGate<AttentionPosterior>, float, Cpu>{{}, {trace, {}}, {}};
}

}  // namespace bench
