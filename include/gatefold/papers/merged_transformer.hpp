#pragma once

#include "gatefold/attention/products.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/expert/patches.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), HeadProbabilities, HeadProbabilitiesBackward, Difference, DifferenceBackward);

/// An expert made of attention heads and one layer of neurons. The query and key matrices of a head are merged into one
/// matrix K. The outputs of the heads are summed. The J neurons w_{e,j} of expert e have fixed output weights a_j = ±1.
///
///     f_e(X) = Σ_l Σ_j a_j act(⟨w_{e,j}, C_l⟩),   C_l = Σ_h X softmax(Xᵀ K_{e,h} X_l)                    (1)
///     a_j = 1 for j < J/2, −1 for the others                                                            (2)
///
/// Here, X = (X_1, …, X_L) ∈ R^{d×L}. As in AttentionExpert, there is no factor 1/√d. A mixture of M AttentionExperts
/// with a router has as many parameters as one MergedTransformer with M heads and 2M filters.
/// Source: paper 000, fig. 1(b), the transformer without a gate that its sec. 5.2 compares with.
/// @param x [N, length · model_dim] in items, z [S, 1] out
/// @param filters  J, even
/// @param initial  initial values of K and w; the paper uses N(0, scale²/d)
/// @param saved  the keys Xᵀ K_h of all heads [S · L, heads · d], C [S · L, d] and the values before the activation
///               [S · L, J]; the probabilities are not saved
/// @throws ArgumentError unless sizes are at least 1 and filters is even
/// @cost   2·S·L·d·(H·(d + L) + L + J) flop forward, with H = heads and J = filters; scratch S·L·(d + J) forward and
///         S·L·(H·d + 3d + J) backward, plus blocks of probabilities for each thread
template <class Act = Relu>
struct MergedTransformer {
  Index model_dim = 0, length = 1, heads = 1, filters = 2;
  Initial initial{.law = Initial::Law::normal_fan_in};

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 3, B> key_query;  // [E, d, heads · d]
    Tensor<T, 3, B> weight;     // [E, d, J]
    GATEFOLD_PACK(key_query, weight)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> key;      // [S · L, heads · d]
    Tensor<T, 2, B> context;  // [S · L, d]
    Tensor<T, 2, B> pre;      // [S · L, J]
  };

  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return 1; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect_options("MergedTransformer.init");
    return {initial_weights<T>(ctx, initial, seed.fork(0), experts, model_dim, heads * model_dim),
            initial_weights<T>(ctx, initial, seed.fork(1), experts, model_dim, filters)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_options("MergedTransformer");
    expect_shape("MergedTransformer", "params.key_query", p.key_query, {experts, model_dim, heads * model_dim});
    expect_shape("MergedTransformer", "params.weight", p.weight, {experts, model_dim, filters});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));
    auto halves = ctx.template scratch<T>(groups.slots, 2);
    saved.key.resize(slots.slots, heads * model_dim);
    saved.context.resize(slots.slots, model_dim);

    B::grouped_gemm(ctx, slots, rows, p.key_query.view(), as_stored, saved.key.view(), functor::Store{});
    fill(ctx, saved.context.view(), 0);
    for_each_block<T, B>(ctx, groups, rows, saved.key,
                         [&](auto& own, const Heads<T, B>& of) { of.products.add(own, of.all, rows, saved.context); });
    patches_forward<Act, typename B::Context, T, B>(ctx, neurons<B>(groups), contexts(saved), p.weight, {}, halves,
                                                    saved.pre);
    B::for_each(ctx, groups.slots, functor::Difference<T, B>{groups, halves, z});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    expect_shape("MergedTransformer.backward", "saved.key", saved.key, {groups.slots * length, heads * model_dim});
    expect_shape("MergedTransformer.backward", "saved.context", saved.context, {groups.slots * length, model_dim});
    expect_shape("MergedTransformer.backward", "saved.pre", saved.pre, {groups.slots * length, filters});
    auto mark = ctx.mark();
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));
    auto dcontext = ctx.template scratch<T>(slots.slots, model_dim);
    auto dx = ctx.template scratch<T>(slots.slots, model_dim);
    auto dkey = ctx.template scratch<T>(slots.slots, heads * model_dim);
    auto dhalves = ctx.template scratch<T>(groups.slots, 2);

    B::for_each(ctx, groups.slots, functor::DifferenceBackward<T, B>{groups, dz, dhalves});
    patches_backward<Act, typename B::Context, T, B>(ctx, neurons<B>(groups), contexts(saved), p.weight, saved.pre,
                                                     dhalves, dcontext.as(groups.slots, in_dim()), grads.weight, {});
    for (const auto& d : {dx, dkey}) fill(ctx, d, 0);
    const View<T, 2, B> dkeys = by_head(dkey);
    for_each_block<T, B>(ctx, groups, rows, saved.key, [&](auto& own, const Heads<T, B>& of) {
      const View<T, 2, B> dall = of.products.scores(own, dcontext, rows);
      detail_::attending::for_rows(own, of.all.extent(0), of.in_use,
                                   functor::HeadProbabilitiesBackward<T, B>{dall, of.p});
      of.products.add_transposed(own, of.all, dcontext, dx);      // gradient through x as value
      of.of_heads.add(own, of.p, by_head(saved.key.view()), dx);  // gradient through x as query
      of.of_heads.add_transposed(own, of.p, rows, dkeys);
    });
    const View<const T, 2, B> dkey_in = dkey;
    add_weight_gradient<B>(ctx, slots, rows, dkey_in, grads.key_query);
    B::grouped_gemm(ctx, slots, dkey_in, p.key_query.view(), as_transposed, dslots.as(slots.slots, model_dim),
                    functor::AddTo<T, B>{dx});
  }

 private:
  /// A block of rows of the attention probabilities, for all heads, and the sum of the probabilities over the heads.
  template <class T, class B>
  struct Heads {
    detail_::attending::InUse<B> in_use;  // the rows that belong to an expert
    detail_::attending::Products<T, B> products, of_heads;
    View<T, 2, B> p, all;  // [rows, L · heads], [rows, L]
  };
  /// Computes the attention probabilities of all items in blocks of rows, to limit the scratch memory, and calls
  /// f(context, heads) for each block.
  template <class T, class B, class F>
  void for_each_block(auto& ctx, const Groups<B>& groups, View<const T, 2, B> x, In<T, 2, B> key, const F& f) const {
    const detail_::attending::InUse<B> in_use{groups.offsets, length};
    const auto size = detail_::attending::BlockSize::whole_rows(length, heads);
    detail_::attending::for_each_block(
        ctx, x.extent(0), length, false, size, [&](auto& own, const detail_::attending::Block& block) {
          auto mark = own.mark();
          const detail_::attending::Products<T, B> products(own, block, in_use), of_heads = products.with_keys(heads);
          const Heads<T, B> of{in_use.from(block.row), products, of_heads, of_heads.scores(own, x, by_head(key)),
                               own.template scratch<T>(block.all_rows(), length)};
          detail_::attending::for_rows(own, block.all_rows(), of.in_use,
                                       functor::HeadProbabilities<T, B>{of.p, of.all});
          f(own, of);
        });
  }
  /// Returns a view of the keys [S · L, heads · d] with one row per position and head: [S · L · heads, d].
  auto by_head(const auto& key) const { return key.as(key.extent(0) * heads, model_dim); }
  template <class B>
  Positions<B> neurons(Groups<B> groups) const {
    return {groups.in_slot_order(), length, false};
  }
  /// Returns a view of the saved context vectors C [S · L, d] with one row per item: [S, L · d].
  template <class T, class B>
  View<const T, 2, B> contexts(const Saved<T, B>& saved) const {
    return saved.context.view().as(saved.context.extent(0) / length, in_dim());
  }
  void expect_options(const char* where) const {
    expect_sizes(where, {{"model_dim", model_dim}, {"length", length}, {"heads", heads}});
    expect(filters >= 2 && filters % 2 == 0, where, "filters", "an even number, at least 2", filters);
  }
};

