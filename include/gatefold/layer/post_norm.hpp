#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/one_expert.hpp"
#include "gatefold/update/pass.hpp"

namespace gatefold {

/// Normalises the output of a layer (post-norm), so that the next layer reads normalised items.
///
///     y, carry ← norm(z), carry,   z, carry ← layer(x, carry)                                           (1)
///
/// Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.1, in which the layer is a Residual: norm(x + u(x)). The norm
/// is an expert or a branch (LayerNorm, RmsNorm). If the norm has model dimension 0, the dimension is filled from the
/// layer. Extra inputs go to the layer. The carry, the state of the layer's update rule, is not normalised.
/// @param x [N, D] in, y [N, out_dim] out
/// @throws ArgumentError if the width of the norm is not out_dim of the layer, or a shape or an option is invalid
/// @cost   the layer and the norm; keeps z [N, out_dim]
template <class LayerT, class NormT>
struct PostNorm {
  LayerT layer;
  NormT norm;

  GATEFOLD_AROUND_LAYER(LayerT, layer)
  template <class T, class B>
  using Norm = AsBranch<NormT, T, B>;

  GATEFOLD_TWO_PARTS(layer, Inner, norm, Norm, z)

  GATEFOLD_INIT_OF(PostNorm, as_layer<T, B>(layer), filled_norm<T, B>())
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Carry<T, B>>& carry,
                const NonDeduced<Extra<T, B>>& extra) const {
    gatefold::validate(as_layer<T, B>(layer), p.layer, items, carry, extra);
    gatefold::validate(filled_norm<T, B>(), p.norm, items, Nothing<T, B>{});
  }

  GATEFOLD_LAYER_PASSES(PostNorm)

  /// Returns the attention trace (the tensors of an attention that a gate can read) of the layer. This function exists
  /// only if the layer has a trace.
  template <class T, class B, class Of = Inner<T, B>>
  auto trace(const Params<T, B>& p, const Saved<T, B>& saved) const
      -> decltype(std::declval<const Of&>().trace(p.layer, saved.layer)) {
    return as_layer<T, B>(layer).trace(p.layer, saved.layer);
  }

 private:
  GATEFOLD_RUN_LAYER {
    auto mark = ctx.mark();
    auto z = keep_or_scratch<T, B>(ctx, keep, &Saved<T, B>::z, x.extent(0), out_dim());
    run_layer<T, B>(as_layer<T, B>(layer), ctx, p.layer, x, carry, z, part_of(keep, &Saved<T, B>::layer), extra);
    run_branch<T, B>(filled_norm<T, B>(), ctx, p.norm, z, y, part_of(keep, &Saved<T, B>::norm), Nothing<T, B>{});
    update::follow_pass(carry, z.data(), y.data());
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    expect_shape("PostNorm.backward", "saved.z", saved.z, {x.extent(0), out_dim()});
    auto mark = ctx.mark();
    auto dz = ctx.template scratch<T>(x.extent(0), out_dim());
    fill(ctx, dz, 0);
    Nothing<T, B> none;
    run_branch_backward<T, B>(filled_norm<T, B>(), ctx, p.norm, saved.z, saved.norm, dy, dz, grads.norm, none, none);
    run_layer_backward<T, B>(as_layer<T, B>(layer), ctx, p.layer, x, saved.layer, dz, dcarry, dx, grads.layer, extra,
                             dextra);
  }
  template <class T, class B>
  Norm<T, B> filled_norm() const {
    return as_branch<T, B>(with_model_dim(norm, out_dim()));
  }
};
template <class L, class N>
PostNorm(L, N) -> PostNorm<L, N>;

}  // namespace gatefold
