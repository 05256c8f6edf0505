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

GATEFOLD_FUNCTORS((class Act, class Up, class T, class B), GateUp, GateUpBackward);

/// A gated linear unit per expert; with the activation Silu it is SwiGLU. Slot s is one row of work: expert e, to which
/// the slot belongs, computes z[s] from the item x[row(s)]. G_e, U_e and V_e are the weights of the expert, a_e, b_e
/// and c_e its biases.
///
///     h[s] = act(x[row(s)] G_e + a_e) ⊙ up(x[row(s)] U_e + b_e),   z[s] = h[s] V_e + c_e                 (1)
///
/// `Up` is the activation `up` of the second factor; most models use none (Identity). The experts of gpt-oss are
/// GatedMlp<ClampedSilu, ClampedPlusOne> with biases.
/// Source: Shazeer 2020, arXiv:2002.05202, eq. (6). Biases and `up` as in GptOssExperts of transformers'
/// modeling_gpt_oss.py.
/// @param x [N, D] in items, z [S, D] out
/// @param factor  [S, H] in, factors by which h is multiplied, for example dropout factors (HiddenDropout). Pass the
///         same factors to forward and backward. If the view is empty, h is not multiplied
/// @param saved  the values before the activations, x G_e + a_e and x U_e + b_e, [S, H] each
/// @param initial  initial values of weights and biases
/// @param bias  if true, the experts have biases
/// @throws ArgumentError unless model_dim and hidden_dim are at least 1
/// @cost   6·S·D·H flop
template <class Act, class Up = Identity>
struct GatedMlp {
  GATEFOLD_REQUIRE(std::is_class_v<Act>&& std::is_class_v<Up>,
                   "gatefold: GatedMlp<Activation> takes an activation, for example GatedMlp<Gelu>; the parameters "
                   "determine the element type; see docs/how-to/extending.md#expert");
  static constexpr bool stores_slots = true;
  Index model_dim = 0, hidden_dim = 0;
  Initial initial{};
  bool bias = false;
  [[no_unique_address]] detail_::policy::Misuse<
      "gatefold: a GatedMlp maps items of model_dim to items of model_dim; for another output width put a Linear "
      "behind it: Chain{mlp, Linear{.model_dim = 8, .output_dim = 4}}; see docs/how-to/extending.md#expert">
      output_dim{};

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true, only_multiplied = true;
    Tensor<T, 3, B> gate, up;            // [E, D, H]
    Tensor<T, 3, B> down;                // [E, H, D]
    Tensor<T, 2, B> gate_bias, up_bias;  // [E, H], [E, 0] without bias
    Tensor<T, 2, B> down_bias;           // [E, D], [E, 0] without bias
    GATEFOLD_PACK(gate, up, down, gate_bias, up_bias, down_bias)
  };
  template <class T, class B>
  struct Saved {
    Tensor<Stored<T, B>, 2, B> gate, up;  // [S, H]
  };

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect_sizes("GatedMlp.init", {{"model_dim", model_dim}, {"hidden_dim", hidden_dim}});
    return {initial_weights<T>(ctx, initial, seed.fork(0), experts, model_dim, hidden_dim),
            initial_weights<T>(ctx, initial, seed.fork(1), experts, model_dim, hidden_dim),
            initial_weights<T>(ctx, initial, seed.fork(2), experts, hidden_dim, model_dim),
            initial_biases<T>(ctx, initial, seed.fork(3), model_dim, experts, bias ? hidden_dim : 0),
            initial_biases<T>(ctx, initial, seed.fork(4), model_dim, experts, bias ? hidden_dim : 0),
            initial_biases<T>(ctx, initial, seed.fork(5), hidden_dim, experts, bias ? model_dim : 0)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_shape("GatedMlp", "params.gate", p.gate, {experts, model_dim, hidden_dim});
    expect_shape("GatedMlp", "params.up", p.up, {experts, model_dim, hidden_dim});
    expect_shape("GatedMlp", "params.down", p.down, {experts, hidden_dim, model_dim});
    expect_shape("GatedMlp", "params.gate_bias", p.gate_bias, {experts, bias ? hidden_dim : 0});
    expect_shape("GatedMlp", "params.up_bias", p.up_bias, {experts, bias ? hidden_dim : 0});
    expect_shape("GatedMlp", "params.down_bias", p.down_bias, {experts, bias ? model_dim : 0});
  }

  template <class T, class B, class Z = T>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<Z, 2, B> z,
               Saved<T, B>& saved, In<T, 2, B> factor = {}) const {
    for (auto* t : {&saved.gate, &saved.up}) t->resize(groups.slots, hidden_dim);
    all_products<T, B, Z>(ctx, p, groups, x, z, {p.gate_bias, p.up_bias, saved.gate, saved.up, factor});
  }
  template <class T, class B, class Z = T>
  void infer(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<Z, 2, B> z,
             In<T, 2, B> factor = {}) const {
    all_products<T, B, Z>(ctx, p, groups, x, z, {p.gate_bias, p.up_bias, {}, {}, factor});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads,
                In<T, 2, B> factor = {}) const {
    all_backward<T, B, T>(ctx, p, groups, x, saved, {dz, groups.in_slot_order()}, dslots, grads, factor);
  }
  template <class T, class B, class Z = T>
  void weighted_backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                         const Saved<T, B>& saved, In<T, 2, B> du, const SlotWeights<T, B>& weights,
                         Out<Z, 2, B> dslots, Params<T, B>& grads, In<T, 2, B> factor = {}) const {
    auto mark = ctx.mark();
    auto weight = ctx.template scratch<T>(bias ? groups.slots : 0);
    all_backward<T, B, Z>(ctx, p, groups, x, saved, {du, groups, weights, p.down_bias, weight}, dslots, grads, factor);
  }

 private:
  template <class T, class B, class Z>
  void all_products(auto& ctx, const Params<T, B>& p, const Groups<B>& groups, In<T, 2, B> x, Out<Z, 2, B> z,
                    const functor::GateUp<Act, Up, T, B>& middle) const {
    const std::array first{p.gate.view(), p.up.view()};
    if (bias) {
      B::grouped_pair(ctx, groups, x, first, middle, p.down.view(), z, functor::AddBias<T, B>{p.down_bias});
    } else {
      B::grouped_pair(ctx, groups, x, first, middle, p.down.view(), z, functor::Store{});
    }
  }
  template <class T, class B, class Z>
  void all_backward(auto& ctx, const Params<T, B>& p, const Groups<B>& groups, In<T, 2, B> x, const Saved<T, B>& saved,
                    const OutputAdjoint<T, B>& outputs, Out<Z, 2, B> dslots, Params<T, B>& grads,
                    In<T, 2, B> factor) const {
    expect_shape("GatedMlp.backward", "saved.gate", saved.gate, {groups.slots, hidden_dim});
    expect_shape("GatedMlp.backward", "saved.up", saved.up, {groups.slots, hidden_dim});
    auto mark = ctx.mark();
    const Groups<B> slots = groups.in_slot_order();
    using Factor = Multiplied<T, B>;
    auto hidden = ctx.template scratch<Factor>(groups.slots, hidden_dim);
    auto dgate_out = ctx.template scratch<Factor>(groups.slots, hidden_dim);
    const auto r = memory_of_r<T, B>(ctx, groups.slots, hidden_dim);
    const auto dup_out = made_of<T, B>(ctx, r, groups.slots);
    // Unrounded gradients dgate and dup of the values before the activations. The gradients of gate_bias and up_bias
    // are sums of these unrounded gradients. If B multiplies in a narrower type (for example bfloat16), dgate_out and
    // dup_out are rounded and cannot replace these views.
    View<T, 2, B> exact_dgate{}, exact_dup{};
    if constexpr (!std::is_same_v<T, Factor>)
      if (bias)
        for (auto* exact : {&exact_dgate, &exact_dup}) *exact = ctx.template scratch<T>(groups.slots, hidden_dim);
    {
      const auto adjoints = rounded_once(ctx, outputs.groups, outputs.du, dslots);
      hidden_adjoint(ctx, outputs, p.down.view(), r,
                     functor::GateUpBackward<Act, Up, T, B>{saved.gate, saved.up, factor, hidden, dgate_out, dup_out,
                                                            exact_dgate, exact_dup});
      add_weight_gradient<B>(ctx, slots, View<const Factor, 2, B>(hidden), outputs.du, grads.down, outputs.groups.rows);
    }
    const View<const Factor, 2, B> dgate = dgate_out, dup = dup_out;
    if (!grads.gate.is_skipped() || !grads.up.is_skipped()) {
      const auto items = rounded_once(ctx, groups, x, dslots);
      add_weight_gradient<B>(ctx, groups, x, dgate, grads.gate);
      add_weight_gradient<B>(ctx, groups, x, dup, grads.up);
    }
    sum_of_two_products(ctx, slots, dgate, p.gate.view(), dup, p.up.view(), dslots);
    if (bias) {
      if constexpr (std::is_same_v<T, Factor>) exact_dgate = dgate_out, exact_dup = dup_out;
      if (!grads.down_bias.is_skipped()) outputs.add_bias_gradient(ctx, grads.down_bias.view());
      if (!grads.gate_bias.is_skipped())
        B::grouped_sum(ctx, slots, View<const T, 2, B>(exact_dgate), grads.gate_bias.view());
      if (!grads.up_bias.is_skipped()) B::grouped_sum(ctx, slots, View<const T, 2, B>(exact_dup), grads.up_bias.view());
    }
  }
};

