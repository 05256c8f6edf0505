#pragma once

#include <array>
#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/expert/output_adjoint.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class Act, class T, class B, class KeptT = T), BiasActivate);
GATEFOLD_FUNCTORS((class Act, class T, class B), ActivateBackward);

/// A two-layer perceptron (feed-forward network) per expert. Slot s is one row of work: expert e computes z[s] from the
/// item x[row(s)], with weights U_e, V_e and biases a_e, b_e.
///
///     h[s] = act(x[row(s)] U_e + a_e),   z[s] = h[s] V_e + b_e                                           (1)
///
/// Source: Shazeer et al. 2017, arXiv:1701.06538, sec. 3.2, for any activation.
/// @param x [N, D] in items, z [S, D] out
/// @param factor  [S, H] in, factors by which h is multiplied, for example dropout factors (HiddenDropout). Pass the
///         same factors to forward and backward. If the view is empty, h is not multiplied
/// @param saved  the values before the activation [S, H]
/// @param initial  initial values of weights and biases
/// @throws ArgumentError unless model_dim and hidden_dim are at least 1
/// @cost   4·S·D·H flop
template <class Act>
struct Mlp {
  GATEFOLD_REQUIRE(std::is_class_v<Act>,
                   "gatefold: Mlp<Activation> takes an activation, for example Mlp<Gelu>; the parameters determine the "
                   "element type; see docs/how-to/extending.md#expert");
  static constexpr bool stores_slots = true;
  Index model_dim = 0, hidden_dim = 0;
  bool bias = true;
  Initial initial{};
  [[no_unique_address]] detail_::policy::Misuse<
      "gatefold: an Mlp maps items of model_dim to items of model_dim; for another output width put a Linear behind "
      "it: Chain{mlp, Linear{.model_dim = 8, .output_dim = 4}}; see docs/how-to/extending.md#expert">
      output_dim{};

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true, only_multiplied = true;
    Tensor<T, 3, B> up;         // [E, D, H]
    Tensor<T, 2, B> up_bias;    // [E, H], [E, 0] without bias
    Tensor<T, 3, B> down;       // [E, H, D]
    Tensor<T, 2, B> down_bias;  // [E, D], [E, 0] without bias
    GATEFOLD_PACK(up, up_bias, down, down_bias)
  };
  template <class T, class B>
  struct Saved {
    Tensor<Stored<T, B>, 2, B> pre;  // [S, H]
  };

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect_sizes("Mlp.init", {{"model_dim", model_dim}, {"hidden_dim", hidden_dim}});
    return {initial_weights<T>(ctx, initial, seed.fork(0), experts, model_dim, hidden_dim),
            initial_biases<T>(ctx, initial, seed.fork(1), model_dim, experts, bias ? hidden_dim : 0),
            initial_weights<T>(ctx, initial, seed.fork(2), experts, hidden_dim, model_dim),
            initial_biases<T>(ctx, initial, seed.fork(3), hidden_dim, experts, bias ? model_dim : 0)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_shape("Mlp", "params.up", p.up, {experts, model_dim, hidden_dim});
    expect_shape("Mlp", "params.up_bias", p.up_bias, {experts, bias ? hidden_dim : 0});
    expect_shape("Mlp", "params.down", p.down, {experts, hidden_dim, model_dim});
    expect_shape("Mlp", "params.down_bias", p.down_bias, {experts, bias ? model_dim : 0});
  }

  template <class T, class B, class Z = T>
  [[gnu::noinline]] void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                                 Out<Z, 2, B> z, Saved<T, B>& saved, In<T, 2, B> factor = {}) const {
    saved.pre.resize(groups.slots, hidden_dim);
    both_products<T, B, Z>(ctx, p, groups, x, z, saved.pre, factor);
  }
  template <class T, class B, class Z = T>
  [[gnu::noinline]] void infer(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                               Out<Z, 2, B> z, In<T, 2, B> factor = {}) const {
    both_products<T, B, Z>(ctx, p, groups, x, z, {}, factor);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads,
                In<T, 2, B> factor = {}) const {
    both_backward<T, B, T>(ctx, p, groups, x, saved, {dz, groups.in_slot_order()}, dslots, grads, factor);
  }
  template <class T, class B, class Z = T>
  [[gnu::noinline]] void weighted_backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups,
                                           In<T, 2, B> x, const Saved<T, B>& saved, In<T, 2, B> du,
                                           const SlotWeights<T, B>& weights, Out<Z, 2, B> dslots, Params<T, B>& grads,
                                           In<T, 2, B> factor = {}) const {
    auto mark = ctx.mark();
    auto weight = ctx.template scratch<T>(bias ? groups.slots : 0);
    both_backward<T, B, Z>(ctx, p, groups, x, saved, {du, groups, weights, p.down_bias, weight}, dslots, grads, factor);
  }

 private:
  template <class T, class B, class Z>
  void both_products(auto& ctx, const Params<T, B>& p, const Groups<B>& groups, In<T, 2, B> x, Out<Z, 2, B> z,
                     Out<Stored<T, B>, 2, B> pre, In<T, 2, B> factor) const {
    const functor::BiasActivate<Act, T, B, Stored<T, B>> middle{p.up_bias, pre, factor};
    if (bias) {
      B::grouped_pair(ctx, groups, x, std::array{p.up.view()}, middle, p.down.view(), z,
                      functor::AddBias<T, B>{p.down_bias});
    } else {
      B::grouped_pair(ctx, groups, x, std::array{p.up.view()}, middle, p.down.view(), z, functor::Store{});
    }
  }
  template <class T, class B, class Z>
  void both_backward(auto& ctx, const Params<T, B>& p, const Groups<B>& groups, In<T, 2, B> x, const Saved<T, B>& saved,
                     const OutputAdjoint<T, B>& outputs, Out<Z, 2, B> dslots, Params<T, B>& grads,
                     In<T, 2, B> factor) const {
    expect_shape("Mlp.backward", "saved.pre", saved.pre, {groups.slots, hidden_dim});
    auto mark = ctx.mark();
    const Groups<B> slots = groups.in_slot_order();
    using Factor = Multiplied<T, B>;
    auto hidden = ctx.template scratch<Factor>(groups.slots, hidden_dim);
    const auto r = memory_of_r<T, B>(ctx, groups.slots, hidden_dim);
    const auto dpre = made_of<T, B>(ctx, r, groups.slots);
    // [S, H] Unrounded dpre. The gradient of up_bias is a sum of unrounded values, but dpre is rounded if B multiplies
    // in a narrower type (for example bfloat16).
    View<T, 2, B> as_it_is{};
    if constexpr (!std::is_same_v<T, Factor>)
      if (bias) as_it_is = ctx.template scratch<T>(groups.slots, hidden_dim);
    {
      const auto adjoints = rounded_once(ctx, outputs.groups, outputs.du, dslots);
      hidden_adjoint(ctx, outputs, p.down.view(), r,
                     functor::ActivateBackward<Act, T, B>{saved.pre, factor, hidden, dpre, as_it_is});
      add_weight_gradient<B>(ctx, slots, View<const Factor, 2, B>(hidden), outputs.du, grads.down, outputs.groups.rows);
    }
    if (!grads.up.is_skipped()) {
      const auto items = rounded_once(ctx, groups, x, dslots);
      add_weight_gradient<B>(ctx, groups, x, View<const Factor, 2, B>(dpre), grads.up);
    }
    B::grouped_gemm(ctx, slots, View<const Factor, 2, B>(dpre), p.up.view(), as_transposed, dslots, functor::Store{});
    if (bias) {
      if (!grads.down_bias.is_skipped()) outputs.add_bias_gradient(ctx, grads.down_bias.view());
      if (!grads.up_bias.is_skipped())
        B::grouped_sum(ctx, slots, View<const T, 2, B>(r.empty() ? as_it_is : r), grads.up_bias.view());
    }
  }
};

