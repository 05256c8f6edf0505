#pragma once

#include "gatefold/backend/order.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/policy/noise.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class LawT, class T, class B), PickNoisyTop1);
GATEFOLD_FUNCTORS((class T, class B), PickTop1Backward);

/// Picks the best expert of each item after noise has been added to the ranks.
///
///     e(n) = argmax_e (rank[n,e] + scale · r[n,e]),   w[n] = q[n,e(n)]                                  (1)
///                                                     w[n] = rank[n,e(n)] + scale · r[n,e(n)]           (2)
///
/// The elements of r are independent random numbers with the distribution NoiseLawT. With the mixing Independent, the
/// weight in (1) is an element of a softmax without noise, so the gradients of an item's logits sum to 0. Without noise
/// in the extra input, r = 0.
/// Source: (1) papers 000 and 003, r ~ U[0, 1); (2) the code of Chen et al. 2022, arXiv:2208.02813, on synthetic data.
/// @tparam NoiseLawT  distribution of r: UniformNoise, GumbelNoise, … (policy/noise.hpp)
/// @param rank [N, E] in   values to rank by;  q [N, E] in  probabilities
/// @param noisy_weight  if true, the weights are (2), so the output depends on the noise; otherwise they are (1)
/// @throws ArgumentError unless scale >= 0
/// @cost   N·E draws, S = N picks
/// @order  ties go to the lower expert index; NaN ranks below every number
template <class NoiseLawT = UniformNoise>
struct NoisyTop1 {
  double scale = 1;
  bool noisy_weight = false;

  static constexpr bool items_adjoint_is_optional = true, complete_picks = true;
  static constexpr Index picks = 1;  // number of picks of an item

  static NoisyTop1 reference(NoisyTop1 options = {}) {
    options.noisy_weight = true;
    return options;
  }

  template <class T, class B>
  using Extra = Noise;

  void validate_options(Index) const { expect(scale >= 0, "NoisyTop1", "scale", "at least 0", scale); }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Noise& noise) const {
    B::for_rows(ctx, c.q.extent(0), rows(c, plan, noise));
    plan.build_complete(ctx);
  }
  template <class T, class B>
  functor::PickNoisyTop1<NoiseLawT, T, B> rows(const Candidates<T, B>& c, SparsePlan<T, B>& plan,
                                               const Noise& noise) const {
    const Index items = c.q.extent(0), experts = c.q.extent(1);
    validate_options(experts);
    plan.resize(items, experts, items);
    return {c.rank,       c.q,       T(scale),    functor::draw<NoiseLawT, T>(noise),
            noisy_weight, plan.item, plan.expert, plan.weight};
  }
  /// Adds the gradient of the picks' weights to d.q, the gradient of the probabilities. If `noisy_weight` is true, adds
  /// it to d.rank, the gradient of the ranks, instead.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Nothing<T, B>&, const Noise&) const {
    expect_picks("NoisyTop1.backward", plan, c.q.extent(0), 1);
    B::for_each(ctx, c.q.extent(0),
                functor::PickTop1Backward<T, B>{plan.expert, dplan.weight, noisy_weight ? d.rank : d.q});
  }
};

namespace functor {

/// Picks the expert of item n with the largest value rank + scale · noise. The weight of the pick is the expert's
/// probability q, or this largest value if `noisy_weight` is true.
template <class LawT, class T, class B>
struct PickNoisyTop1 {
  View<const T, 2, B> rank, q;
  T scale;
  Draw<LawT, T> noise;
  bool noisy_weight;
  View<Index, 1, B> item, expert;
  View<T, 1, B> weight;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    choose(lanes, n);
    weigh(lanes, n);
  }
  GATEFOLD_HD void choose(const auto& lanes, Index n) const { choose(lanes, n, &rank(n, 0)); }
  GATEFOLD_HD void weigh(const auto& lanes, Index n) const { weigh(lanes, n, &q(n, 0)); }
  /// Chooses the expert of item n from its row of ranks, which can be at any address.
  GATEFOLD_HD void choose(const auto& lanes, Index n, const T* rank_row) const {
    const Index experts = rank.extent(1);
    Index best = -1;
    T top = negative_infinity<T>;
    noise.each(lanes, n * experts, experts, [&](Index e, T drawn) {
      const T value = rank_row[e] + scale * drawn;
      if (best >= 0 && !ranks_before(value, e, top, best)) return;
      best = e;
      top = value;
    });
    if (lanes.size > 1) {  // over all lanes: the lowest expert with the largest value; if all values are NaN, expert 0
      const T largest = lanes.max(top == top ? top : negative_infinity<T>);
      const bool is_largest = best >= 0 && top == largest, any = lanes.max(Index(is_largest)) > 0;
      best = -lanes.max(best >= 0 && (is_largest || !any) ? -best : -experts);
      if (any) top = largest;
    }
    if (lanes.lane > 0) return;
    item(n) = n;
    expert(n) = best;
    weight(n) = top;
  }
  GATEFOLD_HD void weigh(const auto& lanes, Index n, const T* q_row) const {
    if (noisy_weight) return;
    const T w = weight_of_pick(lanes, q_row, expert(n));
    if (lanes.lane == 0) weight(n) = w;
  }
};
/// Backward pass of PickNoisyTop1. Adds the gradient of the weight of item n's pick to d[n,e], with e the picked
/// expert. d is the gradient of the probabilities q, or of the ranks if the weights are noisy ranks.
template <class T, class B>
struct PickTop1Backward {
  View<const Index, 1, B> expert;
  View<const T, 1, B> dweight;
  View<T, 2, B> d;
  GATEFOLD_HD void operator()(Index n) const { d(n, chosen(expert(n))) += dweight(n); }
};

}  // namespace functor

}  // namespace gatefold
