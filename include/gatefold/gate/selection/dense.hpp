#pragma once

#include "gatefold/gate/candidates.hpp"

namespace gatefold {

namespace functor {

template <class T, class B>
struct PickAll {
  View<const T, 2, B> q;
  View<Index, 1, B> item, expert;
  View<T, 1, B> weight;
  GATEFOLD_HD void operator()(Index i) const {
    item(i) = i / q.extent(1);
    expert(i) = i % q.extent(1);
    weight(i) = q.data()[i];
  }
};

}  // namespace functor

/// Picks every expert for each item. The weight is the probability of the expert.
///
///     w[n,e] = q[n,e] for all e                                                                         (1)
///
/// Source: Jacobs et al. 1991, "Adaptive mixtures of local experts".
/// @cost   S = N·E slots: the full cost of E experts
/// @order  picks of an item by ascending expert
struct Dense {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Nothing<T, B>&) const {
    plan.resize(c.q.extent(0), c.q.extent(1), c.q.size());
    B::for_each(ctx, c.q.size(), functor::PickAll<T, B>{c.q, plan.item, plan.expert, plan.weight});
    plan.build_complete(ctx);
  }
  /// Adds the gradient of q to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>&, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Nothing<T, B>&, const Nothing<T, B>&) const {
    expect_picks("Dense.backward", plan, d.q.extent(0), d.q.extent(1));
    B::for_each(ctx, d.q.size(), functor::AddScaled<T>{T(1), dplan.weight.data(), d.q.data()});
  }
};

}  // namespace gatefold
