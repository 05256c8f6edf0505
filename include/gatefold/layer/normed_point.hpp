#pragma once

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/one_expert.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/update/pass.hpp"

namespace gatefold {

namespace functor {

/// Computes y ← x + (y − h) in place: adds the change y − h to the items x. On entry, y is the output of a layer for
/// the input h.
template <class T>
struct AddWhatChanged {
  using Element = T;
  const T *x, *h;
  T* y;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    at.store(y + i, at.load(x + i) + (at.load(y + i) - at.load(h + i)));
  }
};

}  // namespace functor

/// Normalises the items, applies a layer to the normalised items, and adds to the original items the change that the
/// layer makes. If the layer's update rule evaluates its branch at a point ahead of the items (look-ahead), this point
/// is computed from the normalised items.
///
///     h = norm(x),   z, carry ← layer(h, carry),   y = x + (z − h)                                      (1)
///
/// Source: the code of paper 001 on vision (vmoe), `NormedPoint{LayerNorm{}, Residual{update::Robust{}, branch}}`. The
/// paper's equation looks ahead before the norm, `Residual{update::Robust{}, PreNorm{LayerNorm{}, branch}}`. For a rule
/// without look-ahead, these two layers give equal results up to rounding. The norm is an expert or a branch. If the
/// norm has model dimension 0, the dimension is filled from the layer. Extra inputs go to the layer.
/// @param x [N, D] in, y [N, D] out
/// @throws ArgumentError unless in_dim of the layer equals its out_dim
/// @cost   the layer, the norm and 2·N·D additions; keeps h [N, D]
template <class NormT, class LayerT>
struct NormedPoint {
  NormT norm;
  LayerT layer;

  template <class T, class B>
  using Norm = AsBranch<NormT, T, B>;
  GATEFOLD_AROUND_LAYER(LayerT, layer)

  GATEFOLD_TWO_PARTS(norm, Norm, layer, Inner, h)

  GATEFOLD_INIT_OF(NormedPoint, filled_norm<T, B>(), as_layer<T, B>(layer))
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Carry<T, B>>& carry,
                const NonDeduced<Extra<T, B>>& extra) const {
    expect(in_dim() == out_dim(), "NormedPoint", "layer.out_dim", Joined{in_dim(), " (its in_dim)"}, out_dim());
    gatefold::validate(filled_norm<T, B>(), p.norm, items, Nothing<T, B>{});
    gatefold::validate(as_layer<T, B>(layer), p.layer, items, carry, extra);
  }

  GATEFOLD_LAYER_PASSES(NormedPoint)

 private:
  GATEFOLD_RUN_LAYER {
    auto mark = ctx.mark();
    auto h = keep_or_scratch<T, B>(ctx, keep, &Saved<T, B>::h, x.extent(0), in_dim());
    run_branch<T, B>(filled_norm<T, B>(), ctx, p.norm, x, h, part_of(keep, &Saved<T, B>::norm), Nothing<T, B>{});
    update::follow_pass(carry, x.data(), h.data());
    run_layer<T, B>(as_layer<T, B>(layer), ctx, p.layer, h, carry, y, part_of(keep, &Saved<T, B>::layer), extra);
    B::for_each(ctx, y.size(), functor::AddWhatChanged<T>{x.data(), h.data(), y.data()});
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    expect_shape("NormedPoint.backward", "saved.h", saved.h, {x.extent(0), in_dim()});
    add(ctx, dy, dx);
    auto mark = ctx.mark();
    auto dh = ctx.template scratch<T>(x.extent(0), in_dim());
    copy_scaled(ctx, -1, dy, dh);
    Nothing<T, B> none;
    run_layer_backward<T, B>(as_layer<T, B>(layer), ctx, p.layer, saved.h, saved.layer, dy, dcarry, dh, grads.layer,
                             extra, dextra);
    run_branch_backward<T, B>(filled_norm<T, B>(), ctx, p.norm, x, saved.norm, dh, dx, grads.norm, none, none);
  }
  template <class T, class B>
  Norm<T, B> filled_norm() const {
    return as_branch<T, B>(with_model_dim(norm, in_dim()));
  }
};
template <class N, class L>
NormedPoint(N, L) -> NormedPoint<N, L>;

}  // namespace gatefold
