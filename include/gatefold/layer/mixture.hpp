#pragma once

#include <concepts>
#include <type_traits>

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/sampled_hash.hpp"

namespace gatefold {

namespace detail_::policy {

/// True if a plan of type P (the experts chosen for each item) accepts elements of type Z, for example bfloat16, in two
/// functions: combine, which reads outputs of experts, and dispatch_backward, which reads gradients of their inputs.
template <class P, class T, class B, class Z>
concept TakesSlots = requires(const P plan, Probe<T, B> a, View<const Z, 2, B> slots, typename P::Grad& dplan) {
  plan.template combine<Z>(a.ctx, slots, a.out);
  plan.template dispatch_backward<Z>(a.ctx, a.in, slots, a.out, dplan);
};

}  // namespace detail_::policy

/// A mixture of experts: a gate chooses experts for each item, and the output is the weighted sum of their outputs. It
/// is a branch. The four papers whose models are in docs/how-to/papers.md use it.
///
///     u[n] = Σ_e w[n,e] · expert_e(x[n]),   w from the gate, 0 for experts not picked                   (1)
///
/// If the model dimension of the gate is 0, it is set to the width of the experts. If the gate's number of experts is 0
/// and the experts are of several kinds (`Experts`), the number is set to expert.experts(). forward and infer take an
/// elementwise functor step(at, i), with which the update rule reads the values of u. If the step is a RegisterFunctor
/// (it can process SIMD registers, backend/epilogue.hpp), a SparsePlan runs it while u is combined: on a host after
/// each row, on a device before a value of u is stored. Otherwise, and with a DensePlan, the step runs after u is
/// complete.
/// @param x  [N, in_dim] in, u [N, out_dim] out
/// @param extra  the extra inputs of the gate. If the experts draw random numbers (HiddenDropout), `.noise` has the
///         noise of the experts, and `.branch` the extra inputs of the gate
/// @param saved  the plan, the saved values of gate and experts, and the outputs z [S, out_dim] of the experts if
///         backward needs them. backward does not need z if the experts have weighted_backward and the plan has
///         slot_weights, but not weights_inputs
/// @throws ArgumentError if a shape or an option is invalid, before anything is written
/// @cost   the costs of the gate and of the experts on S slots, and S·out_dim multiply-adds to combine the outputs
/// @order  an item's slots are summed by ascending expert
template <class GateT, class ExpertT>
struct Mixture {
  static_assert(detail_::policy::in_order<Mixture>);
  /// True if the experts draw random numbers, for example for dropout.
  static constexpr bool draws = detail_::hook::expert::with_noise<ExpertT>();
  GateT gate;
  ExpertT expert;

  template <class T, class B>
  struct Params {
    using Gate = GateT;
    gatefold::Params<GateT, T, B> gate;
    gatefold::Params<ExpertT, T, B> expert;
    [[no_unique_address]] ActiveExperts<B> active{};  // number of experts that compute an item; `summary` reads it
    GATEFOLD_PACK(gate, expert)
  };
  template <class T, class B>
  struct Saved {
    gatefold::Plan<GateT, T, B> plan;
    gatefold::Saved<GateT, T, B> gate;
    gatefold::Saved<ExpertT, T, B> expert;
    Tensor<T, 2, B> z;  // [slots, out_dim] outputs of the experts, if backward needs them
    BatchStamp batch;
    void mixtures(auto&& f) const { f(*this); }
  };
  template <class T, class B>
  using Extra = std::conditional_t<draws, NoisyExtra<gatefold::Extra<GateT, T, B>>, gatefold::Extra<GateT, T, B>>;
  template <class T, class B>
  using ExtraGrad = gatefold::ExtraGrad<GateT, T, B>;

  Index in_dim() const { return expert.in_dim(); }
  Index out_dim() const { return expert.out_dim(); }
  Index experts() const { return count_experts(filled_gate()); }
  /// Returns the gate. If its model dimension is 0, sets it to the width of the experts. If its number of experts is 0
  /// and the experts are of several kinds (`Experts`), sets this number to expert.experts().
  GateT filled_gate() const { return filled_gate(in_dim()); }
  /// Returns the gate. If its model dimension is 0, sets the dimension to `width`. If its number of experts is 0 and
  /// the experts are of several kinds, sets this number as filled_gate() does.
  GateT filled_gate(Index width) const {
    if constexpr (detail_::hook::any::experts<ExpertT>()) {
      return with_experts(with_model_dim(gate, width), expert.experts());
    } else {
      return with_model_dim(gate, width);
    }
  }

