#pragma once

#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), PickActive, PickActiveBackward, ActiveWeights, ActiveLoss, ActiveLossBackward,
                  StepCoefficient);

/// Picks every expert with a positive logit, and uses the logit as weight (ReLU routing). The number of experts differs
/// between items. A loss with an adaptive coefficient λ steers the mean number of active experts to k.
///
///     w[n,e] = relu(rank[n,e]);   expert e is active for item n if rank[n,e] > 0                         (1)
///     loss = λ (1/N) Σ_e f_e Σ_n relu(rank[n,e]),   f_e = E / (k N) · number of items with expert e active
///                                                   (balanced),     f_e = 1 (otherwise)                  (2)
///     after each step   λ ← λ · rate^sign(A − k N),   A = Σ_n number of active experts of item n         (3)
///
/// Source: ReMoE, Wang et al. 2024, arXiv:2412.14711, sec. 3. The paper has one λ for all layers and divides
/// (2) by the number of layers. Here each mixture has its own λ and steers its own number of active experts.
///
/// The loss of a mixture is the last element of `saved.auxiliary`. A count has no derivative, so the gradient flows
/// only through relu. Optimizers do not change λ. backward adds A − k N to the gradient of λ, which is summed over
/// calls (and devices). `adapt`, which a Trainer calls, then computes (3). λ stays between 1e-30 and 1e30, because (3)
/// could not change a λ of 0 or infinity. If an update rule evaluates the layer twice in a step, only the first
/// evaluation counts.
///
/// Padding does not count. An item without an active expert gets output 0. The expert of a NaN logit is active, so that
/// the output of the item is NaN. ReluRouting needs the mixing Independent or IndependentSigmoid, because other mixings
/// have log-probabilities as ranks, which are negative.
/// @param k            target of the mean number of active experts
/// @param most         an item gets at most this many of its active experts, those with the largest logits; 0: no
///                     limit. The sums in (2) and (3) count all active experts
/// @param coefficient  initial value of λ, `params.coefficient`
/// @param rate         initial value of `params.rate`, the factor in (3)
/// @param rank [N, E] in   logits
/// @throws ArgumentError unless 1 <= k <= experts, 0 <= most <= experts, most is 0 or at least k, coefficient > 0, rate
///         >= 1, and coefficient and rate are finite
/// @cost   N·most·E comparisons, or N·E without a limit; memory for N·most slots (N·E without a limit). Only the slots
///         of active experts are computed. The loss reads N·E logits
/// @order  if 0 < most < experts, the picks of an item are in the order of TopK, otherwise by ascending expert. On the
///         CPU, the sums of (2) and (3) run over the items in order
struct ReluRouting {
  static constexpr bool picks_by_item = false, needs_logits = true;
  Index k = 1, most = 0;
  double coefficient = 1e-8, rate = 1.2;
  bool balanced = true;
  Index experts = 0;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    static constexpr bool learned = false;
    Tensor<T, 1, B> coefficient;  // [1] λ
    Tensor<T, 1, B> rate;         // [1]
    GATEFOLD_PACK(coefficient, rate)
    static constexpr int expert_extents[] = {-1, -1};
    void adapt(typename B::Context& ctx, const Params& grads) {
      B::for_each(ctx, 1, functor::StepCoefficient<T, B>{grads.coefficient, rate, coefficient});
    }
  };

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed) const {
    validate_options(experts);
    return {constant_tensor<T>(ctx, coefficient, 1), constant_tensor<T>(ctx, rate, 1)};
  }
  void validate_options(Index of_experts) const {
    expect(k >= 1 && k <= of_experts, "ReluRouting", "k", Joined{"1 <= k <= experts = ", of_experts}, k);
    expect(most == 0 || (most >= k && most <= of_experts), "ReluRouting", "most",
           Joined{"0, or k = ", k, " <= most <= experts = ", of_experts}, most);
    expect(coefficient > 0, "ReluRouting", "coefficient", "more than 0", coefficient);
    expect_finite("ReluRouting", "coefficient", coefficient);
    expect(rate >= 1, "ReluRouting", "rate", "at least 1", rate);
    expect_finite("ReluRouting", "rate", rate);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index, const Nothing<T, B>&) const {
    validate_options(experts);
    expect_shape("ReluRouting", "params.coefficient", p.coefficient, {1});
    expect_shape("ReluRouting", "params.rate", p.rate, {1});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Nothing<T, B>& extra) const {
    const Index items = c.rank.extent(0);
    validate(p, items, extra);
    expect_shape("ReluRouting", "rank", c.rank, {items, experts});
    plan.resize(items, experts, items * places());
    B::for_rows(ctx, items, functor::PickActive<T, B>{c.rank, places(), plan.item, plan.expert, plan.weight});
    plan.build(ctx);
  }
  /// Writes the loss (2) to value [1].
  template <class T, class B>
  void auxiliary_loss(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c,
                      const SparsePlan<T, B>&, const Nothing<T, B>&, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    slopes(ctx, p, c, value, {});
  }
  /// Adds the gradient of the weights to d.rank. In the first evaluation of a layer in a training step, also adds the
  /// gradient of the loss (2) to d.rank, and A − k N of (3) to grads.coefficient.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c,
                const SparsePlan<T, B>& plan, const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan,
                const CandidatesGrad<T, B>& d, Params<T, B>& grads, const Nothing<T, B>&) const {
    expect_picks("ReluRouting.backward", plan, c.rank.extent(0), places());
    B::for_each(ctx, plan.expert.size(),
                functor::PickActiveBackward<T, B>{plan.item, plan.expert, dplan.weight, d.rank});
    if (!c.first_evaluation) return;
    auto mark = ctx.mark();
    const auto slope =
        slopes(ctx, p, c, {}, grads.coefficient.is_skipped() ? View<T, 1, B>{} : grads.coefficient.view());
    B::for_each(ctx, d.rank.size(), functor::ActiveLossBackward<T, B>{c.rank, {c.valid}, slope, d.rank});
  }

 private:
  /// Returns the number of entries that the plan has for each item.
  Index places() const { return most > 0 ? most : experts; }
  /// Writes the loss (2) to `value`, and adds A − k N of (3) to `excess`, unless these views are empty. Returns
  /// slope [E]: slope[e] is the derivative of the loss by rank[n,e], the same for every item n for which expert e is
  /// active. The view is in scratch memory, which is valid until the caller's `ctx.mark()` goes out of scope.
  template <class T, class B>
  View<T, 1, B> slopes(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c, Out<T, 1, B> value,
                       Out<T, 1, B> excess) const {
    const Index count = c.rank.extent(0);
    const auto total = ctx.template scratch<T>(experts), active = ctx.template scratch<T>(experts),
               slope = ctx.template scratch<T>(experts), items = ctx.template scratch<T>(1);
    {
      auto mark = ctx.mark();
      const auto weight = ctx.template scratch<T>(count, experts), is_active = ctx.template scratch<T>(count, experts);
      B::for_each(ctx, c.rank.size(), functor::ActiveWeights<T, B>{c.rank, weight, is_active});
      functor::sum_over_items(ctx, View<const T, 2, B>(weight), c.valid, count, total.as(1, experts));
      functor::sum_over_items(ctx, View<const T, 2, B>(is_active), c.valid, count, active.as(1, experts));
    }
    fill(ctx, items, 0);
    B::template reduce<T>(ctx, count, functor::Valid<T, B>{c.valid}, items.data());
    B::for_each(ctx, 1,
                functor::ActiveLoss<T, B>{total, active, items, p.coefficient, k, balanced, value, slope, excess});
    return slope;
  }
};

