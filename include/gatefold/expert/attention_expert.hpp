#pragma once

#include <utility>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/expert/positions.hpp"
#include "gatefold/expert/self_attention.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

namespace fn {

/// received[s,h] = Σ_l p[s·L + l, h],   pooled[s] = Σ_h received[s,h] x_h
template <class T, class B>
struct PoolPositions {
  Groups<B> items;
  View<const T, 2, B> p, x;          // [S · L, L], [S · L, d] in slot order
  View<T, 2, B> received, pooled;    // [S, L], [S, d]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s) const {
    const Index length = p.extent(1);
    if (items.expert(s) < 0) return;
    for (Index j = lanes.lane; j < pooled.extent(1); j += lanes.size) pooled(s, j) = 0;
    for (Index h = 0; h < length; ++h) {
      T sum = 0;
      for (Index l = lanes.lane; l < length; l += lanes.size) sum += p(s * length + l, h);
      sum = lanes.sum(sum);
      if (lanes.lane == 0) received(s, h) = sum;
      for (Index j = lanes.lane; j < pooled.extent(1); j += lanes.size) pooled(s, j) += sum * x(s * length + h, j);
    }
  }
};
/// dp[s,h] = ⟨dpooled[s], x_h⟩: the adjoint of p[s·L + l, h] for every l
template <class T, class B>
struct PoolPositionsBackward {
  Groups<B> items;
  View<const T, 2, B> dpooled, x;
  View<T, 2, B> dp;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index t) const {
    const Index s = t / dp.extent(1), h = t % dp.extent(1);
    if (items.expert(s) < 0) return;
    T dot = 0;
    for (Index j = lanes.lane; j < x.extent(1); j += lanes.size) dot += dpooled(s, j) * x(t, j);
    dot = lanes.sum(dot);
    if (lanes.lane == 0) dp(s, h) = dot;
  }
};
/// c[t] = v + addend[t] + received[t] dpooled[slot of t]
template <class T, class B>
struct AddPooled {
  View<const T, 2, B> addend, received, dpooled;

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index t, Index j, typename A::Value v) const {
    const Index s = t / received.extent(1);
    return v + at.load(&addend(t, j)) + at.load(&dpooled(s, j)) * received(s, t % received.extent(1));
  }
};

}  // namespace fn

/// One attention layer with merged matrices per expert, summed over the queries.
///
///     f_e(X) = Σ_l W_eᵀ X softmax(Xᵀ K_e X_l),   X = (X_1, …, X_L) ∈ R^{d×L}                             (1)
///
/// Source: paper 000, eq. (4); no 1/√d, as printed. K merges key and query, W value and output. With p_l the softmax, the
/// gradients are the paper's eqs. (13) and (14):
///
///     ∂f/∂W = X Σ_l p_l,   ∂f/∂K = Σ_l X (diag p_l − p_l p_lᵀ) Xᵀ W X_lᵀ                                 (2)
///
/// @param x [N, length · model_dim] in items, z [S, outputs] out
/// @param initial  how K and W begin; the paper takes N(0, scale²/d) with a scale σ₀ of order 1
/// @param saved  X K [S · L, d], the log-sum-exp of each query, the attention each position received [S, L] and their
///               sum of positions [S, d]; never the probabilities
/// @throws ArgumentError unless sizes are at least 1
/// @cost   2·S·L·d·(d + L) flop; scratch S·L·(L + d) forward, S·L·(L + 3d) backward
struct AttentionExpert {
  Index model_dim = 0, length = 1, outputs = 1;
  Initial initial{.law = Initial::Law::normal_fan_in};

  template <class T, class B>
  struct Params {
    Tensor<T, 3, B> key_query;  // [E, d, d]
    Tensor<T, 3, B> value;      // [E, d, outputs]
    template <class F, class... P>
    static void each(F&& f, P&... p) {
      f("key_query", p.key_query...);
      f("value", p.value...);
    }
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> key;               // [S · L, d]
    Tensor<T, 2, B> log_sum_exp;       // [S · L, 1]
    Tensor<T, 2, B> received, pooled;  // [S, L], [S, d]
  };

  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return outputs; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    validate_options("AttentionExpert.init");
    return {initial.weights<T>(ctx, seed.fork(0), experts, model_dim, model_dim),
            initial.weights<T>(ctx, seed.fork(1), experts, model_dim, outputs)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    validate_options("AttentionExpert");
    expect_shape("AttentionExpert", "params.key_query", p.key_query, {experts, model_dim, model_dim});
    expect_shape("AttentionExpert", "params.value", p.value, {experts, model_dim, outputs});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    const SelfAttention<T, B> attention{ctx, groups, length, 1, false};
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length});
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));
    saved.key.resize(tokens.slots, model_dim);
    saved.log_sum_exp.resize(tokens.slots, 1);
    saved.received.resize(groups.slots, length);
    saved.pooled.resize(groups.slots, model_dim);
    B::grouped_gemm(ctx, tokens.in_slot_order(), rows, p.key_query.view(), false, saved.key.view(), fn::Store{});
    auto probabilities = ctx.template scratch<T>(tokens.slots, length);
    attention.probabilities(ctx, rows, saved.key, probabilities, saved.log_sum_exp, 0);
    B::for_rows(ctx, groups.slots,
                fn::PoolPositions<T, B>{groups, probabilities, rows, saved.received, saved.pooled});
    B::grouped_gemm(ctx, groups.in_slot_order(), std::as_const(saved.pooled).view(), p.value.view(), false, z,
                    fn::Store{});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    auto mark = ctx.mark();
    const SelfAttention<T, B> attention{ctx, groups, length, 1, false};
    const Groups<B> slots = groups.in_slot_order(), tokens = position_groups(ctx, Positions<B>{groups, length});
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));

    auto dpooled = ctx.template scratch<T>(groups.slots, model_dim);
    B::grouped_outer(ctx, slots, saved.pooled.view(), dz, grads.value.view());
    B::grouped_gemm(ctx, slots, dz, p.value.view(), true, dpooled, fn::Store{});

    auto dp = ctx.template scratch<T>(groups.slots, length);
    auto dscore = ctx.template scratch<T>(tokens.slots, length);
    B::for_rows(ctx, tokens.slots, fn::PoolPositionsBackward<T, B>{groups, dpooled, rows, dp});
    attention.again(ctx, rows, saved.key, saved.log_sum_exp, 0, dscore);
    attention.probabilities_backward(ctx, dp, dscore);

    auto dkey = ctx.template scratch<T>(tokens.slots, model_dim), dquery = ctx.template scratch<T>(tokens.slots, model_dim);
    fill(ctx, dkey, 0);
    attention.add_transposed(ctx, dscore, rows, dkey);
    attention.apply(ctx, dscore, saved.key, dquery);
    const View<const T, 2, B> dkey_in = dkey;
    B::grouped_outer(ctx, tokens.in_slot_order(), rows, dkey_in, grads.key_query.view());
    B::grouped_gemm(ctx, tokens.in_slot_order(), dkey_in, p.key_query.view(), true,
                    dslots.as(tokens.slots, model_dim), fn::AddPooled<T, B>{dquery, saved.received, dpooled});
  }

 private:
  void validate_options(const char* where) const {
    expect(model_dim >= 1, where, "model_dim", "at least 1", model_dim);
    expect(length >= 1, where, "length", "at least 1", length);
    expect(outputs >= 1, where, "outputs", "at least 1", outputs);
  }
};

}  // namespace gatefold
