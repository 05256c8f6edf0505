#pragma once

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/patches.hpp"

namespace gatefold {

/// A convolutional expert that applies the same filters w_{e,j} to all patches x^(p) of an item, then sums the
/// activations over filters and patches. This is a convolution whose stride equals its width.
///
///     f_e(x) = Σ_j Σ_p act(⟨w_{e,j}, x^(p)⟩)                                                            (1)
///
/// Source: Chen et al. 2022, arXiv:2208.02813; the baseline of paper 003. With J filters and O outputs, output o sums
/// the filters [o J/O, (o+1) J/O).
/// @param x [N, patches · model_dim] in items, z [S, outputs] out
/// @param bias  if true, a bias b_{e,j} is added to the argument of act
/// @param initial  initial values of filters and biases, with fan-in model_dim; PatchMlp explains the default σ₀ = 0.3
/// @param saved  the values before the activation [S · patches, J]
/// @throws ArgumentError unless sizes are at least 1 and outputs divides filters
/// @cost   2·S·P·d·J flop, with P patches and d = model_dim
/// @order  an output is summed patch by patch, with filters in ascending order; on CUDA, each lane sums some of the
///         filters, and the sums of the lanes are then added
template <class Act = Cubic>
struct PatchCnn {
  Index model_dim = 0, patches = 1, filters = 0, outputs = 1;
  bool bias = false;
  Initial initial = Initial::normal(0.3);

  static constexpr bool items_adjoint_is_optional = true;

  /// Returns the settings of the code of Chen et al. (uclaml/MoE): 16 filters with bias on four patches of 50 values,
  /// and two outputs, each the sum of eight filters. Initial values are 0.001 times the usual initial values of a
  /// convolution.
  static PatchCnn reference() { return reference({.model_dim = 50, .patches = 4, .filters = 16, .outputs = 2}); }
  /// Returns the bias and the initial values of the code of Chen et al. (uclaml/MoE), with the sizes in `options`.
  static PatchCnn reference(PatchCnn options) {
    options.bias = true, options.initial = {.scale = 0.001};
    return options;
  }

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true, only_multiplied = true;
    Tensor<T, 3, B> weight;  // [E, d, J]
    Tensor<T, 2, B> bias;    // [E, J], [E, 0] without bias
    GATEFOLD_PACK(weight, bias)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> pre;  // [S · P, J]
  };

  Index in_dim() const { return patches * model_dim; }
  Index out_dim() const { return outputs; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect_patch_options("PatchCnn.init", model_dim, patches, filters, outputs);
    return {initial_weights<T>(ctx, initial, seed.fork(0), experts, model_dim, filters),
            initial_biases<T>(ctx, initial, seed.fork(1), model_dim, experts, bias ? filters : 0)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_patch_options("PatchCnn", model_dim, patches, filters, outputs);
    expect_shape("PatchCnn", "params.weight", p.weight, {experts, model_dim, filters});
    expect_shape("PatchCnn", "params.bias", p.bias, {experts, bias ? filters : 0});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    patches_forward<Act>(ctx, Positions<B>{groups, patches, false}, x, p.weight, p.bias, z, saved.pre);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    expect_shape("PatchCnn.backward", "saved.pre", saved.pre, {groups.slots * patches, filters});
    patches_backward<Act>(ctx, Positions<B>{groups, patches, false}, x, p.weight, saved.pre, dz, dslots, grads.weight,
                          grads.bias);
  }
};

}  // namespace gatefold
