#pragma once

#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/policy/noise.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), PickRandomSecond);

/// Picks the two best experts e₁, e₂ of each item n, and keeps the second pick at random, more often if its weight is
/// larger.
///
///     w[n,e] = q[n,e] / (q[n,e₁] + q[n,e₂]),  the second pick is kept if certain · r[n] < w[n,e₂]        (1)
///
/// The elements of r are independent random numbers, uniform in [0, 1). A second pick is therefore kept with
/// probability min(1, w[n,e₂] / certain). A pick that is not kept is stored as ~e in the plan and contributes 0 to the
/// output. The weight of the first pick does not change, except in a Capacity with `renormalise`. Without noise in the
/// extra input, all second picks are kept, and the result is that of TopK. The choice has no gradient, so backward is
/// that of TopK.
/// Source: GShard, Lepikhin et al. 2020, arXiv:2006.16668, sec. 2.2 and algorithm 1 (certain = 1/2). `certain` is the
/// threshold of second_policy_train = "random" in the code of Mesh TensorFlow.
/// @param rank [N, E] in   values to rank by;  q [N, E] in  probabilities
/// @param k  number of picks of an item: 2, or 1 for no second pick, for example in a layer with only one expert
/// @param certain  weight from which a second pick is always kept
/// @throws ArgumentError unless k is 1 or 2, k <= experts, and certain > 0
/// @cost   4·N·E comparisons, N draws, S = 2·N picks, and two counting sorts of the picks
/// @order  ties go to the lower expert index; NaN ranks below every number; r[n] is number n of the random stream
struct RandomSecond {
  Index k = 2;
  double certain = 0.5;

  static constexpr bool items_adjoint_is_optional = true;

  template <class T, class B>
  using Extra = Noise;

  void validate_options(Index experts) const {
    expect(k >= 1 && k <= 2 && k <= experts, "RandomSecond", "k", Joined{"1 or 2, at most experts = ", experts}, k);
    expect(certain > 0, "RandomSecond", "certain", "more than 0", certain);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Noise& noise) const {
    B::for_rows(ctx, c.q.extent(0), rows(c, plan, noise));
    plan.build(ctx);
  }
  template <class T, class B>
  functor::PickRandomSecond<T, B> rows(const Candidates<T, B>& c, SparsePlan<T, B>& plan, const Noise& noise) const {
    validate_options(c.q.extent(1));
    return {top_k().rows(c, plan, Nothing<T, B>{}), T(certain), functor::draw<UniformNoise, T>(noise)};
  }
  /// Adds the gradient of q to d.q. The gradient of the weight of a pick that was not kept is 0.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c,
                const SparsePlan<T, B>& plan, const Nothing<T, B>& saved, const typename SparsePlan<T, B>::Grad& dplan,
                const CandidatesGrad<T, B>& d, Nothing<T, B>& grads, const Noise&) const {
    top_k().backward(ctx, p, c, plan, saved, dplan, d, grads, p);
  }
  template <class T, class B>
  functor::PickTopKBackward<T, B> rows_backward(const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                                                const typename SparsePlan<T, B>::Grad& dplan, Out<T, 2, B> dq,
                                                const Noise&) const {
    return top_k().rows_backward(c, plan, dplan, dq, Nothing<T, B>{});
  }

 private:
  TopK top_k() const { return {.k = k}; }
};

namespace functor {

/// Picks the two best experts of item n, computes their weights, and keeps the second pick at random: equation (1) of
/// RandomSecond.
template <class T, class B>
struct PickRandomSecond {
  PickTopK<T, B> best;
  T certain;
  Draw<UniformNoise, T> noise;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    choose(lanes, n);
    weigh(lanes, n);
  }
  GATEFOLD_HD void choose(const auto& lanes, Index n) const { best.choose(lanes, n); }
  GATEFOLD_HD void weigh(const auto& lanes, Index n) const { weigh(lanes, n, &best.q(n, 0)); }
  /// Chooses the experts of item n from its row of ranks, which can be at any address.
  GATEFOLD_HD void choose(const auto& lanes, Index n, const T* rank_row) const { best.choose(lanes, n, rank_row); }
  GATEFOLD_HD void weigh(const auto& lanes, Index n, const T* q_row) const {
    best.weigh(lanes, n, q_row);
    const Index second = 2 * n + 1;
    if (best.k < 2 || lanes.lane > 0 || !noise.noisy || certain * noise(n) < best.weight(second)) return;
    best.expert(second) = ~best.expert(second);
  }
};

}  // namespace functor

}  // namespace gatefold
