#pragma once

#include <cmath>

#include "gatefold/attention/attend.hpp"
#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/attention/heads.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/routing/sequence.hpp"

namespace gatefold {

/// Multi-head self-attention. It is a branch: it maps items x [N, D] to u [N, D].
///
///     A_h = softmax(Q_h K_hᵀ / √(D/H)) over the allowed keys,   u = concat_h(A_h V_h) O                  (1)
///
/// H is the number of heads. Padding and items do not attend to each other: u of padding is 0 for any values of the
/// padding, and padding has no gradient. If a query has no allowed key, its context A V is also 0.
///
/// Source: Vaswani et al. 2017, arXiv:1706.03762, eq. (1); Q = x W_q, K = x W_k and V = x W_v have no bias, as in the
/// papers' code.
/// @param x      [N, D] in items, N = sequences · length;  u [N, D] out
/// @param extra  a Sequence: the number of items per sequence (0: all items are one sequence) and the mask of padding
/// @param saved  Q, K, V, context [N, D], and the log-sum-exp and entropy of each item and head; never the L × L matrix
/// @param dextra  the gradient of the attention trace, which a Block sets; its views are empty outside a Block
/// @throws ArgumentError unless heads divides model_dim and length divides N
/// @cost   8·N·D² + 4·N·L·D flop (with a causal mask, half of the second term if L is much larger than a block of 128
///         items); keeps 4·N·D + 2·N·heads values
/// @order  see attention/attend.hpp: with a causal mask, no bit of the output of an item depends on later items. In
///         forward, an item that holds NaN affects only items that attend to it. Padding affects no item, in forward
///         and in backward
struct Attention {
  Index model_dim = 0, heads = 1;
  bool causal = true;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> query, key, value, output;  // [D, D]
    GATEFOLD_PACK(query, key, value, output)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> q, k, v, context;  // [N, D]
    Tensor<T, 2, B> log_sum_exp;       // [N, heads]
    Tensor<T, 2, B> entropy;           // [N, heads] entropy of each row of attention weights, for gates that read it
    Index length = 0;
    View<const T, 1, B> valid{};  // the caller's padding mask; a gate that reads the attention needs it
  };
  template <class T, class B>
  using Extra = Sequence<T, B>;
  /// The gradient of the attention trace (the tensors of an attention that a gate can read). Its views are empty
  /// outside a Block.
  template <class T, class B>
  using ExtraGrad = AttentionTrace<T, B>;

