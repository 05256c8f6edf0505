#pragma once

#include <cmath>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/scores/cosine_scores.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/routing/dense_plan.hpp"
#include "gatefold/routing/sequence.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), SoftmaxOfItems, SoftmaxOfItemsBackward);

/// Soft mixture of experts. The input of each slot of an expert is a weighted mean of all items x of a sequence. Each
/// item gets a weighted sum of the outputs of all slots. φ has a learned vector for each slot.
///
///     z[n,s] = ⟨x̂[n], σ φ̂[s]⟩,   x̂ = x/‖x‖,   φ̂ = φ/‖φ‖,   s = (expert, slot), σ learned                (1)
///     dispatch[s,n] = exp z[n,s] / Σ_{m in the sequence of n} exp z[m,s]                                (2)
///     combine[n,s]  = exp z[n,s] / Σ_t exp z[n,t]                                                       (3)
///
/// Source: Puigcerver et al. 2023, arXiv:2308.00951, sec. 2.1 and 2.3, alg. 1 and 2. `norm` selects how a division by a
/// length ‖·‖ near 0 is avoided. The paper's listing uses `outside`, `SoftMoe::vmoe()` (google-research/vmoe) uses
/// `inside`, and `SoftMoe::reference()` (bwconrad/soft-moe, the base of paper 001's code) uses `clamped`. `reference()`
/// also dispatches x̂ instead of x. SoftMoe does not suit causal models, because every item of a sequence affects all
/// items of the sequence, also the earlier ones.
/// @param count  E, the number of experts
/// @param slots  P, the number of slots of each expert for each sequence
/// @param unit_dispatch  if true, the slots get means of x̂ instead of x
/// @param x      [N, D] in   items
/// @param plan   DensePlan: dispatch [sequences·E·P, length], combine [N, E·P]
/// @param extra  Sequence: length, padding. Items of different sequences do not affect each other. The values of
///               padding affect no item, and the output of padding is 0
/// @throws ArgumentError unless model_dim, count, slots >= 1, epsilon > 0 (not checked if norm is `none`), the
///         parameters have the shapes of Params, the length divides N, and the mask of padding is empty or [N]
/// @cost   2·N·E·P·D flop in addition to the cost of the plan. `init` sets σ to 1 and draws φ from N(0, 1/D)
struct SoftMoe {
  Index model_dim = 0, count = 0, slots = 1;
  UnitNorm norm = UnitNorm::outside;
  double epsilon = 1e-6;
  bool unit_dispatch = false;

  static SoftMoe vmoe() { return vmoe({}); }
  static SoftMoe vmoe(SoftMoe options) {
    options.norm = UnitNorm::inside;
    return options;
  }
  static SoftMoe reference() { return reference({}); }
  static SoftMoe reference(SoftMoe options) {
    options.norm = UnitNorm::clamped, options.epsilon = 1e-12, options.unit_dispatch = true;
    return options;
  }

