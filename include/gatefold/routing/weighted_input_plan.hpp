#pragma once

#include "gatefold/backend/groups.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), RowsOfSlots, InputWeightBackward);

/// A routing plan that multiplies the inputs of the experts by the weights of the picks. A SparsePlan multiplies their
/// outputs. For slot s with pick p(s) of item n(s):
///
///     in[s] = weight[p(s)] · x[n(s)],   out[n] = Σ_{slots s of item n} z[s]                              (1)
///     dweight[p(s)] = ⟨din[s], x[n(s)]⟩,   dx[n] = Σ_{slots s of item n} weight[p(s)] · din[s]            (2)
///
/// WeightOnInput is the gate that writes this plan. The picks and their order are those of SparsePlan.
/// @cost   dispatching writes S·D values, which the plan keeps for backward
/// @order  slots of an item are summed by ascending slot, so by expert
template <class T, class B>
struct WeightedInputPlan : SparsePlan<T, B> {
  static constexpr bool weights_inputs = true;
  using typename SparsePlan<T, B>::Grad;
  Tensor<T, 2, B> inputs;  // [S, D] the inputs of the experts

  Dispatched<T, B> dispatch(typename B::Context& ctx, In<T, 2, B> x) {
    const Groups<B> groups = SparsePlan<T, B>::dispatch(ctx, x).groups;
    inputs.resize(groups.slots, x.extent(1));
    B::for_rows(ctx, groups.slots, functor::RowsOfSlots<T, B>{groups, this->pick, this->weight, x, inputs});
    return dispatched(x);
  }
  Dispatched<T, B> dispatched(In<T, 2, B>) const { return {this->groups().in_slot_order(), inputs}; }

  /// Computes the output of each item, the sum (1) of the experts' outputs z. Then calls step(at, i) for every element
  /// i of `out`.
  template <class Step = functor::NoStep<T>>
  void combine(typename B::Context& ctx, In<T, 2, B> z, Out<T, 2, B> out, const Step& step = {}) const {
    for_rows(ctx, out, functor::Combine<T, B>{this->item_offsets, this->item_slots, this->pick, {}, z, out, false},
             step);
  }
  /// Writes the gradients of the experts' outputs: dz[s] = dout[n(s)], with n(s) the item of slot s.
  void combine_backward(typename B::Context& ctx, In<T, 2, B>, In<T, 2, B> dout, Out<T, 2, B> dz, Grad&) const {
    B::for_rows(ctx, this->rows.size(), functor::RowsOfSlots<T, B>{this->groups(), this->pick, {}, dout, dz});
  }
  /// The backward pass of `dispatch`, equation (2): writes the gradient of the weights, and adds the gradient of the
  /// items to dx.
  void dispatch_backward(typename B::Context& ctx, In<T, 2, B> x, In<T, 2, B> dslots, Out<T, 2, B> dx, Grad& d) const {
    B::for_rows(ctx, this->rows.size(),
                functor::InputWeightBackward<T, B>{this->groups(), this->pick, x, dslots, d.weight});
    B::for_rows(
        ctx, dx.extent(0),
        functor::Combine<T, B>{this->item_offsets, this->item_slots, this->pick, this->weight, dslots, dx, true});
  }
};

namespace functor {

/// Writes to[s] = weight[pick[s]] · from[item of s] for each slot s in use. If `weight` is empty, the weight is 1.
template <class T, class B>
struct RowsOfSlots {
  Groups<B> groups;
  View<const Index, 1, B> pick;
  View<const T, 1, B> weight;
  View<const T, 2, B> from;
  View<T, 2, B> to;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (s >= from_first(lanes, [&] { return groups.offsets(groups.experts()); })) return;
    const Index columns = to.extent(1), item = from_first(lanes, [&] { return groups.row(s); });
    const T w = from_first(lanes, [&] { return weight.data() ? weight(pick(s)) : T(1); });
    const T* const row = from.data() + item * columns;
    T* const slot = to.data() + s * columns;
    each_column<T>(lanes, columns, [&](auto at, Index j) { at.store(slot + j, w * at.load(row + j)); });
  }
};
/// Writes the gradient of the weight of each slot s in use: dweight[pick[s]] = ⟨dslots[s], x[item of s]⟩.
template <class T, class B>
struct InputWeightBackward {
  Groups<B> groups;
  View<const Index, 1, B> pick;
  View<const T, 2, B> x, dslots;
  View<T, 1, B> dweight;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (s >= from_first(lanes, [&] { return groups.offsets(groups.experts()); })) return;
    const Index columns = x.extent(1), item = from_first(lanes, [&] { return groups.row(s); });
    const T dot = functor::inner_product<T>(lanes, columns, dslots.data() + s * columns, x.data() + item * columns);
    if (lanes.lane == 0) dweight(pick(s)) = dot;
  }
};

}  // namespace functor

}  // namespace gatefold
