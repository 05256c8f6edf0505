#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/sampled_hash.hpp"
#include "gatefold/update/pass.hpp"

namespace gatefold {

namespace detail_::lookup {

template <class C>
void copy_layers_done(const C& from, C& to);

}  // namespace detail_::lookup

/// A layer that keeps only its carry (its input state) for backward, and runs forward again in backward (activation
/// checkpointing, recomputation): `Stack{Recompute{Residual{rule, branch}}, 12}`.
///
///     y, carry ← layer(x, carry),   y and all gradients with the same bits as without Recompute         (1)
///
/// Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174. Forward and backward
/// get the same extra inputs, so dropout and noise draw the same numbers again. Parameters have the names of the
/// layer's parameters. The caller keeps the items x; a Stack keeps them between layers. After forward, the saved values
/// of mixtures inside a Recompute are empty, so for_each_mixture finds no picks and no auxiliary losses in them. The
/// auxiliary losses of these mixtures contribute to the gradients, but not to the value of Trainer.auxiliary().
/// Recompute copies the tensors of a carry and the member `Index layer`, but no other members of a Carry of your own.
/// @param x [N, in_dim] in (or ids [N]), y [N, out_dim] out
/// @param enabled  if false, the layer runs without recomputation and keeps its values
/// @param saved  the carry before the layer; empty for a layer without a carry
/// @cost   runs forward twice instead of once. Saved values exist for only one layer at a time, in memory of the
///         context; without Recompute, a Stack has the saved values of all its layers
template <class LayerT>
struct Recompute {
  LayerT layer;
  bool enabled = true;

  GATEFOLD_AROUND_LAYER(LayerT, layer)

  GATEFOLD_PARAMS_OF(layer, Inner<T, B>)
  template <class T, class B>
  using Items = gatefold::Items<Inner<T, B>, T, B>;
  template <class T, class B>
  struct Saved {
    gatefold::Carry<Inner<T, B>, T, B> carry;  // copy of the carry (state) that the layer read in forward
    BatchStamp batch;
    gatefold::Saved<Inner<T, B>, T, B> layer;  // used if not enabled
    void mixtures(auto&& f) const { for_each_mixture(layer, f); }
  };

  GATEFOLD_INIT_OF(Recompute, as_layer<T, B>(layer))
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Carry<T, B>>& carry,
                const NonDeduced<Extra<T, B>>& extra) const {
    gatefold::validate(as_layer<T, B>(layer), p.layer, items, carry, extra);
  }

  GATEFOLD_LAYER_PASSES(Recompute)

 private:
  GATEFOLD_RUN_LAYER {
    if constexpr (!std::is_null_pointer_v<Keep>) {
      if (!enabled) return run_layer<T, B>(as_layer<T, B>(layer), ctx, p.layer, x, carry, y, &keep->layer, extra);
      keep->batch.take(x);
      shape_like(keep->carry, carry);
      copy_carry(ctx, carry, keep->carry);
    }
    run_layer<T, B>(as_layer<T, B>(layer), ctx, p.layer, x, carry, y, nullptr, extra);
    if constexpr (!std::is_null_pointer_v<Keep>) update::leave_pass(carry);
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    const auto& inner = as_layer<T, B>(layer);
    if (!enabled)
      return run_layer_backward<T, B>(inner, ctx, p.layer, x, saved.layer, dy, dcarry, dx, grads.layer, extra, dextra);
    saved.batch.expect_same("Recompute.backward", x);
    auto mark = ctx.mark();
    auto again = ctx.template acquire<gatefold::Saved<Inner<T, B>, T, B>>();
    auto carry = ctx.template acquire<Carry<T, B>>();
    inner.begin(ctx, p.layer, x.extent(0), *carry);
    expect_like("Recompute.backward", "saved.carry", *carry, saved.carry);
    copy_carry(ctx, saved.carry, *carry);
    auto y = ctx.template scratch<T>(x.extent(0), out_dim());
    run_layer<T, B>(inner, ctx, p.layer, x, *carry, y, &*again, extra);
    run_layer_backward<T, B>(inner, ctx, p.layer, x, *again, dy, dcarry, dx, grads.layer, extra, dextra);
  }
  template <class C, class CarryT>
  static void copy_carry(C& ctx, const CarryT& from, CarryT& to) {
    copy_pack(ctx, from, to);
    detail_::lookup::copy_layers_done(from, to);
  }
};
template <class L>
Recompute(L) -> Recompute<L>;
template <class L>
Recompute(L, bool) -> Recompute<L>;

namespace detail_::lookup {

/// Copies the member `Index layer` of a carry, and of all carries inside it. A carry is the state that an update rule
/// passes from layer to layer. Its member `layer` is the number of layers that have run.
template <class C>
void copy_layers_done(const C& from, C& to) {
  if constexpr (!detail_::pack::is_tensor<C>) {
    if constexpr (requires { requires std::is_arithmetic_v<decltype(to.layer)>; }) {
      GATEFOLD_REQUIRE((std::is_same_v<decltype(to.layer), Index>),
                       "gatefold: the member `layer` of a Carry must be an Index: it counts the layers that have run, "
                       "and Recompute copies it; see docs/reference/optional_members.md");
      to.layer = from.layer;
    }
    detail_::pack::each_part([](auto, const auto& a, auto& b) { copy_layers_done(a, b); }, from, to);
  }
}

}  // namespace detail_::lookup

}  // namespace gatefold
