#pragma once

#include <cmath>
#include <limits>

#include "gatefold/backend/math.hpp"
#include "gatefold/backend/order.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), BiasedScore, GroupScores, KeepBestGroups, SigmoidWeights, SigmoidWeightsForward,
                  SigmoidWeightsBackward, LoadViolation, StepBySign, Centre);

/// The positive score that a SigmoidBias gate computes from a logit z: the sigmoid σ(z) of DeepSeek-V3, √(log(1 + e^z))
/// of DeepSeek-V4, or the softmax over all experts of ERNIE 4.5 and LongCat-Flash.
enum class RouterScore : char { sigmoid, sqrt_softplus, softmax };

/// Picks the K experts with the largest sigmoid plus bias. The bias of an expert decreases if its load is above the
/// mean, and increases if it is below. This balances the load without an auxiliary loss.
///
///     s = σ(rank),   I(n) = top_K (s[n,:] + b) of the experts in the best groups                         (1)
///     w[n,e] = scale · s[n,e] / Σ_{f ∈ I(n)} s[n,f]   (renormalise),   scale · s[n,e]   (otherwise)     (2)
///     after each step   b_e ← b_e + speed · sign(mean load − load_e)                                    (3)
///     score of a group = the sum of its group_terms largest s[n,e] + b_e; best groups: the largest scores   (4)
///     after (3)   b_e ← b_e − mean b   (centred)                                                        (5)
///
/// Source: Wang et al. 2024, arXiv:2408.15664, alg. 1, with w = s (not renormalised); DeepSeek-V3, arXiv:2412.19437,
/// eq. (13)-(16). DeepSeek-V3 has renormalised weights, scale 2.5 and the best 4 of 8 groups of adjacent experts (sec.
/// 2.1.2 and its code). The package `transformers` gives experts of other groups the value 0 instead of excluding them,
/// which gives different picks if s + b < 0. With `score = RouterScore::sqrt_softplus`, s = √(log(1 + e^rank)) replaces
/// the sigmoid in (1) to (4), as in DeepSeek-V4 (transformers' modeling_deepseek_v4.py). With `score =
/// RouterScore::softmax`, s = q, the softmax over all experts: ERNIE 4.5 (renormalised) and LongCat-Flash (not
/// renormalised). DeepSeek-V2, arXiv:2405.04434, sec. 2.2.2, is this softmax without bias, with group_terms = 1.
///
/// (5) keeps the biases near 0. It does not change the choice, because only differences of biases affect the choice.
/// Without (5), all biases can grow, because the steps of (3) do not sum to 0. The source of (5) is the trainer
/// torchtitan (its pull request 1506).
///
/// b affects the choice but not the weights, and optimizers do not change it. backward adds E · (mean load − load) to
/// the gradient of b, which is summed over calls (and devices). `adapt`, which a Trainer calls, then computes (3), and
/// (5) if `centred` is true. The load counts all picks of items, also dropped picks, but no picks of padding. If an
/// update rule evaluates the layer twice in a step, only the first evaluation counts.
///
/// After a mixing with rank = log q (TokenSimilarity, AttentionPosterior), the sigmoid s = q / (1 + q) is at most 1/2.
/// Weights are computed from log s. With renormalise, they therefore sum to `scale` even if every s underflows. With k
/// = 1 and renormalise, the task loss gives the router no gradient, as in TopK.
/// @param rank [N, E] in   logits;  q [N, E] in  probabilities, read only if score is softmax
/// @throws ArgumentError unless groups divides experts, 1 <= top_groups <= groups, k is from 1 to the number of experts
///         in top_groups groups, group_terms is 1 or 2, speed >= 0, and scale and speed are finite
/// @cost   N·E sigmoids and 2·N·K·E comparisons; if top_groups < groups, of the order of N·(E + groups²) comparisons
///         more; S = N·K picks; E·S comparisons in backward
/// @order  the order of TopK, for groups too. In float, σ rounds to 1 for logits above about 17 and to 0 below −88;
///         these ties go to the lower expert index
struct SigmoidBias {
  Index k = 2;
  bool renormalise = true;
  // `speed` is the initial value of `params.speed`; DeepSeek-V3 sets it to 0 near the end of training.
  double scale = 1, speed = 0.001;
  // The experts are divided into `groups` groups of adjacent experts, all of one size. For each item, only experts of
  // the best `top_groups` groups can be picked. With groups = 1, all experts can be picked.
  Index groups = 1, top_groups = 1;
  Index experts = 0;
  RouterScore score = RouterScore::sigmoid;
  bool centred = false;   // if true, (5) follows each step (3)
  Index group_terms = 2;  // 1 or 2: number of terms in the score of a group

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    static constexpr bool learned = false;
    Tensor<T, 1, B> bias;   // [E]
    Tensor<T, 1, B> speed;  // [1]
    bool centred = false;   // the option `centred`; files do not contain it
    GATEFOLD_PACK(bias, speed)
    static constexpr int expert_extents[] = {0, -1};
    void lie_as(const auto& other) { centred = other.centred; }
    void adapt(typename B::Context& ctx, const Params& grads) {
      B::for_each(ctx, bias.size(), functor::StepBySign<T, B>{grads.bias, speed, bias});
      if (centred) B::for_rows(ctx, 1, functor::Centre<T, B>{bias});
    }
  };

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed) const {
    validate_options(experts);
    return {constant_tensor<T>(ctx, 0, experts), constant_tensor<T>(ctx, speed, 1), centred};
  }
  void validate_options(Index of_experts) const {
    expect(groups >= 1 && of_experts % groups == 0, "SigmoidBias", "groups",
           Joined{"a divisor of experts = ", of_experts}, groups);
    expect(top_groups >= 1 && top_groups <= groups, "SigmoidBias", "top_groups",
           Joined{"1 <= top_groups <= groups = ", groups}, top_groups);
    expect(group_terms == 1 || group_terms == 2, "SigmoidBias", "group_terms", "1 or 2", group_terms);
    const Index eligible = of_experts / groups * top_groups;
    if (groups == 1) {
      expect(k >= 1 && k <= of_experts, "SigmoidBias", "k", Joined{"1 <= k <= experts = ", of_experts}, k);
    } else {
      expect(k >= 1 && k <= eligible, "SigmoidBias", "k",
             Joined{"1 <= k <= ", eligible, " (the experts in top_groups = ", top_groups, " groups)"}, k);
    }
    expect_finite("SigmoidBias", "scale", scale);
    expect(speed >= 0, "SigmoidBias", "speed", "at least 0", speed);
    expect_finite("SigmoidBias", "speed", speed);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index, const Nothing<T, B>&) const {
    validate_options(experts);
    expect_shape("SigmoidBias", "params.bias", p.bias, {experts});
    expect_shape("SigmoidBias", "params.speed", p.speed, {1});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Nothing<T, B>& extra) const {
    const Index items = c.rank.extent(0);
    validate(p, items, extra);
    expect_shape("SigmoidBias", "rank", c.rank, {items, experts});
    expect_shape("SigmoidBias", "q", c.q, {items, experts});
    auto mark = ctx.mark();
    auto biased = ctx.template scratch<T>(items, experts);
    B::for_rows(ctx, items, functor::BiasedScore<T, B>{score, c.rank, c.q, p.bias, biased});
    if (top_groups < groups) {
      auto of_group = ctx.template scratch<T>(items, groups);
      B::for_each(ctx, items * groups, functor::GroupScores<T, B>{biased, group_terms, of_group});
      B::for_each(ctx, items * groups, functor::KeepBestGroups<T, B>{of_group, top_groups, biased});
    }
    plan.resize(items, experts, items * k);
    B::for_rows(ctx, items, functor::PickTopK<T, B>{biased, biased, k, false, plan.item, plan.expert, plan.weight});
    B::for_each(ctx, items, functor::SigmoidWeightsForward<T, B>{weights(c, plan), plan.weight});
    plan.build_complete(ctx);
  }
  /// Adds the gradient of the ranks to d.rank, or the gradient of q to d.q if the weights are scale · q. In the first
  /// evaluation of a layer in a training step, also adds E · (mean load − load of the expert) to grads.bias for each
  /// expert (LoadViolation).
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>&, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Params<T, B>& grads, const Nothing<T, B>&) const {
    expect_picks("SigmoidBias.backward", plan, c.rank.extent(0), k);
    B::for_each(ctx, c.rank.extent(0),
                functor::SigmoidWeightsBackward<T, B>{weights(c, plan), dplan.weight, d.rank, d.q});
    if (c.first_evaluation && !grads.bias.is_skipped())
      B::for_rows(ctx, experts, functor::LoadViolation<T, B>{plan.item, plan.expert, c.valid, grads.bias});
  }

 private:
  template <class T, class B>
  functor::SigmoidWeights<T, B> weights(const Candidates<T, B>& c, const SparsePlan<T, B>& plan) const {
    return {score, c.rank, c.q, plan.expert, k, renormalise, T(scale)};
  }
};

