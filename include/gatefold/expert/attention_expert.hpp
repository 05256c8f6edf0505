#pragma once

#include <cstdint>
#include <utility>

#include "gatefold/attention/products.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/expert/positions.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), ReceiveAttention, PoolPositions, PoolPositionsBackward, ReceiveAttentionBackward,
                  AddPooled);

/// An expert that is one attention layer. Its scores are not scaled by 1/√d, and its outputs are summed over the
/// queries. An item is a sequence X of L vectors. K_e is the product of the query and key matrices of expert e, and W_e
/// the product of its value and output matrices.
///
///     f_e(X) = Σ_l W_eᵀ X softmax(Xᵀ K_e X_l),   X = (X_1, …, X_L) ∈ R^{d×L}                             (1)
///
/// Source: paper 000, eqs. (3) and (4), which also have no factor 1/√d.
///
/// With p_l the softmax of query l, the gradients are the paper's eqs. (13) and (14):
///
///     ∂f/∂W = X Σ_l p_l,   ∂f/∂K = Σ_l X (diag p_l − p_l p_lᵀ) Xᵀ W X_lᵀ                                 (2)
///
/// If key_dim > 0, the expert learns the factors of both products, as in the paper's eq. (3):
///
///     K_e = W_Kᵀ W_Q,   W_e = W_Vᵀ w,   W_K, W_Q ∈ R^{key_dim×d}, W_V ∈ R^{d×d}, w ∈ R^{d×outputs}        (3)
///
/// @param x [N, length · model_dim] in items, z [S, outputs] out
/// @param key_dim  the width of keys and queries in (3); 0: K and W are learned as single matrices
/// @param initial  initial values of K and W, or of each factor; the paper uses N(0, scale²/d) with a scale σ₀ of order
///                 1. If key_dim = d, factors of scale √σ₀ give products of the variance σ₀²/d
/// @param saved  X K [S · L, d], or keys and queries [S · L, key_dim]; Σ_l p_l [S, L] (the attention that each position
///               receives); X Σ_l p_l [S, d], and W_V X Σ_l p_l [S, d] if key_dim > 0. Probabilities are not saved
/// @throws ArgumentError unless sizes are at least 1 and key_dim at least 0
/// @cost   2·S·L·d·(d + L) flop forward if key_dim = 0, otherwise 2·S·(L·key_dim·(2d + L) + d²). Scratch S·L·d forward;
///         backward S·L·(3d + 1) if key_dim = 0, otherwise S·L·(2d + 2·key_dim + 1); plus one block of probabilities
///         per thread
struct AttentionExpert {
  Index model_dim = 0, length = 1, outputs = 1, key_dim = 0;
  Initial initial{.law = Initial::Law::normal_fan_in};

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true, only_multiplied = true;
    Tensor<T, 3, B> key_query;                       // K [E, d, d]; [E, d, 0] if key_dim > 0
    Tensor<T, 3, B> value;                           // W [E, d, outputs]; W_Vᵀ [E, d, d] if key_dim > 0
    Tensor<T, 3, B> attention_key, attention_query;  // W_Kᵀ, W_Qᵀ [E, d, key_dim]
    Tensor<T, 3, B> output;                          // w [E, d, outputs]; [E, d, 0] if key_dim = 0
    GATEFOLD_PACK(key_query, value, attention_key, attention_query, output)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> key;               // [S · L, d], or [S · L, key_dim]
    Tensor<T, 2, B> received, pooled;  // [S, L] Σ_l p_l, [S, d] X Σ_l p_l
    Tensor<T, 2, B> query, projected;  // [S · L, key_dim], [S, d] W_V X Σ_l p_l; unused if key_dim = 0
  };

  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return outputs; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect_options("AttentionExpert.init");
    const auto weights = [&](std::uint64_t k, Index columns) {
      return initial_weights<T>(ctx, initial, seed.fork(k), experts, model_dim, columns);
    };
    return {weights(0, factors() ? 0 : model_dim), weights(1, factors() ? model_dim : outputs), weights(2, key_dim),
            weights(3, key_dim), weights(4, factors() ? outputs : 0)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_options("AttentionExpert");
    const auto expect_columns = [&](const char* name, const Tensor<T, 3, B>& t, Index columns) {
      expect_shape("AttentionExpert", name, t, {experts, model_dim, columns});
    };
    expect_columns("params.key_query", p.key_query, factors() ? 0 : model_dim);
    expect_columns("params.value", p.value, factors() ? model_dim : outputs);
    expect_columns("params.attention_key", p.attention_key, key_dim);
    expect_columns("params.attention_query", p.attention_query, key_dim);
    expect_columns("params.output", p.output, factors() ? outputs : 0);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length});
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));
    saved.key.resize(tokens.slots, key_width());
    saved.received.resize(groups.slots, length);
    saved.pooled.resize(groups.slots, model_dim);
    B::grouped_gemm(ctx, tokens.in_slot_order(), rows, keys(p).view(), as_stored, saved.key.view(), functor::Store{});
    if (factors()) {
      saved.query.resize(tokens.slots, key_dim);
      B::grouped_gemm(ctx, tokens.in_slot_order(), rows, p.attention_query.view(), as_stored, saved.query.view(),
                      functor::Store{});
    }
    fill(ctx, saved.received.view(), 0);
    for_each_block<T, B>(ctx, groups, queries(saved, rows), saved.key,
                         [&](auto& own, const auto& block, const auto&, View<T, 2, B> weights) {
                           detail_::attending::for_rows(
                               own, block.sequences,
                               detail_::attending::InUse<B>{groups.offsets, 1, block.row / length},
                               functor::ReceiveAttention<T, B>{block, length, weights, saved.received});
                         });
    detail_::attending::for_rows(ctx, groups.slots, detail_::attending::InUse<B>{groups.offsets},
                                 functor::PoolPositions<T, B>{saved.received, rows, saved.pooled});
    if (factors()) saved.projected.resize(groups.slots, model_dim);
    B::grouped_gemm(ctx, groups.in_slot_order(), std::as_const(saved.pooled).view(), p.value.view(), as_stored,
                    factors() ? saved.projected.view() : z, functor::Store{});
    if (factors())
      B::grouped_gemm(ctx, groups.in_slot_order(), std::as_const(saved.projected).view(), p.output.view(), as_stored, z,
                      functor::Store{});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    expect_shape("AttentionExpert.backward", "saved.key", saved.key, {groups.slots * length, key_width()});
    expect_shape("AttentionExpert.backward", "saved.received", saved.received, {groups.slots, length});
    expect_shape("AttentionExpert.backward", "saved.pooled", saved.pooled, {groups.slots, model_dim});
    if (factors()) {
      expect_shape("AttentionExpert.backward", "saved.query", saved.query, {groups.slots * length, key_dim});
      expect_shape("AttentionExpert.backward", "saved.projected", saved.projected, {groups.slots, model_dim});
    }
    auto mark = ctx.mark();
    const Groups<B> slots = groups.in_slot_order(), tokens = position_groups(ctx, Positions<B>{groups, length});
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));

    auto dpooled = ctx.template scratch<T>(groups.slots, model_dim);
    View<const T, 2, B> dvalue = dz;
    if (factors()) {
      auto dprojected = ctx.template scratch<T>(groups.slots, model_dim);
      add_weight_gradient<B>(ctx, slots, saved.projected.view(), dz, grads.output);
      B::grouped_gemm(ctx, slots, dz, p.output.view(), as_transposed, dprojected, functor::Store{});
      dvalue = dprojected;
    }
    add_weight_gradient<B>(ctx, slots, saved.pooled.view(), dvalue, grads.value);
    B::grouped_gemm(ctx, slots, dvalue, p.value.view(), as_transposed, dpooled, functor::Store{});

    auto dp = ctx.template scratch<T>(groups.slots, length);
    detail_::attending::for_rows(ctx, tokens.slots, detail_::attending::InUse<B>{groups.offsets, length},
                                 functor::PoolPositionsBackward<T, B>{dpooled, rows, dp});

    auto dkey = ctx.template scratch<T>(tokens.slots, key_width()),
         dquery = ctx.template scratch<T>(tokens.slots, key_width());
    for (const auto& d : {dkey, dquery}) fill(ctx, d, 0);
    const View<const T, 2, B> of_queries = queries(saved, rows);
    for_each_block<T, B>(ctx, groups, of_queries, saved.key,
                         [&](auto& own, const auto& block, const auto& products, View<T, 2, B> weights) {
                           detail_::attending::for_rows(
                               own, block.all_rows(), detail_::attending::InUse<B>{groups.offsets, length, block.row},
                               functor::ReceiveAttentionBackward<T, B>{block.row, dp, weights});
                           products.add(own, weights, saved.key, dquery);
                           products.add_transposed(own, weights, of_queries, dkey);
                         });
    const View<const T, 2, B> dkey_in = dkey, dquery_in = dquery;
    View<const T, 2, B> dx = dquery;  // the gradient through x as query
    if (factors()) {
      auto through_queries = ctx.template scratch<T>(tokens.slots, model_dim);
      add_weight_gradient<B>(ctx, tokens.in_slot_order(), rows, dquery_in, grads.attention_query);
      B::grouped_gemm(ctx, tokens.in_slot_order(), dquery_in, p.attention_query.view(), as_transposed, through_queries,
                      functor::Store{});
      dx = through_queries;
    }
    add_weight_gradient<B>(ctx, tokens.in_slot_order(), rows, dkey_in, keys(grads));
    B::grouped_gemm(ctx, tokens.in_slot_order(), dkey_in, keys(p).view(), as_transposed,
                    dslots.as(tokens.slots, model_dim), functor::AddPooled<T, B>{dx, saved.received, dpooled});
  }

 private:
  bool factors() const { return key_dim > 0; }
  Index key_width() const { return factors() ? key_dim : model_dim; }
  /// Returns the matrix that maps x to the keys, or its gradient.
  auto& keys(auto& params) const { return factors() ? params.attention_key : params.key_query; }
  /// Returns the queries of all positions.
  template <class T, class B>
  View<const T, 2, B> queries(const Saved<T, B>& saved, View<const T, 2, B> x) const {
    return factors() ? saved.query.view() : x;
  }
  /// Computes the attention probabilities p = softmax(query keyᵀ) in blocks of rows, to limit the scratch memory. Calls
  /// f(context, block, products, p) for each block. `products` is an object whose functions f calls to multiply p by
  /// other matrices.
  template <class T, class B, class F>
  void for_each_block(auto& ctx, const Groups<B>& groups, View<const T, 2, B> query, In<T, 2, B> key,
                      const F& f) const {
    const auto size = detail_::attending::BlockSize::whole_rows(length);
    const detail_::attending::InUse<B> in_use{groups.offsets, length};
    detail_::attending::for_each_block(
        ctx, query.extent(0), length, false, size, [&](auto& own, const detail_::attending::Block& block) {
          auto mark = own.mark();
          const detail_::attending::Products<T, B> products(own, block, in_use);
          const View<T, 2, B> p = products.scores(own, query, key);
          detail_::attending::for_rows(own, block.all_rows(), in_use.from(block.row), functor::Softmax<T, B>{p, p});
          f(own, block, products, p);
        });
  }
  void expect_options(const char* where) const {
    expect_sizes(where, {{"model_dim", model_dim}, {"length", length}, {"outputs", outputs}});
    expect(key_dim >= 0, where, "key_dim", "at least 0", key_dim);
  }
};

