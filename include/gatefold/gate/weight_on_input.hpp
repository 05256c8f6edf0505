#pragma once

#include <type_traits>

#include "gatefold/gate/count_experts.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/policy/probe.hpp"
#include "gatefold/routing/weighted_input_plan.hpp"

namespace gatefold {

/// Wraps a gate so that its weights multiply the inputs of the experts instead of their outputs:
/// `Mixture{WeightOnInput{gate}, expert}`.
///
///     u[n] = Σ_e expert_e(w[n,e] · x[n]) over the picks of item n,   w from the gate                    (1)
///
/// The experts of an item and the weights are those of the gate inside. An expert that is not picked contributes
/// nothing, also if expert(0) is not 0.
///
/// Source: Llama 4 (transformers' modeling_llama4.py). Its code also computes the experts that an item did not pick,
/// with input 0. The result is equal, because its experts have no bias.
/// @param x     [N, D] in   items
/// @param plan  out         WeightedInputPlan: the picks of the gate, and the inputs [S, D] of the experts
/// @throws ArgumentError as the gate inside
/// @cost   the gate inside, and S·D values that dispatching writes. A Mixture also keeps the outputs of the experts
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

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    if constexpr (detail_::policy::parts_fit<WeightOnInput, T, B>()) {
      return {init_params<T, B>(gate, ctx, seed)};
    } else {
      return {};
    }
  }
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