  /// Returns a copy of `expert` for one call. If the experts draw random numbers, for example for dropout, the copy has
  /// the noise from `extra`.
  ExpertT drawing_experts(const auto& extra) const {
    if constexpr (draws) {
      return with_noise(expert, extra.noise);
    } else {
      return expert;
    }
  }
  /// Returns the extra inputs of the gate. If the experts draw random numbers, these are the member `branch` of the
  /// mixture's extra inputs. Otherwise, all extra inputs of the mixture belong to the gate.
  static const auto& of_gate(const auto& extra) {
    if constexpr (draws) {
      return extra.branch;
    } else {
      return extra;
    }
  }

  GATEFOLD_INIT(Mixture) { return init_with<T, B>(ctx, filled_gate(), seed); }
  /// Returns the initial parameters for g, the gate with all of its options filled in.
  template <class T, class B>
  Params<T, B> init_with(typename B::Context& ctx, const GateT& g, Seed seed) const {
    const auto here = ctx.here();
    expect(in_dim() >= 1, "Mixture.init", "expert.in_dim", "at least 1", in_dim());
    return {init_params<T, B>(g, ctx, seed.fork(0)), expert.template init<T, B>(ctx, count_experts(g), seed.fork(1)),
            ActiveExperts<B>{active_experts(g, count_experts(g)), count_experts(g)}};
  }

  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    validate_with(p, filled_gate(), items, extra);
  }
  /// Checks the parameters for g, the gate with all of its options filled in.
  template <class T, class B>
  void validate_with(const Params<T, B>& p, const GateT& g, Index items, const Extra<T, B>& extra) const {
    if constexpr (detail_::hook::gate::validate<GateT, T, B>()) g.validate(p.gate, items, of_gate(extra));
    if constexpr (detail_::hook::expert::validate<ExpertT, T, B>())
      drawing_experts(extra).validate(p.expert, count_experts(g));
  }

  GATEFOLD_BRANCH_PASSES(Mixture)
  /// Runs the experts on the items x and combines their outputs. Reads `plan`, which the gate has written. Saves the
  /// values for backward in *keep; keep is nullptr in inference.
  template <class T, class B, class Keep, class Step>
  void run_experts(typename B::Context& ctx, const Params<T, B>& p, gatefold::Plan<GateT, T, B>& plan, In<T, 2, B> x,
                   Out<T, 2, B> u, Keep keep, const Extra<T, B>& extra, const Step& step) const {
    auto mark = ctx.mark();
    const auto in = plan.dispatch(ctx, x);
    if constexpr (std::is_null_pointer_v<Keep>) {
      const auto z = ctx.template scratch<Slot<T, B>>(in.groups.slots, out_dim());
      infer_expert<T, B, Slot<T, B>>(drawing_experts(extra), ctx, p.expert, in.groups, in.x, z);
      combine(ctx, plan, z, u, step);
    } else {
      const auto z = outputs(ctx, keep->z, in.groups.slots);
      forward_slots<T, B, Slot<T, B>>(drawing_experts(extra), ctx, p.expert, in.groups, in.x, z, keep->expert);
      combine(ctx, plan, z, u, step);
    }
  }
  /// Backward pass of run_experts: adds to dx and to grads.expert, and writes dplan, the gradient of the plan.
  template <class T, class B>
  void backward_experts(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved,
                        In<T, 2, B> du, Out<T, 2, B> dx, Params<T, B>& grads, const Extra<T, B>& extra,
                        typename gatefold::Plan<GateT, T, B>::Grad& dplan) const {
    auto mark = ctx.mark();
    const auto in = saved.plan.dispatched(x);
    const Index slots = in.groups.slots;
    const auto dslots = ctx.template scratch<Slot<T, B>>(slots, in_dim());
    if constexpr (takes_weights<T, B>()) {
      weighted_backward_slots<T, B, Slot<T, B>>(drawing_experts(extra), ctx, p.expert, in.groups, in.x, saved.expert,
                                                du, saved.plan.slot_weights(dplan), dslots, grads.expert);
    } else {
      auto dz = ctx.template scratch<T>(slots, out_dim());
      saved.plan.combine_backward(ctx, saved.z, du, dz, dplan);
      drawing_experts(extra).backward(ctx, p.expert, in.groups, in.x, saved.expert, dz, dslots, grads.expert);
    }
    dispatch_backward(ctx, saved.plan, x, dslots, dx, dplan);
  }

