#pragma once

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/importance.hpp"
#include "gatefold/gate/auxiliary/load.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/mixing/attention_posterior.hpp"
#include "gatefold/gate/mixing/independent.hpp"
#include "gatefold/gate/mixing/token_similarity.hpp"
#include "gatefold/gate/scores/cosine_scores.hpp"
#include "gatefold/gate/scores/jitter.hpp"
#include "gatefold/gate/scores/linear_scores.hpp"
#include "gatefold/gate/scores/patch_scores.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/distilled_top_1.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "gatefold/gate/selection/noisy_top_1.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/gate/selection/random_second.hpp"
#include "gatefold/gate/selection/relu_routing.hpp"
#include "gatefold/gate/selection/scheduled_top_k.hpp"
#include "gatefold/gate/selection/sigmoid_bias.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/gate/weight_on_input.hpp"

/// Gates under the names of their papers. Each option is set in the braces of the part that it belongs to:
///
///     SimilarityAware<XMoe>{.scores = {.experts = 8}, .mixing = {.tau = 2}, .selection = {.k = 2}}
///
/// Each name is a ComposedGate of certain parts, except SigmoidOnInput, which wraps one in WeightOnInput. The default
/// of each option comes from its part, not from the paper. If the settings of the paper differ, namespace `published`
/// has a function that returns a gate with them.
namespace gatefold {

/// A gate that adds uniform noise and picks the best expert, weighted by the softmax without noise. It is the router of
/// Mixture of Transformers.
///
/// Source: papers 000 and 003; Chen et al. 2022, arXiv:2208.02813.
using SoftmaxNoisyTop1 = ComposedGate<LinearScores, Independent, NoisyTop1<>>;
/// The router of Mixture of Transformers (SoftmaxNoisyTop1), with separate score weights for every patch of an item.
///
/// Source: paper 003, sec. 3.
using PatchNoisyTop1 = ComposedGate<PatchScores, Independent, NoisyTop1<>>;
/// A gate that adds Gaussian noise with a learned deviation and picks the K best experts. It has the auxiliary losses
/// Importance and Load.
///
/// Source: Shazeer et al. 2017, arXiv:1701.06538. The defaults have a router bias and the losses of V-MoE;
/// `published::shazeer` has the paper's settings.
using SoftmaxNoisyTopK = ComposedGate<LinearScores, Independent, NoisyTopK<>, Importance, Load>;
/// The router of V-MoE: it adds noise, picks the K best experts, and limits the number of picks of each expert (its
/// capacity).
///
/// Source: Riquelme et al. 2021, arXiv:2106.05974. The defaults have the learned noise of Shazeer et al.;
/// `published::vmoe` has the paper's settings.
using VMoe = ComposedGate<LinearScores, Independent, Capacity<NoisyTopK<>>, Importance, Load>;
/// The router of the Switch Transformer: it multiplies its inputs by random factors near 1 (jitter), picks the best
/// experts, and limits the picks of each expert (capacity).
///
/// Source: Fedus et al. 2021, arXiv:2101.03961. The defaults have K = 2 with renormalised weights;
/// `published::switch_transformer` has the paper's settings.
using Switch = ComposedGate<Jitter<LinearScores>, Independent, Capacity<TopK>, Balance>;
/// A gate that picks the two best experts, drops the second one at random if the gate gets noise, limits the picks of
/// each expert (capacity), and has the balance loss of GShard.
///
/// Source: Lepikhin et al. 2020, arXiv:2006.16668. The defaults have the capacity of V-MoE; `published::gshard` has the
/// paper's settings.
using GShardTop2 = ComposedGate<LinearScores, Independent, Capacity<RandomSecond>, GShard>;
/// A gate that picks the K best experts by the cosine of the angle between item and expert, in a space of few
/// dimensions.
///
/// Source: X-MoE, Chi et al. 2022, arXiv:2204.09179.
using XMoe = ComposedGate<CosineScores, Independent, TopK>;
/// A gate with a random router that is not trained. The number of experts per item can grow during training.
///
/// Source: SMoE-Dropout, Chen et al. 2023, arXiv:2303.01610.
using SmoeDropout = ComposedGate<FixedScores, Independent, ScheduledTopK>;
/// A gate that picks the K best experts by the sigmoids of their logits. A bias per expert balances the load instead of
/// an auxiliary loss.
///
/// Source: Wang et al. 2024, arXiv:2408.15664. The defaults have a router bias and weights that sum to 1;
/// `published::aux_loss_free` and `published::deepseek_v3` have the papers' settings.
using SigmoidTopK = ComposedGate<LinearScores, Independent, SigmoidBias>;
/// A gate that picks the K best experts by their logits, and multiplies the input of a picked expert by the sigmoid of
/// its logit.
///
/// Source: Llama 4 (transformers' modeling_llama4.py). The defaults have K = 2, a router bias, and weights that sum to
/// 1; `published::llama4` has the settings of the model.
using SigmoidOnInput = WeightOnInput<ComposedGate<LinearScores, IndependentSigmoid, TopK>>;
/// A gate that uses every expert with a positive logit, with the logit as weight. A loss with an adaptive coefficient
/// steers the mean number of experts of an item.
///
/// Source: ReMoE, Wang et al. 2024, arXiv:2412.14711.
using ReMoe = ComposedGate<LinearScores, Independent, ReluRouting>;
/// A gate that picks one expert and weights it by the sigmoid of its logit. After a first stage of training, a router
/// that reads only the token of an item picks the expert, so that the experts of a token no longer change.
///
/// Source: StableMoE, Dai et al. 2022, arXiv:2204.08396. The defaults have a router bias; `published::stable_moe` has
/// the paper's settings.
using StableMoe = ComposedGate<LinearScores, Independent, DistilledTop1>;
/// A gate in which each expert chooses its items, instead of each item its experts.
///
/// Source: Zhou et al. 2022, arXiv:2202.09368.
using SoftmaxExpertChoice = ComposedGate<LinearScores, Independent, ExpertChoice>;

namespace detail_::lookup {

template <class Base, class MixingT>
struct WithMixing {
  GATEFOLD_REQUIRE(
      std::is_void_v<Base>,
      "gatefold: SimilarityAware, AttentionAware and WithMixing take a ComposedGate (scores, mixing, selection) and "
      "replace its mixing; this gate is not a ComposedGate; see docs/how-to/extending_parts.md#parts-of-a-gate");
  using Type = Base;
};
template <class ScoresT, class OldT, class SelectionT, class... AuxiliaryT, class MixingT>
struct WithMixing<ComposedGate<ScoresT, OldT, SelectionT, AuxiliaryT...>, MixingT> {
  using Type = ComposedGate<ScoresT, MixingT, SelectionT, AuxiliaryT...>;
};

}  // namespace detail_::lookup

/// The gate `Base` with its mixing (how items share their probabilities) replaced by `MixingT`. Scores, selection and
/// auxiliary losses stay the same.
template <class Base, class MixingT>
using WithMixing = typename detail_::lookup::WithMixing<Base, MixingT>::Type;
/// The gate `Base`, in which the probabilities of an item are averaged over similar items.
///
/// Source: paper 002, eq. (7), (8).
template <class Base>
using SimilarityAware = WithMixing<Base, TokenSimilarity>;
/// The gate `Base`, in which the probabilities of an item are averaged over the items to which the item attends. A
/// Block passes the tensors of the attention (the attention trace) to the gate.
///
/// Source: paper 002, eq. (14)-(16).
template <class Base>
using AttentionAware = WithMixing<Base, AttentionPosterior>;

/// Functions that return gates with the settings of a publication, for example `published::vmoe({.experts = 8, .factor
/// = 4})`. The braces take the options that the publication varies. The default of an option is the value of the
/// publication, if the publication names one. If `experts` is 0, the Mixture fills it in. To change any other option,
/// assign to a member of the returned gate.
namespace published {

/// Options of `shazeer`.
struct ShazeerOptions {
  Index experts = 0, k = 4;
};
/// Returns the gate of Shazeer et al. 2017: no router bias, initial values of 0 for router and noise, and weights of
/// 0.1 for the importance and load losses. In the load loss, the threshold of an expert depends only on the other
/// experts (`Load::shazeer`).
inline SoftmaxNoisyTopK shazeer(ShazeerOptions o = {}) {
  return {.scores = {.experts = o.experts, .bias = false, .initial = Initial::zero()},
          .selection = {.k = o.k},
          .auxiliary = {Importance::shazeer(), Load::shazeer()}};
}
/// Options of `vmoe`.
struct VMoeOptions {
  Index experts = 0, k = 2;
  double factor = 1.05;
  Index group = 0;
};
/// Returns the gate of V-MoE. It has no router bias, noise with a fixed deviation of 1/E for E experts, and the softmax
/// over all experts as weights. The weights of the importance and load losses are 0.005. The capacity is `factor` times
/// the even share of `group` items (0: all items), rounded up to a multiple of 4. The paper has a factor of 1.05 in
/// training and 4 in evaluation. The losses are computed over the whole batch; they are not the mean over groups.
inline VMoe vmoe(VMoeOptions o = {}) {
  return {.scores = {.experts = o.experts, .bias = false},
          .selection = {.selection = NoisyTopK<>::vmoe({.k = o.k}), .factor = o.factor, .group = o.group}};
}
/// Options of `switch_transformer`.
struct SwitchOptions {
  Index experts = 0;
  double factor = 1.25;
};
/// Returns the gate of the Switch Transformer: one expert per item with its softmax probability as weight, jitter of
/// 0.01, a capacity of 1.25 times the even share, and a balance loss with weight 0.01.
inline Switch switch_transformer(SwitchOptions o = {}) {
  return {.scores = {.scores = {.experts = o.experts, .bias = false}},
          .selection = {.selection = {.k = 1, .renormalise = false}, .factor = o.factor, .multiple_of = 1}};
}
/// Options of `gshard`.
struct GShardOptions {
  Index experts = 0;
  double factor = 1;
};
/// Returns the gate of GShard: the two best experts, with weights that sum to 1 over these two. With noise, the second
/// expert is kept with probability min(1, 2w), with w its weight. With `factor` = 1, the capacity of an expert is
/// 2·N/E, the even share of N items with two picks each.
inline GShardTop2 gshard(GShardOptions o = {}) {
  return {.scores = {.experts = o.experts, .bias = false}, .selection = {.factor = o.factor, .multiple_of = 1}};
}
/// Options of `stable_moe`.
struct StableMoeOptions {
  Index experts = 0, vocabulary = 0;
};
/// Returns the gate of StableMoE: no router bias, a balance loss with weight 0.3, and a distilled router with
/// embeddings of 50 values. The initial weights of the router are those of LinearScores; the paper's code has
/// orthogonal ones.
inline StableMoe stable_moe(StableMoeOptions o = {}) {
  return {.scores = {.experts = o.experts, .bias = false}, .selection = {.vocabulary = o.vocabulary}};
}
/// Options of `aux_loss_free`: the number of experts, and the number k of experts per item.
struct AuxLossFreeOptions {
  Index experts = 0, k = 6;
};
/// Returns the gate of Wang et al. 2024, which needs no auxiliary loss. It has no router bias, the sigmoids of the
/// logits as weights without renormalisation, and steps of 0.001 for the bias that balances the load.
inline SigmoidTopK aux_loss_free(AuxLossFreeOptions o = {}) {
  return {.scores = {.experts = o.experts, .bias = false},
          .selection = {.k = o.k, .renormalise = false, .speed = 0.001}};
}
/// Options of `deepseek_v3`.
struct DeepSeekV3Options {
  Index experts = 256, k = 8, groups = 8, top_groups = 4;
  double scale = 2.5;
};
/// Returns the gate of DeepSeek-V3 (arXiv:2412.19437): no router bias, weights that sum to `scale`, experts only from
/// the best 4 of 8 groups, and steps of 0.001 for the bias that balances the load. The balance loss of DeepSeek-V3 over
/// sequences (SequenceBalance) is not included.
inline SigmoidTopK deepseek_v3(DeepSeekV3Options o = {}) {
  return {.scores = {.experts = o.experts, .bias = false},
          .selection = {.k = o.k, .scale = o.scale, .speed = 0.001, .groups = o.groups, .top_groups = o.top_groups}};
}
/// Options of `llama4`.
struct Llama4Options {
  Index experts = 16, k = 1;
};
/// Returns the gate of Llama 4. It has no router bias, and multiplies the inputs of the experts by the sigmoids of the
/// logits, without renormalisation.
inline SigmoidOnInput llama4(Llama4Options o = {}) {
  return {{.scores = {.experts = o.experts, .bias = false}, .selection = {.k = o.k, .renormalise = false}}};
}

}  // namespace published
}  // namespace gatefold
