#pragma once

#include <cmath>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/selection/sigmoid_bias.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), AssignmentSlopes, AssignmentLoss, AssignmentLossBackward, DistillationBackward);

/// Picks one expert of each item, in two stages of training (StableMoE). In stage 1, the router of the gate picks the
/// expert, and a second router, which reads only the token of the item, learns to pick the same expert. In stage 2, the
/// second router (the distilled router) picks the expert, so that the expert of a token never changes again.
///
///     stage 1   a[n] = argmax_e rank[n,e]                                                               (1)
///     stage 2   a[n] = argmax_e s[n,e],   s[n,e] = ⟨embedding[id[n]], centroid[e]⟩                      (2)
///     w[n] = σ(rank[n,a[n]])  in both stages                                                            (3)
///     loss, only in stage 1:   balance · (1/N) Σ_n (N_a − N/E) / (N/E) · σ(rank[n,a])                   (4)
///                            + distillation · (1/N) Σ_n −log softmax(s[n,:])[a],   a = a[n]             (5)
///
/// N_e is the number of items of expert e. It has no derivative, so the gradient of (4) flows only through σ.
/// Source: StableMoE, Dai et al. 2022, arXiv:2204.08396, sec. 3, and its code. The paper sums (4) and (5) over the
/// tokens. Here these sums are divided by N, like the task loss, which is a mean over tokens. The code draws centroids
/// that are orthogonal, with length 0.1; here they are normal with the same mean square. The code limits the items of
/// an expert; DistilledTop1 has no capacity. The paper also distils routers with more layers.
///
/// `extra.distilled` chooses the stage of a call: false in stage 1, true in stage 2 and, as in the paper, in every
/// evaluation. No loss trains the distilled router in stage 2, but an optimizer with momentum or weight decay would
/// change it. Keep it fixed, for example with InGroups{is_distilled_router, …} and rate 0. (3) and (4) need logits as
/// ranks, so use the mixing Independent or IndependentSigmoid. The value of (4) + (5) is the last element of
/// `saved.auxiliary`; in stage 2 it is 0.
/// @param vocabulary    V, the number of different ids
/// @param router_dim    R, the number of values of an embedding of the distilled router
/// @param balance       factor of (4);  `distillation`  factor of (5)
/// @param rank [N, E] in   logits
/// @param extra  `.ids` [N]: the token of each item, from 0 to V − 1, for padding too; `.distilled`: true in stage 2
/// @throws ArgumentError unless V, R >= 1, both factors are finite, and there is one id per item. On a host backend,
///         also unless the ids are in [0, V)
/// @cost   2·N·E comparisons, S = N picks; 2·N·E·R flop in stage 2. In steps of stage 1, 2·N·E·R flop forward,
///         4·N·E·R flop and a counting sort of the ids, O(N + V), backward
/// @order  ties go to the lower expert index; NaN ranks below every number
struct DistilledTop1 {
  static constexpr bool needs_logits = true, items_adjoint_is_optional = true;
  static constexpr Index picks = 1;  // number of picks of an item
  Index vocabulary = 0, router_dim = 50;
  double balance = 0.3, distillation = 1;
  Index experts = 0;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> embedding;  // [V, R]
    Tensor<T, 2, B> centroid;   // [E, R]
    GATEFOLD_PACK(embedding, centroid)
    static constexpr int expert_extents[] = {-1, 0};
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> log_p;  // [N, E] log softmax(s); [0, E] if the call has no loss
  };
  template <class T, class B>
  struct Extra {
    View<const Index, 1, B> ids{};  // [N]
    bool distilled = false;
  };

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    validate_options(experts);
    const double deviation = 0.1 / std::sqrt(static_cast<double>(router_dim));
    return {initial_weights<T>(ctx, Initial::normal(1), seed.fork(0), vocabulary, router_dim),
            initial_weights<T>(ctx, Initial::normal(deviation), seed.fork(1), experts, router_dim)};
  }
  void validate_options(Index) const {
    expect_sizes("DistilledTop1", {{"vocabulary", vocabulary}, {"router_dim", router_dim}});
    expect_finite("DistilledTop1", "balance", balance);
    expect_finite("DistilledTop1", "distillation", distillation);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    validate_options(experts);
    expect_shape("DistilledTop1", "params.embedding", p.embedding, {vocabulary, router_dim});
    expect_shape("DistilledTop1", "params.centroid", p.centroid, {experts, router_dim});
    expect_shape("DistilledTop1", "extra.ids", extra.ids, {items});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Saved<T, B>& saved, const Extra<T, B>& extra) const {
    const Index items = c.rank.extent(0);
    validate(p, items, extra);
    expect_shape("DistilledTop1", "rank", c.rank, {items, experts});
    if constexpr (B::is_host)
      for (Index n = 0; n < items; ++n)
        expect(0 <= extra.ids(n) && extra.ids(n) < vocabulary, "DistilledTop1", Joined{"extra.ids[", n, "]"},
               Joined{"an id from 0 to ", vocabulary - 1}, extra.ids(n));
    const bool learns = c.first_evaluation && !extra.distilled;
    auto mark = ctx.mark();
    View<T, 2, B> s;
    if (learns || extra.distilled) {
      s = ctx.template scratch<T>(items, experts);
      B::gemm(ctx, embedded(ctx, p, extra.ids), false, p.centroid.view(), true, false, s, functor::Store{});
    }
    saved.log_p.resize(learns ? items : 0, experts);
    if (learns) B::for_rows(ctx, items, functor::LogSoftmax<T, B>{s, saved.log_p});
    const View<const T, 2, B> order = extra.distilled ? View<const T, 2, B>(s) : c.rank;
    plan.resize(items, experts, items);
    B::for_rows(ctx, items, functor::PickTopK<T, B>{order, order, 1, false, plan.item, plan.expert, plan.weight});
    B::for_each(ctx, items, functor::SigmoidWeightsForward<T, B>{weights(c, plan), plan.weight});
    plan.build_complete(ctx);
  }
  /// Writes the loss, the sum of (4) and (5), to value [1].
  template <class T, class B>
  void auxiliary_loss(typename B::Context& ctx, const Params<T, B>&, const Candidates<T, B>& c,
                      const SparsePlan<T, B>& plan, const Saved<T, B>& saved, Out<T, 1, B> value) const {
    fill(ctx, value, 0);
    if (saved.log_p.extent(0) < c.rank.extent(0)) return;  // stage 2
    auto mark = ctx.mark();
    B::template reduce<T>(ctx, c.rank.extent(0), loss(ctx, c, plan, saved.log_p.view()), value.data());
  }
  /// Adds the gradient of the weights to d.rank. In the first evaluation of a layer in a step of stage 1, also adds the
  /// gradient of (4) to d.rank, and the gradient of (5) to grads.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c,
                const SparsePlan<T, B>& plan, const Saved<T, B>& saved, const typename SparsePlan<T, B>::Grad& dplan,
                const CandidatesGrad<T, B>& d, Params<T, B>& grads, const Extra<T, B>& extra) const {
    const Index items = c.rank.extent(0);
    expect_picks("DistilledTop1.backward", plan, items, 1);
    B::for_each(ctx, items, functor::SigmoidWeightsBackward<T, B>{weights(c, plan), dplan.weight, d.rank, d.q});
    if (!c.first_evaluation || extra.distilled) return;
    expect_shape("DistilledTop1.backward", "saved.log_p", saved.log_p, {items, experts});
    expect_shape("DistilledTop1.backward", "extra.ids", extra.ids, {items});
    auto mark = ctx.mark();
    const auto of = loss(ctx, c, plan, saved.log_p.view());
    B::for_each(ctx, items, functor::AssignmentLossBackward<T, B>{of, d.rank});
    if (grads.embedding.is_skipped() && grads.centroid.is_skipped()) return;
    const auto written = ctx.template scratch<T>(items, experts);
    B::for_each(ctx, written.size(), functor::DistillationBackward<T, B>{of, written});
    const View<const T, 2, B> ds = written;
    if (!grads.centroid.is_skipped())
      B::gemm(ctx, ds, true, embedded(ctx, p, extra.ids), false, true, grads.centroid.view(), functor::Store{});
    if (grads.embedding.is_skipped()) return;
    const auto rows = ctx.template scratch<T>(items, router_dim);
    B::gemm(ctx, ds, false, p.centroid.view(), false, false, rows, functor::Store{});
    const auto offsets = ctx.template scratch<Index>(vocabulary + 1), order = ctx.template scratch<Index>(items);
    B::group_by(ctx, extra.ids, offsets, order);
    B::grouped_sum(ctx, Groups<B>{offsets, order, items}, View<const T, 2, B>(rows), grads.embedding.view(), true,
                   order);
  }

 private:
  template <class T, class B>
  functor::SigmoidWeights<T, B> weights(const Candidates<T, B>& c, const SparsePlan<T, B>& plan) const {
    return {RouterScore::sigmoid, c.rank, c.q, plan.expert, 1, false, T(1)};
  }
  /// Returns the embeddings of the ids, [N, R], in scratch memory.
  template <class T, class B>
  View<const T, 2, B> embedded(typename B::Context& ctx, const Params<T, B>& p, View<const Index, 1, B> ids) const {
    const auto rows = ctx.template scratch<T>(ids.extent(0), router_dim);
    B::for_rows(ctx, ids.extent(0), functor::CarryRows<T, T, T, B>{ids, p.embedding, {}, rows});
    return rows;
  }
  /// Returns a functor that computes the terms of (4) and (5) for one item. It reads scratch memory, which is valid
  /// until the caller's `ctx.mark()` goes out of scope.
  template <class T, class B>
  functor::AssignmentLoss<T, B> loss(typename B::Context& ctx, const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                                     View<const T, 2, B> log_p) const {
    const Index items = c.rank.extent(0);
    const GateOutcome<T, B> a{c.rank, c.q, plan, c.valid};
    const auto slope = ctx.template scratch<T>(experts), share = ctx.template scratch<T>(1);
    const auto offsets = functor::sorted_loads(ctx, a, 1, 1, items > 0 ? items : Index(1));
    B::for_each(ctx, experts, functor::AssignmentSlopes<T, B>{offsets, T(balance), T(distillation), slope, share});
    return {c.rank, {c.valid}, plan.expert, log_p, slope, share};
  }
};