namespace functor {

/// Computes a hidden value ξ act(g) · up(u) of a gated linear unit from two products: g is the first product plus
/// gate_bias, u is the second plus up_bias. ξ is a factor, for example of dropout. Stores g and u for backward if
/// `gate` and `up` are not empty.
template <class Act, class Up, class T, class B>
struct GateUp {
  static constexpr bool scalar_only = is_scalar_only<Act> || is_scalar_only<Up>;
  View<const T, 2, B> gate_bias, up_bias;  // [E, H] or [E, 0]
  View<Stored<T, B>, 2, B> gate, up;       // [S, H]; empty: not stored
  View<const T, 2, B> factor;              // [S, H] ξ; empty: ξ = 1

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value g,
                                           typename A::Value u) const {
    if (gate_bias.extent(1) > 0) {
      g = g + at.load(&gate_bias(e, j));
      u = u + at.load(&up_bias(e, j));
    }
    if (gate.data()) {
      at.store(&gate(s, j), g);
      at.store(&up(s, j), u);
    }
    const auto h = Act::value(g) * Up::value(u);
    return factor.data() ? h * at.load(&factor(s, j)) : h;
  }
};
/// The backward pass of a hidden value h = ξ act(g) · up(u) of a gated linear unit. ξ is the factor of dropout. Forward
/// has stored g and u in `gate` and `up`. The gradient of h is w r, with w the weight of the slot and r = ⟨du, row j of
/// V_e⟩ for hidden value j. The product w h is written too, because the gradient of V_e needs it.
///
///     hidden = w h,   dgate = w r ξ · up(u) · act'(g),   dup = w r ξ · act(g) · up'(u)
template <class Act, class Up, class T, class B>
struct GateUpBackward {
  static_assert(detail_::policy::check_slope<Act>() && detail_::policy::check_slope<Up>());
  static constexpr bool scalar_only = is_scalar_only<Act> || is_scalar_only<Up>;
  View<const Stored<T, B>, 2, B> gate, up;  // [S, H]
  View<const T, 2, B> factor;               // [S, H] ξ; empty: ξ = 1
  // The outputs of this functor, [S, H] each (S slots, H hidden values). `dup` may be the memory from which the caller
  // loads the argument `given` (r).
  View<Multiplied<T, B>, 2, B> hidden, dgate, dup;
  View<T, 2, B> exact_dgate, exact_dup;  // [S, H] unrounded dgate and dup; empty: not stored

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, T w, const typename A::Value& given, Index i) const {
    const auto g = at.load(gate.data() + i), before = at.load(up.data() + i), u = Up::value(before),
               activated = Act::value(g), h = activated * u;
    const auto r = factor.data() ? given * at.load(factor.data() + i) : given, v = w * r;
    at.store(hidden.data() + i, factor.data() ? w * h * at.load(factor.data() + i) : w * h);
    const auto of_gate = v * u * Act::slope(g);
    auto of_up = v * activated;
    if constexpr (!std::is_same_v<Up, gatefold::Identity>) of_up = of_up * Up::slope(before);
    at.store(dgate.data() + i, of_gate);
    at.store(dup.data() + i, of_up);
    if (!exact_dgate.empty()) {
      at.store(exact_dgate.data() + i, of_gate);
      at.store(exact_dup.data() + i, of_up);
    }
    return r * h;
  }
};

}  // namespace functor

}  // namespace gatefold
