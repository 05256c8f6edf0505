#pragma once

#include <type_traits>

#include "gatefold/backend/groups.hpp"
#include "gatefold/gate/gate.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), RowsOfSlots, InputWeightBackward);

template <class T, class B>
struct WeightedInputPlan;

/// Wraps a gate so that its weights multiply the inputs of the experts instead of their outputs:
/// `Mixture{WeightOnInput{gate}, expert}`.
///
///     u[n] = Σ_e expert_e(w[n,e] · x[n]) over the picks of item n,   w from the gate                    (1)
///
/// The wrapped gate chooses the experts of an item and their weights. An expert that is not picked contributes nothing,
/// even if expert(0) is not 0.
///
/// Source: Llama 4 (transformers' modeling_llama4.py). The code of Llama 4 also computes the experts that an item did
/// not pick, with input 0. The result is equal, because the experts of Llama 4 have no bias.
/// @param x     [N, D] in   items
/// @param plan  out         WeightedInputPlan: the picks of the gate. Its `dispatch` writes the experts' inputs [S, D]
/// @throws ArgumentError in the cases in which the wrapped gate throws
/// @cost   the wrapped gate, and S·D values that dispatching writes. A Mixture also keeps the outputs of the experts
///         [S, out_dim] until backward
template <class GateT>
struct WeightOnInput {
  GateT gate;

  template <class T, class B>
  using Plan = WeightedInputPlan<T, B>;
  template <class T, class B>
  struct Params {
    gatefold::Params<GateT, T, B> gate;
    static void each(auto&& f, auto&... p) { f("", p.gate...); }
  };
  template <class T, class B>
  using Saved = gatefold::Saved<GateT, T, B>;
  template <class T, class B>
  using Extra = gatefold::Extra<GateT, T, B>;
  template <class T, class B>
  using ExtraGrad = gatefold::ExtraGrad<GateT, T, B>;

  Index experts() const { return count_experts(gate); }
  WeightOnInput with_model_dim(Index width) const { return {gatefold::with_model_dim(gate, width)}; }
  WeightOnInput with_experts(Index count) const { return {gatefold::with_experts(gate, count)}; }

  GATEFOLD_INIT(WeightOnInput) { return {init_params<T, B>(gate, ctx, seed)}; }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Extra<T, B>>& extra) const {
    if constexpr (detail_::hook::gate::validate<GateT, T, B>()) gate.validate(p.gate, items, extra);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Plan<T, B>& plan,
               NonDeduced<Saved<T, B>>& saved, const NonDeduced<Extra<T, B>>& extra = {}) const {
    gate.forward(ctx, p.gate, x, picks(plan), saved, extra);
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Plan<T, B>& plan,
             const NonDeduced<Extra<T, B>>& extra = {}) const {
    infer_gate<T, B>(gate, ctx, p.gate, x, picks(plan), extra);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Plan<T, B>& plan,
                const NonDeduced<Saved<T, B>>& saved, const typename Plan<T, B>::Grad& dplan, Out<T, 2, B> dx,
                Params<T, B>& grads, const NonDeduced<Extra<T, B>>& extra, NonDeduced<ExtraGrad<T, B>>& dextra) const {
    const SparsePlan<T, B>& of_gate = plan;
    gate.backward(ctx, p.gate, x, of_gate, saved, dplan, dx, grads.gate, extra, dextra);
  }

 private:
  template <class T, class B>
  static SparsePlan<T, B>& picks(WeightedInputPlan<T, B>& plan) {
    return plan;
  }
};
template <class G>
WeightOnInput(G) -> WeightOnInput<G>;

/// A routing plan that multiplies the inputs of the experts by the weights of the picks. A SparsePlan multiplies the
/// outputs instead. For slot s with pick p(s) of item n(s), expert input in[s] and expert output z[s]:
///
///     in[s] = weight[p(s)] · x[n(s)],   out[n] = Σ_{slots s of item n} z[s]                              (1)
///     dweight[p(s)] = ⟨din[s], x[n(s)]⟩,   dx[n] = Σ_{slots s of item n} weight[p(s)] · din[s]            (2)
///
/// WeightOnInput is the gate that writes this plan. The plan stores the picks in the same way as a SparsePlan.
/// @cost   dispatching writes S·D values, which the plan keeps for backward
/// @order  the outputs of an item's slots are added by ascending slot, and therefore by ascending expert
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

namespace detail_::policy {

template <class GateT>
struct Parts<WeightOnInput<GateT>> {
  template <class T, class B>
  static constexpr bool check() {
    if constexpr (check_gate<GateT, T, B>()) {
      GATEFOLD_EXPECT((std::is_same_v<Plan<GateT, T, B>, SparsePlan<T, B>>),
                      "gatefold: the gate in a WeightOnInput must write a SparsePlan, because each pick has a weight; "
                      "the slots of a SoftMoe are means of items; see docs/how-to/extending.md#gate")
      return true;
    } else {
      return false;
    }
  }
};

}  // namespace detail_::policy
}  // namespace gatefold