/// Returns whether a tensor belongs to the distilled router of a DistilledTop1: whether it is the member `embedding` or
/// `centroid` of a pack `selection`.
inline bool is_distilled_router(const Name& name) {
  return (name.part == "embedding" || name.part == "centroid") && name.parent && name.parent->part == "selection";
}

namespace functor {

/// Writes slope[e] = balance / N · (N_e − N/E) / (N/E), the factor of σ in (4) of DistilledTop1, and share[0] =
/// distillation / N.
template <class T, class B>
struct AssignmentSlopes {
  View<const Index, 1, B> offsets;  // [E + 1] start of each expert in the picks sorted by expert
  T balance, distillation;
  View<T, 1, B> slope, share;
  GATEFOLD_HD void operator()(Index e) const {
    const T items = static_cast<T>(offsets(slope.size())), even = items / static_cast<T>(slope.size());
    slope(e) = items > 0 ? balance / items * (static_cast<T>(offsets(e + 1) - offsets(e)) - even) / even : T(0);
    if (e == 0) share(0) = items > 0 ? distillation / items : T(0);
  }
};
/// Computes the terms of one item in the losses (4) and (5) of DistilledTop1. They are 0 for padding.
template <class T, class B>
struct AssignmentLoss {
  View<const T, 2, B> rank;
  Valid<T, B> valid;
  View<const Index, 1, B> expert;
  View<const T, 2, B> log_p;
  View<const T, 1, B> slope, share;
  GATEFOLD_HD T operator()(Index n) const {
    if (valid(n) == 0) return T(0);
    const Index a = chosen(expert(n));
    return slope(a) * math::sigmoid(rank(n, a)) - share(0) * log_p(n, a);
  }
};
/// Adds the gradient of (4) of DistilledTop1 to the gradient of the rank of item n's expert.
template <class T, class B>
struct AssignmentLossBackward {
  AssignmentLoss<T, B> of;
  View<T, 2, B> drank;
  GATEFOLD_HD void operator()(Index n) const {
    if (of.valid(n) == 0) return;
    const Index a = chosen(of.expert(n));
    const T w = math::sigmoid(of.rank(n, a));
    drank(n, a) += of.slope(a) * w * (1 - w);
  }
};
/// Writes the gradient of (5) of DistilledTop1 by the scores s[n,e]: (softmax(s[n,:])[e] − [e = a[n]]) · distillation /
/// N, or 0 for padding.
template <class T, class B>
struct DistillationBackward {
  AssignmentLoss<T, B> of;
  View<T, 2, B> ds;
  GATEFOLD_HD void operator()(Index i) const {
    const Index n = i / ds.extent(1), e = i % ds.extent(1);
    ds(n, e) = of.valid(n) == 0 ? T(0) : of.share(0) * (std::exp(of.log_p(n, e)) - T(e == chosen(of.expert(n))));
  }
};

}  // namespace functor

}  // namespace gatefold