namespace functor {

/// Writes the values by which experts are chosen, biased[n,e] = s[n,e] + bias[e], with s the score of the router.
template <class T, class B>
struct BiasedScore {
  RouterScore score;
  View<const T, 2, B> rank, q;
  View<const T, 1, B> bias;
  View<T, 2, B> biased;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    using functor::math::exp, functor::math::reciprocal;
    const T* from = &rank(n, 0);
    T* to = &biased(n, 0);
    if (score == RouterScore::sqrt_softplus) {
      for (Index e = lanes.lane; e < bias.size(); e += lanes.size)
        to[e] = std::sqrt(functor::math::softplus(from[e])) + bias(e);
      return;
    }
    if (score == RouterScore::softmax) {
      const T* of_item = &q(n, 0);
      each_column<T>(lanes, bias.size(),
                     [&](auto at, Index e) { at.store(to + e, at.load(of_item + e) + at.load(bias.data() + e)); });
      return;
    }
    each_column<T>(lanes, bias.size(), [&](auto at, Index e) {
      at.store(to + e, reciprocal(T(1) + exp(-at.load(from + e))) + at.load(bias.data() + e));
    });
  }
};
/// Writes score[n,g], the score of group g of experts for item n. It is the sum of the `terms` largest elements of
/// `biased` (BiasedScore) in the group, with `terms` 1 or 2.
template <class T, class B>
struct GroupScores {
  View<const T, 2, B> biased;
  Index terms;
  View<T, 2, B> score;
  GATEFOLD_HD void operator()(Index i) const {
    const Index groups = score.extent(1), size = biased.extent(1) / groups, n = i / groups, g = i % groups;
    const T* const of = &biased(n, g * size);
    const auto above = [](T v, T w) { return order_key(v) > order_key(w); };
    T first = of[0], second = size > 1 ? of[1] : terms == 2 ? T(0) : first;
    for (Index e = 2; e < size; ++e) {
      T& smaller = above(first, second) ? second : first;
      if (above(of[e], smaller)) smaller = of[e];
    }
    score(n, g) = terms == 2 ? first + second : above(first, second) ? first : second;
  }
};
/// Excludes the experts outside of the `kept` best groups of item n: sets biased[n,e] of these experts e to −∞. In the
/// best groups, NaN and −∞ become the lowest finite number, so that these experts rank before the excluded experts.
template <class T, class B>
struct KeepBestGroups {
  View<const T, 2, B> score;
  Index kept;
  View<T, 2, B> biased;
  GATEFOLD_HD void operator()(Index i) const {
    const Index groups = score.extent(1), size = biased.extent(1) / groups, n = i / groups, g = i % groups;
    const auto own = order_key(score(n, g));
    Index better = 0;
    for (Index h = 0; h < groups; ++h) {
      const auto other = order_key(score(n, h));
      better += h < g ? other >= own : other > own;
    }
    for (Index e = g * size; e < (g + 1) * size; ++e) {
      T& v = biased(n, e);
      if (better >= kept) {
        v = negative_infinity<T>;
      } else if (order_key(v) <= order_key(negative_infinity<T>)) {
        v = least;
      }
    }
  }

