#pragma once

#include "gatefold/gate/candidates.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

/// Picks the K best experts of each item (TopK), with a K that each call can set, for example to let K grow in training
/// or to reduce it in inference.
///
///     I(n) = top_k rank[n,:],   k from the extra inputs, or the option `k` if that is 0                (1)
///
/// Source: SMoE-dropout, Chen et al. 2023, arXiv:2303.01610, sec. 3.3; schedules of k: Annealed. For weights see TopK.
/// @param extra  k of this call; 0: the option `k`
/// @throws ArgumentError unless 1 <= k <= experts for the k of this call
/// @cost   the cost of TopK; memory grows once to the largest k
/// @order  the order of TopK
struct ScheduledTopK {
  Index k = 2;
  bool renormalise = true;
  Index experts = 0;

  static constexpr bool complete_picks = true;

  template <class T, class B>
  struct Extra {
    Index k = 0;
  };

  template <class T, class B>
  void validate(const Nothing<T, B>&, Index, const Extra<T, B>& extra) const {
    if (experts > 0) of(extra).validate_options(experts);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>& saved, const Extra<T, B>& extra) const {
    of(extra).forward(ctx, p, c, plan, saved, p);
  }
  template <class T, class B>
  functor::PickTopK<T, B> rows(const Candidates<T, B>& c, SparsePlan<T, B>& plan, const Extra<T, B>& extra) const {
    return of(extra).rows(c, plan, Nothing<T, B>{});
  }
  /// Adds the gradient of q to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c,
                const SparsePlan<T, B>& plan, const Nothing<T, B>& saved, const typename SparsePlan<T, B>::Grad& dplan,
                const CandidatesGrad<T, B>& d, Nothing<T, B>& grads, const Extra<T, B>& extra) const {
    of(extra).backward(ctx, p, c, plan, saved, dplan, d, grads, p);
  }
  template <class T, class B>
  functor::PickTopKBackward<T, B> rows_backward(const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                                                const typename SparsePlan<T, B>::Grad& dplan, Out<T, 2, B> dq,
                                                const Extra<T, B>& extra) const {
    return of(extra).rows_backward(c, plan, dplan, dq, Nothing<T, B>{});
  }

 private:
  template <class T, class B>
  TopK of(const Extra<T, B>& extra) const {
    return {extra.k == 0 ? k : extra.k, renormalise};
  }
};

}  // namespace gatefold