namespace functor {

/// Sums the attention that each position h of slot s receives. A block of attention probabilities p has rows for some
/// queries l of slot s: received[s,h] += Σ_l p[l,h].
template <class T, class B>
struct ReceiveAttention {
  detail_::attending::Block block;
  Index length;
  View<const T, 2, B> p;   // [rows, L] of the block
  View<T, 2, B> received;  // [S, L]

  GATEFOLD_HD void operator()(const auto& lanes, Index sequence) const {
    const Index first = sequence * block.rows, s = (block.row + first) / length;
    each_column<T>(lanes, length, [&](auto at, Index h) {
      auto sum = at.load(&received(s, h));
      for (Index l = first; l < first + block.rows; ++l) sum = sum + at.load(&p(l, h));
      at.store(&received(s, h), sum);
    });
  }
};
/// Computes the sum of the vectors x_h at the positions h of slot s, weighted by the attention that each position
/// receives: pooled[s] = Σ_h received[s,h] x_h.
template <class T, class B>
struct PoolPositions {
  View<const T, 2, B> received, x;  // [S, L], [S · L, d] in slot order
  View<T, 2, B> pooled;             // [S, d]

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index length = received.extent(1);
    each_column<T>(lanes, pooled.extent(1), [&](auto at, Index j) {
      using V = typename decltype(at)::Value;
      V sum = V(T(0));
      for (Index h = 0; h < length; ++h) sum = sum + V(received(s, h)) * at.load(&x(s * length + h, j));
      at.store(&pooled(s, j), sum);
    });
  }
};
/// Computes dp[s,h] = ⟨dpooled[s], x_h⟩, the gradient of the attention probability p[l,h] of slot s for query l and
/// position h. It is the same for every query l of the slot. Call t = s·L + h computes one value.
template <class T, class B>
struct PoolPositionsBackward {
  View<const T, 2, B> dpooled, x;
  View<T, 2, B> dp;