  GATEFOLD_BRANCH_CALLS;
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  Attention with_model_dim(Index width) const { return fill_model_dim(*this, "Attention", width); }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_options();
    const double bound = 1 / std::sqrt(static_cast<double>(model_dim));
    return {uniform_tensor<T>(ctx, seed.fork(0), bound, model_dim, model_dim),
            uniform_tensor<T>(ctx, seed.fork(1), bound, model_dim, model_dim),
            uniform_tensor<T>(ctx, seed.fork(2), bound, model_dim, model_dim),
            uniform_tensor<T>(ctx, seed.fork(3), bound, model_dim, model_dim)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Sequence<T, B>& extra) const {
    expect_options();
    detail_::attending::expect_projections("Attention", p, {model_dim, model_dim});
    extra.validate("Attention.forward", items);
  }

  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Saved<T, B>& saved,
               const Sequence<T, B>& extra = {}, const Step& step = {}) const {
    const auto here = ctx.here();
    expect_shape("Attention.forward", "x", x, {any_extent, model_dim});
    expect_shape("Attention.forward", "u", u, {x.extent(0), model_dim});
    expect_apart("Attention.forward", "u", u, "x", x);
    validate(p, x.extent(0), extra);
    for (auto* t : {&saved.q, &saved.k, &saved.v, &saved.context}) t->resize(x.extent(0), model_dim);
    for (auto* t : {&saved.log_sum_exp, &saved.entropy}) t->resize(x.extent(0), heads);
    saved.length = extra.of(x.extent(0));
    saved.valid = extra.valid;
    auto mark = ctx.mark();
    const View<const T, 2, B> now = without_padding<T, B>(ctx, x, extra.valid);
    detail_::attending::project(ctx, now, p.query, saved.q);
    detail_::attending::project(ctx, now, p.key, saved.k);
    detail_::attending::project(ctx, now, p.value, saved.v);
    detail_::attending::forward(ctx, form(saved, extra.valid), saved.q, saved.k, saved.v, saved.context,
                                saved.log_sum_exp, saved.entropy);
    detail_::attending::project(ctx, saved.context, p.output, u);
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved,
                In<T, 2, B> du, Out<T, 2, B> dx, Params<T, B>& grads, const Sequence<T, B>& extra,
                AttentionTrace<T, B>& dtrace) const {
    const auto here = ctx.here();
    expect_backward("Attention.backward", *this, p, x, du, dx, grads, extra);
    detail_::attending::expect_saved("Attention.backward", saved, x.extent(0), x.extent(0), model_dim, heads);
    expect(saved.length == extra.of(x.extent(0)), "Attention.backward", "saved.length",
           Joined{extra.of(x.extent(0)), " (the sequence length of extra; pass the extra of forward)"}, saved.length);
    auto mark = ctx.mark();
    const View<const T, 2, B> now = without_padding<T, B>(ctx, x, extra.valid),
                              dnow = without_padding<T, B>(ctx, du, extra.valid);
    auto dcontext = ctx.template scratch<T>(x.extent(0), model_dim);
    B::gemm(ctx, dnow, false, p.output.view(), true, false, dcontext, functor::Store{});
    if (!grads.output.is_skipped()) {
      B::gemm(ctx, saved.context.view(), true, dnow, false, true, grads.output.view(), functor::Store{});
      if (dtrace.output.data()) add(ctx, dtrace.output, grads.output.view());
    }

    auto from_trace = [&](View<T, 2, B> given) {
      auto d = ctx.template scratch<T>(x.extent(0), model_dim);
      given.data() ? copy(ctx, given, d) : fill(ctx, d, 0);
      return d;
    };
    auto dq = from_trace(dtrace.q), dk = from_trace(dtrace.k), dv = from_trace(dtrace.v);
    detail_::attending::backward(ctx, form(saved, extra.valid), saved.q, saved.k, saved.v, saved.context,
                                 saved.log_sum_exp, dcontext, dtrace.log_sum_exp, dq, dk, dv);
    detail_::attending::project_backward(ctx, now, p.query, dq, dx, grads.query);
    detail_::attending::project_backward(ctx, now, p.key, dk, dx, grads.key);
    detail_::attending::project_backward(ctx, now, p.value, dv, dx, grads.value);
  }

  /// Returns the attention trace: the queries, keys, values and other tensors from which a gate can recompute the
  /// attention weights. Its views point into params and saved.
  template <class T, class B>
  AttentionTrace<const T, B> trace(const Params<T, B>& p, const Saved<T, B>& saved) const {
    return {.q = saved.q,
            .k = saved.k,
            .v = saved.v,
            .log_sum_exp = saved.log_sum_exp,
            .output = p.output,
            .length = saved.length,
            .scale = scale(),
            .causal = causal,
            .valid = saved.valid,
            .entropy = saved.entropy};
  }

 private:
  double scale() const { return 1 / std::sqrt(static_cast<double>(model_dim / heads)); }
  void expect_options() const { detail_::attending::expect_heads("Attention", model_dim, heads); }
  template <class T, class B>
  detail_::attending::Form<T, B> form(const Saved<T, B>& saved, View<const T, 1, B> valid) const {
    return {.length = saved.length, .heads = heads, .scale = scale(), .causal = causal, .valid = valid};
  }
};

}  // namespace gatefold