namespace functor {

/// Computes attention probabilities. For query t and each of the H heads h, replaces the scores p[t, m·H + h] by their
/// softmax over the positions m. Also writes the sum over the heads, all[t,m] = Σ_h p[t, m·H + h]. The values of all
/// heads for one position are contiguous, so that SIMD registers can hold several heads.
template <class T, class B>
struct HeadProbabilities {
  View<T, 2, B> p, all;  // [rows, L · H], [rows, L]

  GATEFOLD_HD void operator()(const auto& lanes, Index t) const {
    const Index length = all.extent(1), heads = p.extent(1) / length;
    T* const row = p.data() + t * length * heads;
    each_column<T>(lanes, heads, [&](auto at, Index h) {
      using functor::math::exp;
      using functor::math::reciprocal;
      using functor::math::where_positive;
      using V = typename decltype(at)::Value;
      V top = at.load(row + h), total = V(T(0));
      for (Index m = 1; m < length; ++m) {
        const V score = at.load(row + m * heads + h);
        top = where_positive(score - top, score, top);
      }
      for (Index m = 0; m < length; ++m) {
        const V share = exp(at.load(row + m * heads + h) - top);
        at.store(row + m * heads + h, share);
        total = total + share;
      }
      const V scale = reciprocal(total);
      for (Index m = 0; m < length; ++m) at.store(row + m * heads + h, at.load(row + m * heads + h) * scale);
    });
    for (Index m = 0; m < length; ++m) {
      const T sum = sum_columns<T>(lanes, heads, [&](auto at, Index h) { return at.load(row + m * heads + h); });
      if (lanes.lane == 0) all(t, m) = sum;
    }
  }
};
/// Computes the backward pass of the softmax of attention scores. Replaces the probability p[t, m·H + h] of query t,
/// position m and head h by the gradient of the score: p[t, m·H + h] (dall[t,m] − Σ_i p[t, i·H + h] dall[t,i]). dall is
/// the gradient of the sum of p over the H heads.
template <class T, class B>
struct HeadProbabilitiesBackward {
  View<const T, 2, B> dall;  // [rows, L]
  View<T, 2, B> p;           // [rows, L · H]