 private:
  static constexpr T least = std::numeric_limits<T>::lowest();
};
/// Computes the weights of the picks of an item, equation (2) of SigmoidBias, for forward and backward. The weights
/// depend on the scores s, without the biases.
template <class T, class B>
struct SigmoidWeights {
  RouterScore of;
  View<const T, 2, B> rank, q;
  View<const Index, 1, B> expert;
  Index k;
  bool renormalise;
  T scale;

  /// Returns true if the weight of a pick is scale · q, which is a function of the probabilities q only, not of the
  /// ranks.
  GATEFOLD_HD bool are_probabilities() const { return of == RouterScore::softmax && !renormalise; }
  GATEFOLD_HD T logit(Index n, Index j) const { return rank(n, chosen(expert(n * k + j))); }
  /// Returns log s of pick j. If s is a softmax, its normaliser is left out, because it cancels in renormalised
  /// weights.
  GATEFOLD_HD T log_score(Index n, Index j) const {
    const T z = logit(n, j);
    if (of == RouterScore::softmax) return z;
    if (of == RouterScore::sigmoid) return -functor::math::softplus(-z);
    return T(0.5) * (z < low ? z - std::exp(z) / 2 : std::log(functor::math::softplus(z)));
  }
  /// Returns the derivative of log_score(n, j) by the logit of pick j.
  GATEFOLD_HD T slope(Index n, Index j) const {
    if (of == RouterScore::softmax) return T(1);
    const T z = logit(n, j);
    if (of == RouterScore::sigmoid) return functor::math::sigmoid(-z);
    return T(0.5) * (z < low ? 1 - std::exp(z) / 2 : functor::math::sigmoid(z) / functor::math::softplus(z));
  }
  /// Returns the largest log s of the picks of item n, called `top`. The weight s_j / Σ_i s_i is computed as exp(log
  /// s_j − top) / Σ_i exp(log s_i − top), because this is exact even if every s underflows.
  GATEFOLD_HD T top(Index n) const {
    T highest = log_score(n, 0);
    for (Index j = 1; j < k; ++j) highest = log_score(n, j) > highest ? log_score(n, j) : highest;
    return highest;
  }
  GATEFOLD_HD T total(Index n, T highest) const {
    T sum = 0;
    for (Index j = 0; j < k; ++j) sum += std::exp(log_score(n, j) - highest);
    return sum;
  }

