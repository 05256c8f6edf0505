#pragma once

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/expert/multi_head_expert.hpp"
#include "gatefold/expert/positions.hpp"

namespace gatefold {

/// A pre-norm transformer block with separate weights for each expert, for a mixture of transformers. Each item X is a
/// sequence. LN is LayerNorm, which like Mlp is applied to each position.
///
///     H = X + MultiHead(LN(X)),   Z = H + Mlp(LN(H)), position by position                               (1)
///
/// Source: paper 000, sec. 3; pre-norm as in Dosovitskiy et al. 2021, arXiv:2010.11929, eqs. (2), (3).
///
/// The expert already contains residual connections. Use it in a layer without one: NoResidual{Mixture{gate,
/// TransformerExpert<Gelu>{…}}}.
/// @param x [N, length · model_dim] in items, z [S, length · model_dim] out
/// @param bias  if true, the Mlp has a bias; attention never has a bias
/// @param saved  six arrays [S · L, model_dim], one [S · L, hidden_dim], one [S · L, heads] and two [S · L]; the
///               attention probabilities are not saved
/// @throws ArgumentError unless sizes are at least 1, heads divides model_dim and epsilon > 0
/// @cost   8·S·L·D² + 4·S·L²·D + 4·S·L·D·H flop, with D = model_dim and H = hidden_dim
template <class Act = Gelu>
struct TransformerExpert {
  Index model_dim = 0, hidden_dim = 0, heads = 1, length = 1;
  bool causal = false, bias = true;
  double epsilon = 1e-5;
  Initial initial{};

  template <class T, class B>
  struct Params {
    gatefold::Params<LayerNorm, T, B> attention_norm;
    gatefold::Params<MultiHeadExpert, T, B> attention;
    gatefold::Params<LayerNorm, T, B> mlp_norm;
    gatefold::Params<Mlp<Act>, T, B> mlp;
    GATEFOLD_PACK(attention_norm, attention, mlp_norm, mlp)
  };
  template <class T, class B>
  struct Saved {
    gatefold::Saved<LayerNorm, T, B> attention_norm;
    gatefold::Saved<MultiHeadExpert, T, B> attention;
    gatefold::Saved<LayerNorm, T, B> mlp_norm;
    gatefold::Saved<Mlp<Act>, T, B> mlp;
  };

  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return length * model_dim; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    return {norm().template init<T, B>(ctx, experts, seed.fork(0)),
            attention().template init<T, B>(ctx, experts, seed.fork(1)),
            norm().template init<T, B>(ctx, experts, seed.fork(2)),
            mlp().template init<T, B>(ctx, experts, seed.fork(3))};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    norm().validate(p.attention_norm, experts);
    attention().validate(p.attention, experts);
    norm().validate(p.mlp_norm, experts);
    mlp().validate(p.mlp, experts);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    auto normed = ctx.template scratch<T>(slots.slots, model_dim), h = ctx.template scratch<T>(slots.slots, model_dim);
    const View<const T, 2, B> rows = x.as(x.extent(0) * length, model_dim);
    const View<T, 2, B> y = z.as(slots.slots, model_dim);
    norm().forward(ctx, p.attention_norm, tokens, rows, normed, saved.attention_norm);
    attention().forward(ctx, p.attention, groups.in_slot_order(), items(normed), items(h), saved.attention);
    add_rows(ctx, tokens, rows, h);
    norm().forward(ctx, p.mlp_norm, slots, h, normed, saved.mlp_norm);
    mlp().forward(ctx, p.mlp, slots, normed, y, saved.mlp);
    add_rows(ctx, slots, h, y);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    auto mark = ctx.mark();
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    auto normed = ctx.template scratch<T>(slots.slots, model_dim),
         dnormed = ctx.template scratch<T>(slots.slots, model_dim),
         dh = ctx.template scratch<T>(slots.slots, model_dim);
    const View<const T, 2, B> rows = x.as(x.extent(0) * length, model_dim), dy = dz.as(slots.slots, model_dim);
    const View<T, 2, B> dx = dslots.as(slots.slots, model_dim);
    norm().recompute(ctx, p.mlp_norm, slots, saved.mlp_norm, normed);
    mlp().backward(ctx, p.mlp, slots, normed, saved.mlp, dy, dnormed, grads.mlp);
    norm().backward(ctx, p.mlp_norm, slots, normed, saved.mlp_norm, dnormed, dh, grads.mlp_norm);
    add_rows(ctx, slots, dy, dh);
    norm().recompute(ctx, p.attention_norm, slots, saved.attention_norm, normed);
    attention().backward(ctx, p.attention, groups.in_slot_order(), items(normed), saved.attention, items(dh),
                         items(dnormed), grads.attention);
    norm().backward(ctx, p.attention_norm, tokens, rows, saved.attention_norm, dnormed, dx, grads.attention_norm);
    add_rows(ctx, slots, dh, dx);
  }

 private:
  LayerNorm norm() const { return {model_dim, epsilon}; }
  MultiHeadExpert attention() const { return {model_dim, heads, length, causal, initial}; }
  Mlp<Act> mlp() const { return {model_dim, hidden_dim, bias, initial}; }
  auto items(const auto& tokens) const { return tokens.as(tokens.extent(0) / length, in_dim()); }
};

}  // namespace gatefold