namespace functor {

/// Adds the bias to v, an element of a matrix product, and applies the activation: pre = v + bias, result = ξ act(pre).
/// ξ is a factor, for example of dropout. Stores pre for backward, as type KeptT, if the view `pre` is not empty.
template <class Act, class T, class B, class KeptT>
struct BiasActivate {
  static constexpr bool scalar_only = is_scalar_only<Act>;
  View<const T, 2, B> bias;      // [E, H] or [E, 0]
  View<KeptT, 2, B> pre;         // [S, H]; empty: not stored
  View<const T, 2, B> factor{};  // [S, H] ξ; empty: ξ = 1

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    if (bias.extent(1) > 0) v = v + at.load(&bias(e, j));
    if (pre.data()) at.store(&pre(s, j), v);
    return factor.data() ? Act::value(v) * at.load(&factor(s, j)) : Act::value(v);
  }
};
/// Backward pass of a hidden value h = ξ act(pre) of an Mlp: hidden = w h, dpre = w r ξ act'(pre). w is the weight of
/// the slot, and w r the gradient of h (output_adjoint.hpp). ξ is a factor, for example of dropout.
template <class Act, class T, class B>
struct ActivateBackward {
  static_assert(detail_::policy::check_slope<Act>());
  static constexpr bool scalar_only = is_scalar_only<Act>;
  View<const Stored<T, B>, 2, B> pre;  // [S, H]
  View<const T, 2, B> factor;          // [S, H] ξ; empty: ξ = 1
  // The outputs of this functor, [S, H] each (S slots, H hidden values). `dpre` may be the memory from which the caller
  // loads the argument r.
  View<Multiplied<T, B>, 2, B> hidden, dpre;
  View<T, 2, B> as_it_is;  // [S, H] unrounded dpre; empty: not stored

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, T w, const typename A::Value& r, Index i) const {
    const auto before = at.load(pre.data() + i);
    auto h = Act::value(before), slope = Act::slope(before);
    if (factor.data()) {
      const auto f = at.load(factor.data() + i);
      h = h * f;
      slope = slope * f;
    }
    at.store(hidden.data() + i, w * h);
    const auto d = w * r * slope;
    at.store(dpre.data() + i, d);
    if (!as_it_is.empty()) at.store(as_it_is.data() + i, d);
    return r * h;
  }
};

}  // namespace functor

}  // namespace gatefold