 private:
  static constexpr T low = -20;  // for smaller z, softplus(z) = e^z (1 − e^z / 2) in double precision
};
template <class T, class B>
struct SigmoidWeightsForward {
  SigmoidWeights<T, B> of;
  View<T, 1, B> weight;
  GATEFOLD_HD void operator()(Index n) const {
    if (of.are_probabilities()) {
      for (Index p = n * of.k; p < (n + 1) * of.k; ++p) weight(p) = of.scale * of.q(n, chosen(of.expert(p)));
      return;
    }
    const T top = of.renormalise ? of.top(n) : T(0), total = of.renormalise ? of.total(n, top) : T(1);
    for (Index j = 0; j < of.k; ++j) weight(n * of.k + j) = of.scale * std::exp(of.log_score(n, j) - top) / total;
  }
};
/// Computes gradients from `dweight`, the gradients of the weights of the picks. Adds the gradient of the probabilities
/// to `dq` if the weights are scale · q (are_probabilities), otherwise the gradient of the ranks to `drank`.
template <class T, class B>
struct SigmoidWeightsBackward {
  SigmoidWeights<T, B> of;
  View<const T, 1, B> dweight;
  View<T, 2, B> drank, dq;
  GATEFOLD_HD void operator()(Index n) const {
    if (of.are_probabilities()) {
      for (Index p = n * of.k; p < (n + 1) * of.k; ++p) dq(n, chosen(of.expert(p))) += of.scale * dweight(p);
      return;
    }
    const T top = of.renormalise ? of.top(n) : T(0), total = of.renormalise ? of.total(n, top) : T(1);
    const auto share = [&](Index j) { return std::exp(of.log_score(n, j) - top) / total; };
    T mean = 0;
    for (Index j = 0; j < of.k && of.renormalise; ++j) mean += share(j) * dweight(n * of.k + j);
    for (Index j = 0; j < of.k; ++j)
      drank(n, chosen(of.expert(n * of.k + j))) +=
          of.scale * share(j) * (dweight(n * of.k + j) - mean) * of.slope(n, j);
  }
};
/// Adds E · (mean load − load of expert e) to violation[e], with E experts. The factor E makes the term an integer. The
/// load is the number of picks of an expert, including dropped picks.
template <class T, class B>
struct LoadViolation {
  View<const Index, 1, B> item, expert;
  View<const T, 1, B> valid;
  View<T, 1, B> violation;

  GATEFOLD_HD void operator()(const auto& lanes, Index e) const {
    Index picks = 0, load = 0;
    for (Index p = lanes.lane; p < expert.size(); p += lanes.size) {
      if (valid.data() && valid(item(p)) == 0) continue;
      ++picks;
      load += chosen(expert(p)) == e;
    }
    picks = lanes.sum(picks);
    load = lanes.sum(load);
    if (lanes.lane == 0) violation(e) += static_cast<T>(picks - violation.size() * load);
  }
};
/// Changes the bias of expert e by `speed`: up if its load is below the mean (violation[e] > 0), down if it is above.
template <class T, class B>
struct StepBySign {
  View<const T, 1, B> violation, speed;
  View<T, 1, B> bias;
  GATEFOLD_HD void operator()(Index e) const {
    bias(e) += speed(0) * static_cast<T>((violation(e) > 0) - (violation(e) < 0));
  }
};
/// Subtracts the mean of the biases from each bias.
template <class T, class B>
struct Centre {
  View<T, 1, B> bias;
  GATEFOLD_HD void operator()(const auto& lanes, Index) const {
    double sum = 0;
    for (Index e = lanes.lane; e < bias.size(); e += lanes.size) sum += static_cast<double>(bias(e));
    const T mean = static_cast<T>(lanes.sum(sum) / static_cast<double>(bias.size()));
    for (Index e = lanes.lane; e < bias.size(); e += lanes.size) bias(e) -= mean;
  }
};

}  // namespace functor

}  // namespace gatefold
