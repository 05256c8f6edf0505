#pragma once

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
/// Source: paper 000, eq. (4), which also has no factor 1/√d.
///
/// With p_l the softmax of query l, the gradients are the paper's eqs. (13) and (14):
///
///     ∂f/∂W = X Σ_l p_l,   ∂f/∂K = Σ_l X (diag p_l − p_l p_lᵀ) Xᵀ W X_lᵀ                                 (2)
///
/// @param x [N, length · model_dim] in items, z [S, outputs] out
/// @param initial  initial values of K and W; the paper uses N(0, scale²/d) with a scale σ₀ of order 1
/// @param saved  X K [S · L, d], Σ_l p_l [S, L] (the attention that each position receives), and X Σ_l p_l [S, d]; the
///               probabilities are not saved
/// @throws ArgumentError unless sizes are at least 1
/// @cost   2·S·L·d·(d + L) flop; scratch S·L·d forward and S·L·(3d + 1) backward, plus one block of probabilities per
///         thread
struct AttentionExpert {
  Index model_dim = 0, length = 1, outputs = 1;
  Initial initial{.law = Initial::Law::normal_fan_in};

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true, only_multiplied = true;
    Tensor<T, 3, B> key_query;  // [E, d, d]
    Tensor<T, 3, B> value;      // [E, d, outputs]
    GATEFOLD_PACK(key_query, value)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> key;               // [S · L, d]
    Tensor<T, 2, B> received, pooled;  // [S, L] Σ_l p_l, [S, d] X Σ_l p_l
  };

  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return outputs; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect_options("AttentionExpert.init");
    return {initial_weights<T>(ctx, initial, seed.fork(0), experts, model_dim, model_dim),
            initial_weights<T>(ctx, initial, seed.fork(1), experts, model_dim, outputs)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_options("AttentionExpert");
    expect_shape("AttentionExpert", "params.key_query", p.key_query, {experts, model_dim, model_dim});
    expect_shape("AttentionExpert", "params.value", p.value, {experts, model_dim, outputs});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length});
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));
    saved.key.resize(tokens.slots, model_dim);
    saved.received.resize(groups.slots, length);
    saved.pooled.resize(groups.slots, model_dim);
    B::grouped_gemm(ctx, tokens.in_slot_order(), rows, p.key_query.view(), as_stored, saved.key.view(),
                    functor::Store{});
    fill(ctx, saved.received.view(), 0);
    for_each_block<T, B>(
        ctx, groups, rows, saved.key, [&](auto& own, const auto& block, const auto&, View<T, 2, B> weights) {
          detail_::attending::for_rows(own, block.sequences,
                                       detail_::attending::InUse<B>{groups.offsets, 1, block.row / length},
                                       functor::ReceiveAttention<T, B>{block, length, weights, saved.received});
        });
    detail_::attending::for_rows(ctx, groups.slots, detail_::attending::InUse<B>{groups.offsets},
                                 functor::PoolPositions<T, B>{saved.received, rows, saved.pooled});
    B::grouped_gemm(ctx, groups.in_slot_order(), std::as_const(saved.pooled).view(), p.value.view(), as_stored, z,
                    functor::Store{});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    expect_shape("AttentionExpert.backward", "saved.key", saved.key, {groups.slots * length, model_dim});
    expect_shape("AttentionExpert.backward", "saved.received", saved.received, {groups.slots, length});
    expect_shape("AttentionExpert.backward", "saved.pooled", saved.pooled, {groups.slots, model_dim});
    auto mark = ctx.mark();
    const Groups<B> slots = groups.in_slot_order(), tokens = position_groups(ctx, Positions<B>{groups, length});
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));

    auto dpooled = ctx.template scratch<T>(groups.slots, model_dim);
    add_weight_gradient<B>(ctx, slots, saved.pooled.view(), dz, grads.value);
    B::grouped_gemm(ctx, slots, dz, p.value.view(), as_transposed, dpooled, functor::Store{});

    auto dp = ctx.template scratch<T>(groups.slots, length);
    detail_::attending::for_rows(ctx, tokens.slots, detail_::attending::InUse<B>{groups.offsets, length},
                                 functor::PoolPositionsBackward<T, B>{dpooled, rows, dp});

    auto dkey = ctx.template scratch<T>(tokens.slots, model_dim),
         dquery = ctx.template scratch<T>(tokens.slots, model_dim);
    for (const auto& d : {dkey, dquery}) fill(ctx, d, 0);
    for_each_block<T, B>(
        ctx, groups, rows, saved.key, [&](auto& own, const auto& block, const auto& products, View<T, 2, B> weights) {
          detail_::attending::for_rows(own, block.all_rows(),
                                       detail_::attending::InUse<B>{groups.offsets, length, block.row},
                                       functor::ReceiveAttentionBackward<T, B>{block.row, dp, weights});
          products.add(own, weights, saved.key, dquery);
          products.add_transposed(own, weights, rows, dkey);
        });
    const View<const T, 2, B> dkey_in = dkey;
    add_weight_gradient<B>(ctx, tokens.in_slot_order(), rows, dkey_in, grads.key_query);
    B::grouped_gemm(ctx, tokens.in_slot_order(), dkey_in, p.key_query.view(), as_transposed,
                    dslots.as(tokens.slots, model_dim), functor::AddPooled<T, B>{dquery, saved.received, dpooled});
  }

 private:
  /// Computes the attention probabilities p = softmax(x keyᵀ) in blocks of rows, to limit the scratch memory. Calls
  /// f(context, block, products, p) for each block. `products` is an object whose functions f calls to multiply p by
  /// other matrices.
  template <class T, class B, class F>
  void for_each_block(auto& ctx, const Groups<B>& groups, View<const T, 2, B> x, In<T, 2, B> key, const F& f) const {
    const auto size = detail_::attending::BlockSize::whole_rows(length);
    const detail_::attending::InUse<B> in_use{groups.offsets, length};
    detail_::attending::for_each_block(
        ctx, x.extent(0), length, false, size, [&](auto& own, const detail_::attending::Block& block) {
          auto mark = own.mark();
          const detail_::attending::Products<T, B> products(own, block, in_use);
          const View<T, 2, B> p = products.scores(own, x, key);
          detail_::attending::for_rows(own, block.all_rows(), in_use.from(block.row), functor::Softmax<T, B>{p, p});
          f(own, block, products, p);
        });
  }
  void expect_options(const char* where) const {
    expect_sizes(where, {{"model_dim", model_dim}, {"length", length}, {"outputs", outputs}});
  }
};

namespace functor {

/// Sums the attention that each position h of item s receives. A block of attention probabilities p has rows for some
/// queries l of item s: received[s,h] += Σ_l p[l,h].
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
/// Computes the sum of the vectors x_h of item s at positions h, weighted by the attention that each position receives:
/// pooled[s] = Σ_h received[s,h] x_h.
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
/// Computes dp[s,h] = ⟨dpooled[s], x_h⟩, the gradient of the attention probability p[l,h] of item s for query l and
/// position h. It is the same for every query l of the item.
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
/// Backward pass of softmax for a block of attention probabilities p[l,h] of query l of item s. Replaces p[l,h] by the
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
/// An epilogue of a matrix product, which is called for each element v of the product. Adds two more terms of the
/// gradient of position t of item s: v + addend[t] + received[t] dpooled[s].
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
