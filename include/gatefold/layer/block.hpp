#pragma once

#include <type_traits>

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/update/pass.hpp"

namespace gatefold {

/// Runs an attention layer, and then a second layer whose gate can read the attention of the first:
///
///     Block{Residual{Plain{}, PreNorm{LayerNorm{}, Attention{…}}}, Residual{rule, Mixture{AttentionAware<…>{…}, …}}}
///
///     h = attention(x),   y, carry ← layer(h, carry; trace of the attention)                            (1)
///
/// The trace is the set of tensors from which a gate recomputes the attention weights. In forward, the gate gets the
/// trace. In backward, the attention gets the gradient of the trace. The carry is the state of the second layer's
/// update rule, for example momentum. The attention has no carry, because attention never has momentum (paper 001,
/// appendix).
/// @param x [N, D] in, y [N, out_dim] out
/// @param extra  `.attention`: the extra inputs of the attention; Block sets the flag `traced` in these inputs if they
///         have this flag. `.layer`: the extra inputs of the layer, without the trace
/// @throws ArgumentError if out_dim of the attention differs from in_dim of the layer, or a shape or an option is
///         invalid
/// @cost   the costs of the attention and the layer; forward keeps the output of the attention
template <class AttentionT, class LayerT>
struct Block {
  AttentionT attention;
  LayerT layer;

  template <class T, class B>
  using First = AsLayer<AttentionT, T, B>;
  template <class T, class B>
  using Second = AsLayer<LayerT, T, B>;

  GATEFOLD_TWO_PARTS(attention, First, layer, Second, between)
  template <class T, class B>
  using Carry = gatefold::Carry<Second<T, B>, T, B>;
  template <class T, class B>
  struct Extra {
    gatefold::Extra<First<T, B>, T, B> attention{};
    WithoutTrace<gatefold::Extra<Second<T, B>, T, B>> layer{};
  };
  template <class T, class B>
  struct ExtraGrad {
    // Gradients of the attention's extra inputs. Block ignores a gradient of the attention trace that the caller sets
    // here, and computes this gradient itself.
    gatefold::ExtraGrad<First<T, B>, T, B> attention{};
  };

  Index in_dim() const { return attention.in_dim(); }
  Index out_dim() const { return layer.out_dim(); }

  GATEFOLD_INIT_OF(Block, as_layer<T, B>(attention), as_layer<T, B>(layer))
  template <class T, class B>
  void begin(typename B::Context& ctx, const Params<T, B>& p, Index items, NonDeduced<Carry<T, B>>& carry) const {
    as_layer<T, B>(layer).begin(ctx, p.layer, items, carry);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Carry<T, B>>& carry,
                const Extra<T, B>& extra) const {
    expect_options();
    gatefold::validate(as_layer<T, B>(attention), p.attention, items, Nothing<T, B>{}, extra.attention);
    // The trace exists only after the attention has run. Until then it is empty, and the gate that reads the trace
    // checks it in forward.
    const auto of_layer = with_trace<gatefold::Extra<Second<T, B>, T, B>>(extra.layer, AttentionTrace<const T, B>{});
    gatefold::validate(as_layer<T, B>(layer), p.layer, items, carry, of_layer);
  }

  GATEFOLD_LAYER_PASSES(Block)

 private:
  GATEFOLD_RUN_LAYER {
    auto mark = ctx.mark();
    auto between = keep_or_scratch<T, B>(ctx, keep, &Saved<T, B>::between, x.extent(0), attention.out_dim());
    const auto run_with = [&](gatefold::Saved<First<T, B>, T, B>& saved) {
      Nothing<T, B> none;
      run_layer<T, B>(as_layer<T, B>(attention), ctx, p.attention, x, none, between, &saved, traced(extra));
      update::follow_pass(carry, x.data(), between.data());
      run_layer<T, B>(as_layer<T, B>(layer), ctx, p.layer, between, carry, y, part_of(keep, &Saved<T, B>::layer),
                      joined(p, saved, extra));
    };
    if constexpr (std::is_null_pointer_v<Keep>) {
      // Inference also saves the values of the attention, because the second layer can read its trace.
      run_with(*ctx.template acquire<gatefold::Saved<First<T, B>, T, B>>());
    } else {
      run_with(keep->attention);
    }
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    expect_shape("Block.backward", "saved.between", saved.between, {x.extent(0), attention.out_dim()});
    auto mark = ctx.mark();
    auto dbetween = ctx.template scratch<T>(x.extent(0), attention.out_dim());
    fill(ctx, dbetween, 0);
    AttentionTrace<T, B> dtrace = zero_trace(ctx, as_layer<T, B>(attention).trace(p.attention, saved.attention));
    gatefold::ExtraGrad<Second<T, B>, T, B> dlayer{};
    set_trace(dlayer, dtrace);
    run_layer_backward<T, B>(as_layer<T, B>(layer), ctx, p.layer, saved.between, saved.layer, dy, dcarry, dbetween,
                             grads.layer, joined(p, saved.attention, extra), dlayer);
    auto dattention = dextra.attention;
    if constexpr (requires { dattention = dtrace; })
      dattention = dtrace;
    else
      dattention.trace = dtrace;
    Nothing<T, B> none;
    run_layer_backward<T, B>(as_layer<T, B>(attention), ctx, p.attention, x, saved.attention, dbetween, none, dx,
                             grads.attention, traced(extra), dattention);
  }
  void expect_options() const {
    expect(attention.out_dim() == layer.in_dim(), "Block", "layer.in_dim",
           Joined{attention.out_dim(), " (the out_dim of attention)"}, layer.in_dim());
  }
  /// Returns a copy of the extra inputs of the attention in which the flag `traced`, if it exists, is set. The
  /// attention then saves its trace, the values that a gate can read.
  template <class T, class B>
  static auto traced(const Extra<T, B>& extra) {
    auto of_attention = extra.attention;
    detail_::lookup::for_each_extra(of_attention, []<class P>(P& part) {
      if constexpr (detail_::hook::input::traced<P, bool>()) part.traced = true;
    });
    return of_attention;
  }
  template <class T, class B>
  auto joined(const Params<T, B>& p, const gatefold::Saved<First<T, B>, T, B>& saved, const Extra<T, B>& extra) const {
    return with_trace<gatefold::Extra<Second<T, B>, T, B>>(extra.layer,
                                                           as_layer<T, B>(attention).trace(p.attention, saved));
  }
  template <class T, class B>
  static AttentionTrace<T, B> zero_trace(auto& ctx, const AttentionTrace<const T, B>& like) {
    auto zeros = [&](View<const T, 2, B> v) {
      auto d = ctx.template scratch<T>(v.extent(0), v.extent(1));
      fill(ctx, d, 0);
      return d;
    };
    AttentionTrace<T, B> d{zeros(like.q), zeros(like.k), zeros(like.v), zeros(like.log_sum_exp), zeros(like.output)};
    if (like.places.data()) d.places = zeros(like.places);
    return d;
  }
};
template <class A, class L>
Block(A, L) -> Block<A, L>;

}  // namespace gatefold