  template <class T, class B>
  using Plan = DensePlan<T, B>;
  template <class T, class B>
  using Extra = Sequence<T, B>;
  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 3, B> phi;    // [E, P, D]
    Tensor<T, 1, B> scale;  // [1]
    GATEFOLD_PACK(phi, scale)
    static constexpr int expert_extents[] = {0, -1};
  };

  Index experts() const { return count; }
  SoftMoe with_model_dim(Index width) const { return fill_model_dim(*this, "SoftMoe", width); }
  SoftMoe with_experts(Index of_experts) const {
    expect(count == 0 || count == of_experts, "SoftMoe", "count",
           Joined{of_experts, " (the number of experts in the expert policy of the Mixture) or 0"}, count);
    SoftMoe filled = *this;
    filled.count = of_experts;
    return filled;
  }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_sizes("SoftMoe.init", {{"model_dim", model_dim}, {"count", count}, {"slots", slots}});
    if (norm != UnitNorm::none) expect_positive("SoftMoe.init", "epsilon", epsilon);
    Params<T, B> p{Tensor<T, 3, B>(count, slots, model_dim), constant_tensor<T>(ctx, 1, 1)};
    fill_normal(ctx, seed, 1 / std::sqrt(static_cast<double>(model_dim)), p.phi);
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Sequence<T, B>& extra) const {
    expect_shape("SoftMoe", "params.phi", p.phi, {count, slots, model_dim});
    expect_shape("SoftMoe", "params.scale", p.scale, {1});
    if (norm != UnitNorm::none) expect_positive("SoftMoe", "epsilon", epsilon);
    extra.validate("SoftMoe.forward", items);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, DensePlan<T, B>& plan, Nothing<T, B>&,
               const Sequence<T, B>& extra = {}) const {
    auto mark = ctx.mark();
    plan.resize(ctx, x.extent(0), count, slots, extra);
    const auto s = sides<T, B>(ctx, p, plan.without_padding(ctx, x));
    if (unit_dispatch) {
      plan.inputs.resize(x.extent(0), model_dim);
      copy(ctx, s.item, plan.inputs.view());
    }
    auto z = ctx.template scratch<T>(x.extent(0), count * slots);
    B::gemm(ctx, s.item, false, s.slot, true, false, z, functor::Store{});
    B::for_rows(ctx, plan.dispatch_weight.extent(0),
                functor::SoftmaxOfItems<T, B>{z, plan.valid, plan.dispatch_weight});
    B::for_rows(ctx, z.extent(0), functor::Softmax<T, B>{z, plan.combine_weight});
    if (plan.valid.size() > 0)
      B::for_each(ctx, z.size(), functor::KeepValid<T, B>{plan.combine_weight, plan.valid, plan.combine_weight});
  }

  /// Adds the gradients of x and of the parameters to dx and grads.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const DensePlan<T, B>& plan,
                const Nothing<T, B>&, const typename DensePlan<T, B>::Grad& d, Out<T, 2, B> dx, Params<T, B>& grads,
                const Sequence<T, B>&, Nothing<T, B>&) const {
    expect_shape("SoftMoe.backward", "saved plan: combine_weight", plan.combine_weight, {x.extent(0), count * slots});
    auto mark = ctx.mark();
    auto dz = ctx.template scratch<T>(x.extent(0), count * slots);
    B::for_rows(ctx, dz.extent(0), functor::SoftmaxBackward<T, B>{plan.combine_weight, d.combine_weight, dz});
    B::for_rows(ctx, plan.dispatch_weight.extent(0),
                functor::SoftmaxOfItemsBackward<T, B>{plan.dispatch_weight, d.dispatch_weight, dz});

    const View<const T, 2, B> kept = plan.without_padding(ctx, x), dlogits = dz;
    const auto s = sides<T, B>(ctx, p, kept);
    if (!grads.phi.is_skipped() || !grads.scale.is_skipped()) {
      auto dslot = ctx.template scratch<T>(count * slots, model_dim);
      B::gemm(ctx, dlogits, true, s.item, false, false, dslot, functor::Store{});
      if (!grads.scale.is_skipped())
        B::template reduce<T>(ctx, dslot.extent(0), functor::UnitRowsScale<T, B>{of_slots(p.phi), factor<T>(), dslot},
                              grads.scale.data());
      if (!grads.phi.is_skipped())
        B::for_rows(
            ctx, dslot.extent(0),
            functor::UnitRowsBackward<T, B>{of_slots(p.phi), factor<T>(), p.scale.data(), dslot, of_slots(grads.phi)});
    }
    auto ditem = d.inputs.empty() ? ctx.template scratch<T>(x.extent(0), model_dim) : d.inputs;
    B::gemm(ctx, dlogits, false, s.slot, false, !d.inputs.empty(), ditem, functor::Store{});
    B::for_rows(ctx, x.extent(0), functor::UnitRowsBackward<T, B>{kept, factor<T>(), nullptr, ditem, dx});
  }

 private:
  /// The two factors of the scalar products (1) of SoftMoe: the normalised items x̂, and the normalised slot vectors
  /// times σ.
  template <class T, class B>
  struct Sides {
    View<const T, 2, B> item, slot;  // [N, D] x̂, [E·P, D] σ φ̂
  };
  template <class T, class B>
  Sides<T, B> sides(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x) const {
    auto item = ctx.template scratch<T>(x.extent(0), model_dim),
         slot = ctx.template scratch<T>(count * slots, model_dim);
    B::for_rows(ctx, x.extent(0), functor::UnitRows<T, B>{x, factor<T>(), nullptr, item});
    B::for_rows(ctx, slot.extent(0), functor::UnitRows<T, B>{of_slots(p.phi), factor<T>(), p.scale.data(), slot});
    return {item, slot};
  }
  template <class T>
  functor::UnitFactor<T> factor() const {
    return {norm, T(epsilon)};
  }
  /// Returns phi [E, P, D] as [E·P, D].
  auto of_slots(auto& phi) const { return phi.view().as(count * slots, model_dim); }
};

namespace functor {

/// Writes the dispatch weights of slot s and sequence g to row (g,s) of `weight`: the softmax of the logits z[:,s] over
/// the L items of the sequence. Padding gets 0.
template <class T, class B>
struct SoftmaxOfItems {
  View<const T, 2, B> z;
  View<const T, 1, B> valid;  // [N] mask; empty: no padding
  View<T, 2, B> weight;

  GATEFOLD_HD bool is_item(Index n) const { return valid.empty() || valid(n) != 0; }
  GATEFOLD_HD void operator()(const auto& lanes, Index r) const {
    const Index length = weight.extent(1), first = r / z.extent(1) * length, s = r % z.extent(1);
    Index some = 0;
    while (some < length && !is_item(first + some)) ++some;
    T top = some < length ? z(first + some, s) : T(0), total = 0;
    for (Index l = lanes.lane; l < length; l += lanes.size)
      if (is_item(first + l)) top = z(first + l, s) > top ? z(first + l, s) : top;
    top = lanes.max(top);
    for (Index l = lanes.lane; l < length; l += lanes.size)
      total += weight(r, l) = is_item(first + l) ? std::exp(z(first + l, s) - top) : T(0);
    total = lanes.sum(total);
    for (Index l = lanes.lane; l < length; l += lanes.size)
      if (is_item(first + l)) weight(r, l) /= total;
  }
};
/// Backward pass of SoftmaxOfItems: adds the gradient of the logits to dz.
template <class T, class B>
struct SoftmaxOfItemsBackward {
  View<const T, 2, B> weight, dweight;
  View<T, 2, B> dz;

  GATEFOLD_HD void operator()(const auto& lanes, Index r) const {
    const Index length = weight.extent(1), first = r / dz.extent(1) * length, s = r % dz.extent(1);
    T dot = 0;
    for (Index l = lanes.lane; l < length; l += lanes.size) dot += weight(r, l) * dweight(r, l);
    dot = lanes.sum(dot);
    for (Index l = lanes.lane; l < length; l += lanes.size) dz(first + l, s) += weight(r, l) * (dweight(r, l) - dot);
  }
};

}  // namespace functor

}  // namespace gatefold
