#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "gatefold/attention/attend.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/expert/positions.hpp"

namespace gatefold {

/// Multi-head self-attention with separate matrices Q_e, K_e, V_e and O_e for each expert e. Each item X is a sequence
/// of `length` positions. h counts the H heads; D is the number of values per position.
///
///     A_h = softmax(Q_h K_hᵀ / √(D/H)) over the positions allowed,   z = concat_h(A_h V_h) O_e           (1)
///
/// with Q = X Q_e, K = X K_e, V = X V_e, without bias.
/// Source: Vaswani et al. 2017, arXiv:1706.03762, eq. (1).
/// @param x [N, length · model_dim] in items, z [S, length · model_dim] out
/// @param causal  if true, a position attends only to itself and earlier positions; in forward, no bit of its output
///                depends on later positions
/// @param saved  Q, K, V and the context A_h V_h of all heads [S · L, D], and one log-sum-exp per position and head
///               [S · L, H]; the probabilities are not saved
/// @throws ArgumentError unless sizes are at least 1 and heads divides model_dim
/// @cost   8·S·L·D² + 4·S·L²·D flop; scratch as in attention/attend.hpp, plus 4·S·L·D backward
struct MultiHeadExpert {
  Index model_dim = 0, heads = 1, length = 1;
  bool causal = false;
  Initial initial{};

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true, only_multiplied = true;
    Tensor<T, 3, B> query, key, value, output;  // [E, D, D]
    GATEFOLD_PACK(query, key, value, output)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> q, k, v, context;  // [S · L, D]
    Tensor<T, 2, B> log_sum_exp;       // [S · L, H]
  };

  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return length * model_dim; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect_options("MultiHeadExpert.init");
    const auto square = [&](std::uint64_t k) {
      return initial_weights<T>(ctx, initial, seed.fork(k), experts, model_dim, model_dim);
    };
    return {square(0), square(1), square(2), square(3)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_options("MultiHeadExpert");
    detail_::attending::expect_projections("MultiHeadExpert", p, {experts, model_dim, model_dim});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    const View<const T, 2, B> rows = x.as(x.extent(0) * length, model_dim);
    for (auto* t : {&saved.q, &saved.k, &saved.v, &saved.context}) t->resize(slots.slots, model_dim);
    saved.log_sum_exp.resize(slots.slots, heads);
    B::grouped_gemm(ctx, tokens, rows, p.query.view(), as_stored, saved.q.view(), functor::Store{});
    B::grouped_gemm(ctx, tokens, rows, p.key.view(), as_stored, saved.k.view(), functor::Store{});
    B::grouped_gemm(ctx, tokens, rows, p.value.view(), as_stored, saved.v.view(), functor::Store{});
    detail_::attending::forward(ctx, form<T>(groups), saved.q, saved.k, saved.v, saved.context, saved.log_sum_exp, {});
    B::grouped_gemm(ctx, slots, std::as_const(saved.context).view(), p.output.view(), as_stored,
                    z.as(slots.slots, model_dim), functor::Store{});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    const Index positions = groups.slots * length;
    detail_::attending::expect_saved("MultiHeadExpert.backward", saved, positions, positions, model_dim, heads);
    auto mark = ctx.mark();
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    const View<const T, 2, B> rows = x.as(x.extent(0) * length, model_dim), du = dz.as(slots.slots, model_dim);
    const auto wide = [&] { return ctx.template scratch<T>(slots.slots, model_dim); };
    auto dcontext = wide(), dq = wide(), dk = wide(), dv = wide();
    add_weight_gradient<B>(ctx, slots, saved.context.view(), du, grads.output);
    B::grouped_gemm(ctx, slots, du, p.output.view(), as_transposed, dcontext, functor::Store{});
    for (const auto& d : {dq, dk, dv}) fill(ctx, d, 0);
    detail_::attending::backward(ctx, form<T>(groups), saved.q, saved.k, saved.v, saved.context, saved.log_sum_exp,
                                 dcontext, {}, dq, dk, dv);
    const View<const T, 2, B> from_q = dq, from_k = dk, from_v = dv;
    add_weight_gradient<B>(ctx, tokens, rows, from_q, grads.query);
    add_weight_gradient<B>(ctx, tokens, rows, from_k, grads.key);
    add_weight_gradient<B>(ctx, tokens, rows, from_v, grads.value);
    B::grouped_gemm(ctx, slots, from_q, p.query.view(), as_transposed, dcontext, functor::Store{});  // reuses dcontext
    B::grouped_gemm(ctx, slots, from_k, p.key.view(), as_transposed, dcontext, functor::AddTo<T, B>{dcontext});
    B::grouped_gemm(ctx, slots, from_v, p.value.view(), as_transposed, dslots.as(slots.slots, model_dim),
                    functor::AddTo<T, B>{dcontext});
  }

 private:
  template <class T, class B>
  detail_::attending::Form<T, B> form(const Groups<B>& groups) const {
    return {.length = length,
            .heads = heads,
            .scale = 1 / std::sqrt(static_cast<double>(model_dim / heads)),
            .causal = causal,
            .slots = groups.offsets};
  }
  void expect_options(const char* where) const {
    detail_::attending::expect_heads(where, model_dim, heads);
    expect(length >= 1, where, "length", "at least 1", length);
  }
};

}  // namespace gatefold
