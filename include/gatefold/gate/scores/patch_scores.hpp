#pragma once

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

/// Scores by a linear map of each patch x[n,p,:] of item n, with a separate map Θ_p for every position p.
///
///     z[n,:] = Σ_p x[n,p,:] Θ_p                                                                         (1)
///
/// Source: paper 003, sec. 3 (patch-aware router): no bias, Θ = 0 at the start. LinearScores with `length` uses one Θ
/// for all positions.
/// @param length   number of patches of an item
/// @param initial  initial Θ
/// @param x      [N, length · D] in   items
/// @param z      [N, E]          out  logits
/// @throws ArgumentError unless model_dim, experts, length >= 1, and x and the parameters have the shapes that these
///         options define
/// @cost   2·N·length·D·E flop
struct PatchScores {
  Index model_dim = 0, experts = 0, length = 1;
  Initial initial = Initial::zero();

  static constexpr bool items_adjoint_is_optional = true;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 3, B> weight;  // [length, D, E]
    GATEFOLD_PACK(weight)
    static constexpr int expert_extents[] = {2};
  };

  /// Returns a copy of the options. If `model_dim` is 0, `model_dim` of the copy is item_width / length.
  /// @throws ArgumentError unless item_width is length · model_dim, or model_dim is 0 and length divides item_width
  PatchScores with_model_dim(Index item_width) const {
    expect(length >= 1 && item_width % length == 0, "PatchScores", "length",
           Joined{"a divisor of the items' width ", item_width}, length);
    return fill_model_dim(*this, "PatchScores", item_width / length);
  }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_sizes("PatchScores.init", {{"model_dim", model_dim}, {"experts", experts}, {"length", length}});
    return {initial_weights<T>(ctx, initial, seed, length, model_dim, experts)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p) const {
    expect_shape("PatchScores", "params.weight", p.weight, {length, model_dim, experts});
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> z) const {
    B::gemm(ctx, x, false, all_patches(p.weight), false, false, z, functor::Store{});
  }
  /// Computes the logits z like forward, and calls rows(lanes, n, row) for the row of logits of each item n (gemm_rows
  /// of backend.hpp). If z has no memory, the logits are not stored.
  template <class T, class B, class F>
  void forward_rows(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> z,
                    const F& rows) const {
    B::gemm_rows(ctx, x, all_patches(p.weight), false, z, functor::Store{}, rows);
  }
  /// Adds the gradients of x and of the parameters to dx and grads.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> dz, Out<T, 2, B> dx,
                Params<T, B>& grads) const {
    if (!grads.weight.is_skipped()) B::gemm(ctx, x, true, dz, false, true, all_patches(grads.weight), functor::Store{});
    if (dx.size() > 0) backward_items(ctx, p, x, dz, dx);
  }
  /// Adds the gradient of x to dx, and computes no gradient of the parameters.
  template <class T, class B>
  void backward_items(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B>, In<T, 2, B> dz,
                      Out<T, 2, B> dx) const {
    B::gemm(ctx, dz, false, all_patches(p.weight), true, true, dx, functor::Store{});
  }

 private:
  auto all_patches(auto& weight) const { return weight.view().as(length * model_dim, experts); }
};

}  // namespace gatefold
