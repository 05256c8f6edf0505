#pragma once

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/post_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/update/plain.hpp"

namespace gatefold {

/// Adds a residual connection around a whole layer: the output is x plus the output of the layer. Residual does this
/// for a branch; unlike a branch, a layer can have a carry (a state passed from layer to layer).
///
///     y, carry ← x + z, carry,   z, carry ← layer(x, carry)                                             (1)
///
/// Source: the code of paper 001, whose mixture has two residual connections, one inside the other. Parameters have the
/// names of the layer's parameters; extra inputs go to the layer.
/// @param x [N, D] in, y [N, D] out
/// @throws ArgumentError unless in_dim of the layer equals its out_dim
/// @cost   the layer and N·D additions
template <class LayerT>
struct Skip {
  LayerT layer;

  GATEFOLD_AROUND_LAYER(LayerT, layer)

  GATEFOLD_PARAMS_OF(layer, Inner<T, B>)
  template <class T, class B>
  using Saved = gatefold::Saved<Inner<T, B>, T, B>;

  GATEFOLD_INIT_OF(Skip, as_layer<T, B>(layer))
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Carry<T, B>>& carry,
                const NonDeduced<Extra<T, B>>& extra) const {
    expect(in_dim() == out_dim(), "Skip", "layer.out_dim", Joined{in_dim(), " (its in_dim)"}, out_dim());
    gatefold::validate(as_layer<T, B>(layer), p.layer, items, carry, extra);
  }

  GATEFOLD_LAYER_PASSES(Skip)

 private:
  GATEFOLD_RUN_LAYER {
    run_layer<T, B>(as_layer<T, B>(layer), ctx, p.layer, x, carry, y, keep, extra);
    add(ctx, x, y);
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    add(ctx, dy, dx);
    run_layer_backward<T, B>(as_layer<T, B>(layer), ctx, p.layer, x, saved, dy, dcarry, dx, grads.layer, extra, dextra);
  }
};
template <class L>
Skip(L) -> Skip<L>;

/// Returns attention with a residual connection, followed by a norm. It is the first half of reference_layer. If the
/// gate of the second half (reference_mixture_layer) reads the attention, put the two halves into a Block.
auto reference_attention_layer(const auto& attention) {
  return PostNorm{Residual{update::Plain{}, attention}, LayerNorm{}};
}
template <class RuleT, class BranchT>
auto reference_mixture_layer(const RuleT& rule, const BranchT& branch) {
  return PostNorm{Skip{PostNorm{Residual{rule, branch}, LayerNorm{}}}, LayerNorm{}};
}

/// The transformer layer of the code of papers 001 and 002: attention, then a mixture of experts with an update rule.
/// Norms follow the residual connections. The mixture has two norms and two residual connections:
///
///     h₁ = LN₁(h + attention(h)),   z, carry ← rule(h₁, carry; branch),   h' = LN₃(h₁ + LN₂(z))         (1)
///
/// Source: MomentumSMoE's `TransformerSeqLayer`. Its update rule is `update::Plain{}` or `update::HeavyBall{.mu = 0.7,
/// .gamma = -1}`; gamma is negative because the code subtracts the momentum. Its branch is `Dropout{0.1, Mixture{…}}`,
/// and its attention is `RelativeAttention::reference({…})`. The equation in the papers is `Residual{rule,
/// PreNorm{LayerNorm{}, branch}}`.
template <class AttentionT, class RuleT, class BranchT>
auto reference_layer(const AttentionT& attention, const RuleT& rule, const BranchT& branch) {
  return Chain{reference_attention_layer(attention), reference_mixture_layer(rule, branch)};
}

}  // namespace gatefold
