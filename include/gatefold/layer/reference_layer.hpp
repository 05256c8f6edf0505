#pragma once

#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/post_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/skip.hpp"
#include "gatefold/update/plain.hpp"

namespace gatefold {

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
/// Source: MomentumSMoE's `TransformerSeqLayer`. Its rules are `update::Plain{}` and `update::HeavyBall{.mu = 0.7,
/// .gamma = -1}`, because its code subtracts momentum. Its branch is `Dropout{0.1, Mixture{…}}`, its attention
/// `RelativeAttention::reference({…})`. The papers' own equation is `Residual{rule, PreNorm{LayerNorm{}, branch}}`.
template <class AttentionT, class RuleT, class BranchT>
auto reference_layer(const AttentionT& attention, const RuleT& rule, const BranchT& branch) {
  return Chain{reference_attention_layer(attention), reference_mixture_layer(rule, branch)};
}

}  // namespace gatefold