  GATEFOLD_HD void operator()(const auto& lanes, Index t) const {
    const Index s = t / dp.extent(1), h = t % dp.extent(1);
    const T dot = sum_columns<T>(lanes, x.extent(1),
                                 [&](auto at, Index j) { return at.load(&dpooled(s, j)) * at.load(&x(t, j)); });
    if (lanes.lane == 0) dp(s, h) = dot;
  }
};
/// Backward pass of softmax for a block of attention probabilities p[l,h] of query l of slot s. Replaces p[l,h] by the
/// gradient of the score, p[l,h] (dp[s,h] − Σ_i p[l,i] dp[s,i]), with dp the gradient of p.
template <class T, class B>
struct ReceiveAttentionBackward {
  Index first;             // number of the first row of the block
  View<const T, 2, B> dp;  // [S, L] gradient of p
  View<T, 2, B> p;         // [rows, L] of the block

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const Index length = p.extent(1), s = (first + row) / length;
    const T dot =
        sum_columns<T>(lanes, length, [&](auto at, Index h) { return at.load(&p(row, h)) * at.load(&dp(s, h)); });
    each_column<T>(lanes, length,
                   [&](auto at, Index h) { at.store(&p(row, h), at.load(&p(row, h)) * (at.load(&dp(s, h)) - dot)); });
  }
};
/// An epilogue of a matrix product, which is called for each element v of the product. Row t = s·L + h is position h of
/// slot s. Adds the two other terms of the gradient of this position: v + addend[t] + received[s,h] dpooled[s].
template <class T, class B>
struct AddPooled {
  View<const T, 2, B> addend, received, dpooled;

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index t, Index j, typename A::Value v) const {
    const Index s = t / received.extent(1);
    return v + at.load(&addend(t, j)) + at.load(&dpooled(s, j)) * received(s, t % received.extent(1));
  }
};

}  // namespace functor

}  // namespace gatefold