namespace functor {

/// True if the expert with logit z is active. NaN is active, so that the output of the item is NaN.
template <class T>
GATEFOLD_HD bool is_active(T z) {
  return !(z <= T(0));
}
/// Writes the picks of item n by equation (1) of ReluRouting. The plan has `places` entries for each item; entries
/// without an active expert are set to no_pick. If there are fewer entries than experts, the experts with the largest
/// ranks get them.
template <class T, class B>
struct PickActive {
  View<const T, 2, B> rank;
  Index places;
  View<Index, 1, B> item, expert;
  View<T, 1, B> weight;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index experts = rank.extent(1), first = n * places;
    const T* const row = &rank(n, 0);
    if (places == experts) {
      for (Index e = lanes.lane; e < experts; e += lanes.size) put(first + e, n, e, row);
      return;
    }
    Index best = -1;
    for (Index j = 0; j < places; ++j) {
      best = RankedRow<T>{row, experts}.after(lanes, best);
      if (lanes.lane == 0) put(first + j, n, best, row);
    }
  }

 private:
  GATEFOLD_HD void put(Index p, Index n, Index e, const T* row) const {
    const bool active = is_active(row[e]);
    item(p) = n;
    expert(p) = active ? e : no_pick;
    weight(p) = active ? row[e] : T(0);
  }
};
/// Adds the gradient of the weight of pick p to the gradient of its rank.
template <class T, class B>
struct PickActiveBackward {
  View<const Index, 1, B> item, expert;
  View<const T, 1, B> dweight;
  View<T, 2, B> drank;
  GATEFOLD_HD void operator()(Index p) const {
    if (expert(p) != no_pick) drank(item(p), chosen(expert(p))) += dweight(p);
  }
};
/// Writes weight = relu(rank). Writes active = 1 if the expert of this rank is active, otherwise 0.
template <class T, class B>
struct ActiveWeights {
  View<const T, 2, B> rank;
  View<T, 2, B> weight, active;
  GATEFOLD_HD void operator()(Index i) const {
    const T z = rank.data()[i];
    weight.data()[i] = is_active(z) ? z : T(0);
    active.data()[i] = is_active(z) ? T(1) : T(0);
  }
};
/// Computes the loss (2) and the excess of active experts (3) of ReluRouting from sums over the items. `value` and
/// `excess` can be empty.
template <class T, class B>
struct ActiveLoss {
  View<const T, 1, B> total, active, items, coefficient;
  Index k;
  bool balanced;
  View<T, 1, B> value, slope, excess;
  GATEFOLD_HD void operator()(Index) const {
    const Index experts = total.size();
    const T n = items(0), of_items = n > 0 ? coefficient(0) / n : T(0), even = T(experts) / (T(k) * (n > 0 ? n : T(1)));
    T loss = 0;
    double sum = 0;
    for (Index e = 0; e < experts; ++e) {
      slope(e) = balanced ? of_items * even * active(e) : of_items;
      loss += slope(e) * total(e);
      sum += static_cast<double>(active(e));
    }
    if (value.data()) value(0) = loss;
    if (excess.data()) excess(0) += static_cast<T>(sum - static_cast<double>(k) * static_cast<double>(n));
  }
};
/// Adds slope[e] to drank[n,e] for each active expert e of an item n that is not padding.
template <class T, class B>
struct ActiveLossBackward {
  View<const T, 2, B> rank;
  Valid<T, B> valid;
  View<const T, 1, B> slope;
  View<T, 2, B> drank;
  GATEFOLD_HD void operator()(Index i) const {
    const Index n = i / rank.extent(1), e = i % rank.extent(1);
    if (valid(n) != 0 && is_active(rank(n, e))) drank(n, e) += slope(e);
  }
};
/// Changes the coefficient λ of a ReluRouting: multiplies it by `rate` if too many experts are active (excess > 0), and
/// divides it by `rate` if too few are.
template <class T, class B>
struct StepCoefficient {
  View<const T, 1, B> excess, rate;
  View<T, 1, B> coefficient;
  GATEFOLD_HD void operator()(Index) const {
    T next = coefficient(0);
    if (excess(0) > 0) next *= rate(0);
    if (excess(0) < 0) next /= rate(0);
    coefficient(0) = next < least ? least : next > largest ? largest : next;
  }

 private:
  static constexpr T least = T(1e-30), largest = T(1e30);
};

}  // namespace functor

}  // namespace gatefold
