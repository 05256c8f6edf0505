#pragma once

#include <utility>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/multi_head_expert.hpp"
#include "gatefold/expert/patches.hpp"
#include "gatefold/expert/positions.hpp"
#include "gatefold/expert/self_attention.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/policy.hpp"

namespace gatefold {

namespace fn {

/// z[s] = halves[s,0] − halves[s,1]
template <class T, class B>
struct Difference {
  Groups<B> items;
  View<const T, 2, B> halves;  // [S, 2]
  View<T, 2, B> z;             // [S, 1]
  GATEFOLD_HD void operator()(Index s) const {
    if (items.expert(s) >= 0) z(s, 0) = halves(s, 0) - halves(s, 1);
  }
};
/// dhalves[s] = (dz[s], −dz[s])
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

}  // namespace fn

/// Attention heads with merged matrices, summed, below one layer of neurons whose signs are fixed.
///
///     f_e(X) = Σ_l Σ_j a_j act(⟨w_{e,j}, C_l⟩),   C_l = Σ_h X softmax(Xᵀ K_{e,h} X_l)                    (1)
///     a_j = 1 for j < J/2, −1 for the others                                                            (2)
///
/// for X = (X_1, …, X_L) ∈ R^{d×L}. No 1/√d: as AttentionExpert, of which M with a router have as many parameters as
/// one of this with M heads and 2M filters.
/// Source: paper 000, fig. 1(b), the transformer without a gate that its sec. 5.2 compares with.
/// @param x [N, length · model_dim] in items, z [S, 1] out
/// @param filters  J, even
/// @param initial  how K and w begin; the paper takes N(0, scale²/d)
/// @param saved  X K_h [S · L, heads · d], the log-sum-exp of each query and head, C [S · L, d] and what stands before
///               the activation [S · L, J]; never the probabilities
/// @throws ArgumentError unless sizes are at least 1 and filters is even
/// @cost   2·S·L·d·(H·(d + L) + J) flop; scratch S·L·(2L + 2d + J) forward,
///         S·L·(3L + (H + 6)·d + J) backward
template <class Act = Relu>
struct MergedTransformer {
  Index model_dim = 0, length = 1, heads = 1, filters = 2;
  Initial initial{.law = Initial::Law::normal_fan_in};

  template <class T, class B>
  struct Params {
    Tensor<T, 3, B> key_query;  // [E, d, heads · d]
    Tensor<T, 3, B> weight;     // [E, d, J]
    template <class F, class... P>
    static void each(F&& f, P&... p) {
      f("key_query", p.key_query...);
      f("weight", p.weight...);
    }
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> key;          // [S · L, heads · d]
    Tensor<T, 2, B> log_sum_exp;  // [S · L, heads]
    Tensor<T, 2, B> context;      // [S · L, d]
    Tensor<T, 2, B> pre;          // [S · L, J]
  };

  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return 1; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    validate_options("MergedTransformer.init");
    return {initial.weights<T>(ctx, seed.fork(0), experts, model_dim, heads * model_dim),
            initial.weights<T>(ctx, seed.fork(1), experts, model_dim, filters)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    validate_options("MergedTransformer");
    expect_shape("MergedTransformer", "params.key_query", p.key_query, {experts, model_dim, heads * model_dim});
    expect_shape("MergedTransformer", "params.weight", p.weight, {experts, model_dim, filters});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    const SelfAttention<T, B> attention{ctx, groups, length, 1, false};
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));
    auto key = ctx.template scratch<T>(slots.slots, model_dim);
    auto of_head = ctx.template scratch<T>(slots.slots, length), of_all = ctx.template scratch<T>(slots.slots, length);
    auto halves = ctx.template scratch<T>(groups.slots, 2);
    saved.key.resize(slots.slots, heads * model_dim);
    saved.log_sum_exp.resize(slots.slots, heads);
    saved.context.resize(slots.slots, model_dim);

    B::grouped_gemm(ctx, slots, rows, p.key_query.view(), false, saved.key.view(), fn::Store{});
    fill(ctx, of_all, 0);
    for (Index h = 0; h < heads; ++h) {
      take_rows(ctx, slots, saved.key, key, h * model_dim);
      attention.probabilities(ctx, rows, key, of_head, saved.log_sum_exp, h);
      add_rows(ctx, slots, of_head, of_all);
    }
    attention.apply(ctx, of_all, rows, saved.context);
    patches_forward<Act, typename B::Context, T, B>(ctx, neurons<B>(groups), contexts(saved), p.weight, {}, halves,
                                                    saved.pre);
    B::for_each(ctx, groups.slots, fn::Difference<T, B>{groups, halves, z});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    auto mark = ctx.mark();
    const SelfAttention<T, B> attention{ctx, groups, length, 1, false};
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    const auto wide = [&] { return ctx.template scratch<T>(slots.slots, model_dim); };
    const auto square = [&] { return ctx.template scratch<T>(slots.slots, length); };
    const View<const T, 2, B> rows = rows_in_slot_order(ctx, tokens, x.as(x.extent(0) * length, model_dim));
    auto key = wide(), dcontext = wide(), dquery = wide(), part = wide();
    auto score = square(), of_all = square(), dall = square();
    auto dkey = ctx.template scratch<T>(slots.slots, heads * model_dim);
    auto dhalves = ctx.template scratch<T>(groups.slots, 2);

    B::for_each(ctx, groups.slots, fn::DifferenceBackward<T, B>{groups, dz, dhalves});
    patches_backward<Act, typename B::Context, T, B>(ctx, neurons<B>(groups), contexts(saved), p.weight, saved.pre,
                                                     dhalves, dcontext.as(groups.slots, in_dim()), grads.weight, {});
    attention.scores(ctx, dcontext, rows, dall);
    fill(ctx, of_all, 0);
    fill(ctx, dquery, 0);
    for (Index h = 0; h < heads; ++h) {
      take_rows(ctx, slots, saved.key, key, h * model_dim);
      attention.again(ctx, rows, key, saved.log_sum_exp, h, score);
      add_rows(ctx, slots, score, of_all);
      attention.probabilities_backward(ctx, dall, score);
      attention.apply(ctx, score, key, part);
      add_rows(ctx, slots, part, dquery);
      fill(ctx, part, 0);
      attention.add_transposed(ctx, score, rows, part);
      B::for_rows(ctx, slots.slots, fn::PutHead<T, B>{slots, part, h * model_dim, dkey});
    }
    attention.add_transposed(ctx, of_all, dcontext,
                             dquery);  // from here the adjoint of a position as query and as value
    const View<const T, 2, B> dkey_in = dkey;
    B::grouped_outer(ctx, slots, rows, dkey_in, grads.key_query.view());
    B::grouped_gemm(ctx, slots, dkey_in, p.key_query.view(), true, dslots.as(slots.slots, model_dim),
                    fn::AddTo<T, B>{dquery});
  }

 private:
  template <class B>
  Positions<B> neurons(Groups<B> groups) const {
    return {groups.in_slot_order(), length, false};
  }
  /// C as items [S, L · d].
  template <class T, class B>
  View<const T, 2, B> contexts(const Saved<T, B>& saved) const {
    return saved.context.view().as(saved.context.extent(0) / length, in_dim());
  }
  void validate_options(const char* where) const {
    expect(model_dim >= 1, where, "model_dim", "at least 1", model_dim);
    expect(length >= 1, where, "length", "at least 1", length);
    expect(heads >= 1, where, "heads", "at least 1", heads);
    expect(filters >= 2 && filters % 2 == 0, where, "filters", "an even number, at least 2", filters);
  }
};

}  // namespace gatefold