  /// Checks the saved values before a backward pass. The plan (the experts chosen for each item) and the expert outputs
  /// z must have the sizes that forward of this mixture gives them for the items x.
  /// @param count  number of experts
  /// @throws ArgumentError if a size differs
  template <class T, class B>
  void expect_plan(const char* where, const gatefold::Plan<GateT, T, B>& plan, const Tensor<T, 2, B>& z, In<T, 2, B> x,
                   Index count) const {
    if constexpr (requires { plan.items(); })
      expect(plan.items() == x.extent(0), where, "saved.plan.items()",
             Joined{x.extent(0), " (the items of x; pass the saved of its forward)"}, plan.items());
    if constexpr (requires { plan.experts(); })
      expect(plan.experts() == count, where, "saved.plan.experts()", Joined{count, " (the experts of this Mixture)"},
             plan.experts());
    const auto in = plan.dispatched(x);
    expect_shape(where, "saved.plan: dispatched items", in.x, {any_extent, in_dim()});
    if constexpr (!takes_weights<T, B>()) expect_shape(where, "saved.z", z, {in.groups.slots, out_dim()});
  }
  /// Returns true if backward of the experts also computes the gradients of the weights that the gate has given to the
  /// experts. In this case the outputs z of the experts are not kept.
  template <class T, class B>
  static constexpr bool takes_weights() {
    using Plan = gatefold::Plan<GateT, T, B>;
    return detail_::hook::expert::weighted_backward<ExpertT, T, B>() &&
           detail_::hook::plan::slot_weights<Plan, T, B>() && !detail_::hook::plan::weights_inputs<Plan>();
  }
  /// The element type of the expert outputs z and of the gradients of expert inputs. It is the backend's SlotValue (for
  /// example bfloat16 on CudaBf16) if backward does not need z, and both experts and plan support it. Otherwise it is
  /// T.
  template <class T, class B>
  using Slot =
      std::conditional_t<takes_weights<T, B>() &&
                             detail_::policy::TakesSlots<gatefold::Plan<GateT, T, B>, T, B, SlotElement<ExpertT, T, B>>,
                         SlotElement<ExpertT, T, B>, T>;
  template <class Z, class PlanT, class T, class B, class Step>
  static void combine(auto& ctx, const PlanT& plan, View<Z, 2, B> z, View<T, 2, B> u, const Step& step) {
    if constexpr (std::is_same_v<Z, T>) {
      plan.combine(ctx, z, u, step);
    } else {
      plan.template combine<Z>(ctx, z, u, step);
    }
  }
  template <class Z, class PlanT, class T, class B>
  static void dispatch_backward(auto& ctx, const PlanT& plan, View<const T, 2, B> x, View<Z, 2, B> dslots,
                                View<T, 2, B> dx, auto& dplan) {
    if constexpr (std::is_same_v<Z, T>) {
      plan.dispatch_backward(ctx, x, dslots, dx, dplan);
    } else {
      plan.template dispatch_backward<Z>(ctx, x, dslots, dx, dplan);
    }
  }
  /// Returns memory for the outputs of the experts: the saved tensor z if backward needs the outputs, otherwise scratch
  /// memory of the context.
  template <class T, class B>
  View<Slot<T, B>, 2, B> outputs(typename B::Context& ctx, Tensor<T, 2, B>& z, Index slots) const {
    if constexpr (takes_weights<T, B>()) {
      return ctx.template scratch<Slot<T, B>>(slots, out_dim());
    } else {
      z.resize(slots, out_dim());
      return z.view();
    }
  }

 private:
  GATEFOLD_RUN_BRANCH {
    if constexpr (std::is_null_pointer_v<Keep>) {
      auto mark = ctx.mark();
      auto plan = ctx.template acquire<gatefold::Plan<GateT, T, B>>();
      infer_gate<T, B>(filled_gate(), ctx, p.gate, x, *plan, of_gate(extra));
      run_experts<T, B>(ctx, p, *plan, x, u, keep, extra, step);
    } else {
      keep->batch.take(x);
      filled_gate().forward(ctx, p.gate, x, keep->plan, keep->gate, of_gate(extra));
      run_experts<T, B>(ctx, p, keep->plan, x, u, keep, extra, step);
    }
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    saved.batch.expect_same("Mixture.backward", x);
    expect_plan("Mixture.backward", saved.plan, saved.z, x, experts());
    auto mark = ctx.mark();
    auto dplan = saved.plan.grad(ctx);
    backward_experts(ctx, p, x, saved, du, dx, grads, extra, dplan);
    filled_gate().backward(ctx, p.gate, x, saved.plan, saved.gate, dplan, dx, grads.gate, of_gate(extra), dextra);
  }
};
template <class G, class E>
Mixture(G, E) -> Mixture<G, E>;

}  // namespace gatefold
