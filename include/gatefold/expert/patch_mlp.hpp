#pragma once

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/patches.hpp"

namespace gatefold {

/// An expert that applies separate filters w_{e,j,p} to every patch x^(p) of an item, then sums the activations over
/// filters and patches.
///
///     f_e(x) = Σ_j Σ_p act(⟨w_{e,j,p}, x^(p)⟩)                                                          (1)
///     w_{e,j,p} = w_{e,j,1} for all p at the start, with equal_patches                                  (2)
///
/// Source: paper 003, sec. 3 and eq. (2). With J filters and O outputs, output o sums the filters [o J/O, (o+1) J/O).
/// @param x [N, patches · model_dim] in items, z [S, outputs] out
/// @param bias  if true, a bias b_{e,j,p} is added to the argument of act
/// @param equal_patches  if false, all filters start with different values. This is the negative control of paper 003
///                       (Lemma 3)
/// @param initial  initial values of filters and biases, with fan-in model_dim. Theorem 1 of paper 003 needs σ₀ in
///                 [d^(−1/3), d^(−0.01)], which is [0.27, 0.96] for the d = 50 of the paper's experiments. The paper
///                 gives no value; the default 0.3 is near the lower end
/// @param saved  the values before the activation [S · patches, J]
/// @throws ArgumentError unless sizes are at least 1 and outputs divides filters
/// @cost   2·S·P·d·J flop, with P patches and d = model_dim
/// @order  an output is summed patch by patch, with filters in ascending order; on CUDA, each lane sums some of the
///         filters, and the sums of the lanes are then added
template <class Act = Cubic>
struct PatchMlp {
  Index model_dim = 0, patches = 1, filters = 0, outputs = 1;
  bool bias = false, equal_patches = true;
  Initial initial = Initial::normal(0.3);

  static constexpr bool items_adjoint_is_optional = true;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 4, B> weight;  // [E, P, d, J]
    Tensor<T, 3, B> bias;    // [E, P, J], [E, P, 0] without bias
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
    expect_patch_options("PatchMlp.init", model_dim, patches, filters, outputs);
    Params<T, B> p{initial_weights<T>(ctx, initial, seed.fork(0), experts, patches, model_dim, filters),
                   initial_biases<T>(ctx, initial, seed.fork(1), model_dim, experts, patches, bias ? filters : 0)};
    if (equal_patches) {
      repeat_first(ctx, patches, model_dim * filters, p.weight.view());
      repeat_first(ctx, patches, filters, p.bias.view());
    }
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_patch_options("PatchMlp", model_dim, patches, filters, outputs);
    expect_shape("PatchMlp", "params.weight", p.weight, {experts, patches, model_dim, filters});
    expect_shape("PatchMlp", "params.bias", p.bias, {experts, patches, bias ? filters : 0});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    patches_forward<Act>(ctx, Positions<B>{groups, patches, true}, x, weights(p), biases(p), z, saved.pre);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    expect_shape("PatchMlp.backward", "saved.pre", saved.pre, {groups.slots * patches, filters});
    patches_backward<Act>(ctx, Positions<B>{groups, patches, true}, x, weights(p), saved.pre, dz, dslots,
                          grads.weight.is_skipped() ? View<T, 3, B>{} : weights(grads),
                          grads.bias.is_skipped() ? View<T, 2, B>{} : biases(grads));
  }

 private:
  auto weights(auto& p) const { return p.weight.view().as(p.weight.extent(0) * patches, model_dim, filters); }
  auto biases(auto& p) const { return p.bias.view().as(p.bias.extent(0) * patches, bias ? filters : 0); }
};

}  // namespace gatefold
