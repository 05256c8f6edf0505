#pragma once

#include "gatefold/core/config.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/policy.hpp"

namespace gatefold {

namespace fn {

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

}  // namespace fn

/// Take every expert, weighted by its probability.
///
///     w[n,e] = q[n,e] for all e                                                                         (1)
///
/// Source: Jacobs et al. 1991, "Adaptive mixtures of local experts".
/// @cost   S = N·E slots: the full cost of E experts
/// @order  picks of an item by ascending expert
struct Dense {
  template <class T, class B>
  void forward(typename B::Context& ctx, View<const T, 2, B>, View<const T, 2, B> q, SparsePlan<T, B>& plan,
               const Nothing<T, B>&) const {
    plan.resize(q.extent(0), q.extent(1), q.size());
    B::for_each(ctx, q.size(), fn::PickAll<T, B>{q, plan.item, plan.expert, plan.weight});
    plan.build(ctx);
  }
  /// Adds to dq.
  template <class T, class B>
  void backward(typename B::Context& ctx, View<const T, 2, B>, const SparsePlan<T, B>&,
                const typename SparsePlan<T, B>::Grad& d, Out<T, 2, B> dq) const {
    B::for_each(ctx, dq.size(), fn::AddScaled<T>{T(1), d.weight.data(), dq.data()});
  }
};

}  // namespace gatefold
