#pragma once

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/gshard.hpp"
#include "gatefold/gate/auxiliary/importance.hpp"
#include "gatefold/gate/auxiliary/load.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/mixing/attention_posterior.hpp"
#include "gatefold/gate/mixing/token_similarity.hpp"
#include "gatefold/gate/scores/cosine_scores.hpp"
#include "gatefold/gate/scores/fixed_scores.hpp"
#include "gatefold/gate/scores/jitter.hpp"
#include "gatefold/gate/scores/patch_scores.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "gatefold/gate/selection/noisy_top_1.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/gate/selection/scheduled_top_k.hpp"
#include "gatefold/gate/selection/sigmoid_bias.hpp"
#include "gatefold/gate/selection/top_k.hpp"

/// Gates under the names of their papers. Options are in the braces of the parts:
///
///     SimilarityAware<XMoe>{.scores = {.experts = 8}, .mixing = {.tau = 2}, .selection = {.k = 2}}
///
/// Each name is a ComposedGate of certain parts. Options have the defaults of the parts, which are not the settings of
/// one paper. If a paper's settings differ from these defaults, namespace `published` has them.
namespace gatefold {

/// The best expert under uniform noise, weighted by the noise-free softmax: the router of Mixture of Transformers.
///
/// Source: papers 000 and 003; Chen et al. 2022, arXiv:2208.02813.
using SoftmaxNoisyTop1 = ComposedGate<LinearScores, Independent, NoisyTop1<>>;
/// The router of Mixture of Transformers with separate scores for every patch.
///
/// Source: paper 003, sec. 3.
using PatchNoisyTop1 = ComposedGate<PatchScores, Independent, NoisyTop1<>>;
/// The K best experts after the addition of Gaussian noise with a learned deviation. It has importance and load losses.
///
/// Source: Shazeer et al. 2017, arXiv:1701.06538. The defaults have a router bias and the losses of V-MoE;
/// `published::shazeer` has the paper's settings.
using SoftmaxNoisyTopK = ComposedGate<LinearScores, Independent, NoisyTopK<>, Importance, Load>;
/// The router of V-MoE: noise, the K best experts, and a capacity of each expert.
///
/// Source: Riquelme et al. 2021, arXiv:2106.05974. The defaults have the learned noise of Shazeer et al.;
/// `published::vmoe` has the paper's settings.
using VMoe = ComposedGate<LinearScores, Independent, Capacity<NoisyTopK<>>, Importance, Load>;
/// The router of the Switch Transformer: input jitter, the best expert, and a capacity of each expert.
///
/// Source: Fedus et al. 2021, arXiv:2101.03961. The defaults have K = 2 with renormalised weights;
/// `published::switch_transformer` has the paper's settings.
using Switch = ComposedGate<Jitter<LinearScores>, Independent, Capacity<TopK>, Balance>;
/// The two best experts with a capacity of each expert, and GShard's balance loss.
///
/// Source: Lepikhin et al. 2020, arXiv:2006.16668, without its random second expert. The defaults have the capacity of
/// V-MoE; `published::gshard` has the paper's settings.
using GShardTop2 = ComposedGate<LinearScores, Independent, Capacity<TopK>, GShard>;
/// The K best experts by cosine scores, which are computed in a space of few dimensions.
///
/// Source: X-MoE, Chi et al. 2022, arXiv:2204.09179.
using XMoe = ComposedGate<CosineScores, Independent, TopK>;
/// A random router that is not trained. The number of experts per item grows during training.
///
/// Source: SMoE-Dropout, Chen et al. 2023, arXiv:2303.01610.
using SmoeDropout = ComposedGate<FixedScores, Independent, ScheduledTopK>;
/// The K best experts by sigmoid scores. A bias balances the load instead of an auxiliary loss.
///
/// Source: Wang et al. 2024, arXiv:2408.15664. The defaults have a router bias and weights that sum to 1;
/// `published::aux_loss_free` and `published::deepseek_v3` have the papers' settings.
using SigmoidTopK = ComposedGate<LinearScores, Independent, SigmoidBias>;
/// A gate in which each expert chooses its items.
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

/// The gate `Base` with its mixing replaced by `MixingT`. Scores, selection and auxiliary losses stay the same.
template <class Base, class MixingT>
using WithMixing = typename detail_::lookup::WithMixing<Base, MixingT>::Type;
/// The gate `Base` with probabilities that are averaged over similar items.
///
/// Source: paper 002, eq. (7), (8).
template <class Base>
using SimilarityAware = WithMixing<Base, TokenSimilarity>;
/// The gate `Base` in which each item takes over probabilities of the items that it attends to. A Block supplies the
/// attention trace.
///
/// Source: paper 002, eq. (14)-(16).
template <class Base>
using AttentionAware = WithMixing<Base, AttentionPosterior>;

/// Gates with the settings of their publications: `published::vmoe({.experts = 8, .factor = 4})`. The braces take the
/// options that the publication varies; the defaults are the publication's values, if it has any. If `experts` is 0,
/// it is filled in as in other gates. To change a different option, assign it in the returned gate.
namespace published {

/// Options of `shazeer`.
struct ShazeerOptions {
  Index experts = 0, k = 4;
};
/// Settings of Shazeer et al.: no router bias, initial values of 0 for router and noise, and weights of 0.1 for the
/// importance and load losses. The load loss takes its threshold from the other experts (`Load::shazeer`).
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
/// Settings of V-MoE: no router bias, noise with a fixed deviation of 1/E, and weights of the softmax over all experts.
/// The weights of the importance and load losses are 0.005. The capacity is `factor` times the even share of `group`
/// items (0: all items), rounded up to a multiple of 4. The paper has a factor of 1.05 in training and 4 in evaluation.
/// The losses are computed over the whole batch; they are not the mean over groups.
inline VMoe vmoe(VMoeOptions o = {}) {
  return {.scores = {.experts = o.experts, .bias = false},
          .selection = {.selection = NoisyTopK<>::vmoe({.k = o.k}), .factor = o.factor, .group = o.group}};
}
/// Options of `switch_transformer`.
struct SwitchOptions {
  Index experts = 0;
  double factor = 1.25;
};
/// Settings of the Switch Transformer: K = 1 with the probability of the softmax as weight, jitter of 0.01, a capacity
/// of 1.25 times the even share, and a balance loss with weight 0.01.
inline Switch switch_transformer(SwitchOptions o = {}) {
  return {.scores = {.scores = {.experts = o.experts, .bias = false}},
          .selection = {.selection = {.k = 1, .renormalise = false}, .factor = o.factor, .multiple_of = 1}};
}
/// Options of `gshard`.
struct GShardOptions {
  Index experts = 0;
  double factor = 1;
};
/// Settings of GShard: the two best experts, and weights that sum to 1 over these two. The capacity is twice N/E, which
/// is the even share of two picks per item (`factor` = 1).
inline GShardTop2 gshard(GShardOptions o = {}) {
  return {.scores = {.experts = o.experts, .bias = false},
          .selection = {.selection = {.k = 2}, .factor = o.factor, .multiple_of = 1}};
}
/// Options of `aux_loss_free`.
struct AuxLossFreeOptions {
  Index experts = 0, k = 6;
};
/// Settings of Wang et al.: no router bias, sigmoids as weights without renormalisation, bias speed of 0.001.
inline SigmoidTopK aux_loss_free(AuxLossFreeOptions o = {}) {
  return {.scores = {.experts = o.experts, .bias = false},
          .selection = {.k = o.k, .renormalise = false, .speed = 0.001}};
}
/// Options of `deepseek_v3`.
struct DeepSeekV3Options {
  Index experts = 256, k = 8, groups = 8, top_groups = 4;
  double scale = 2.5;
};
/// Settings of DeepSeek-V3 (arXiv:2412.19437): no router bias, weights that sum to `scale`, experts only from the best
/// 4 of 8 groups, bias speed of 0.001. Its balance loss over sequences is not included.
inline SigmoidTopK deepseek_v3(DeepSeekV3Options o = {}) {
  return {.scores = {.experts = o.experts, .bias = false},
          .selection = {.k = o.k, .scale = o.scale, .speed = 0.001, .groups = o.groups, .top_groups = o.top_groups}};
}

}  // namespace published
}  // namespace gatefold