  GATEFOLD_HD void operator()(const auto& lanes, Index t) const {
    const Index length = dall.extent(1), heads = p.extent(1) / length;
    T* const row = p.data() + t * length * heads;
    each_column<T>(lanes, heads, [&](auto at, Index h) {
      using V = typename decltype(at)::Value;
      V dot = V(T(0));
      for (Index m = 0; m < length; ++m) dot = dot + at.load(row + m * heads + h) * V(dall(t, m));
      for (Index m = 0; m < length; ++m)
        at.store(row + m * heads + h, at.load(row + m * heads + h) * (V(dall(t, m)) - dot));
    });
  }
};
/// Writes z[s] = halves[s,0] − halves[s,1]. halves[s,0] is the sum of the neurons with output weight 1, and halves[s,1]
/// the sum of the neurons with output weight −1.
template <class T, class B>
struct Difference {
  Groups<B> items;
  View<const T, 2, B> halves;  // [S, 2]
  View<T, 2, B> z;             // [S, 1]
  GATEFOLD_HD void operator()(Index s) const {
    if (items.expert(s) >= 0) z(s, 0) = halves(s, 0) - halves(s, 1);
  }
};
/// Backward pass of Difference: writes dhalves[s] = (dz[s], −dz[s]).
template <class T, class B>
struct DifferenceBackward {
  Groups<B> items;
  View<const T, 2, B> dz;
  View<T, 2, B> dhalves;
  GATEFOLD_HD void operator()(Index s) const {
    if (items.expert(s) < 0) return;
    dhalves(s, 0) = dz(s, 0);
    dhalves(s, 1) = -dz(s, 0);
  }
};

}  // namespace functor

}  // namespace gatefold
