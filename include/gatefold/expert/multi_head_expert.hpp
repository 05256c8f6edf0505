#pragma once

#include <cmath>
#include <cstdint>
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

/// all[t, first + j] = part[t, j] for slots in use
template <class T, class B>
struct PutHead {
  Groups<B> slots;
  View<const T, 2, B> part;
  Index first;
  View<T, 2, B> all;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index t) const {
    if (slots.expert(t) < 0) return;
    for (Index j = lanes.lane; j < part.extent(1); j += lanes.size) all(t, first + j) = part(t, j);
  }
};

}  // namespace fn

/// Multi-head self-attention per expert, on items that are sequences.
///
///     A_h = softmax(Q_h K_hᵀ / √(D/H)) over the positions allowed,   z = concat_h(A_h V_h) O_e           (1)
///
/// with Q = X Q_e, K = X K_e, V = X V_e, without bias.
/// Source: Vaswani et al. 2017, arXiv:1706.03762, eq. (1).
/// @param x [N, length · model_dim] in items, z [S, length · model_dim] out
/// @param causal  a position sees itself and earlier ones (which a NaN further on still reaches, as 0 · NaN)
/// @param saved  Q, K, V, context [S · L, D] and a log-sum-exp per row and head; never the probabilities
/// @throws ArgumentError unless sizes are at least 1 and heads divides model_dim
/// @cost   8·S·L·D² + 4·S·L²·D flop; scratch, one head at a time, S·L² + 3·S·L·D/H forward,
///         2·S·L² + 5·S·L·(D + D/H) backward
struct MultiHeadExpert {
  Index model_dim = 0, heads = 1, length = 1;
  bool causal = false;
  Initial initial{};

  template <class T, class B>
  struct Params {
    Tensor<T, 3, B> query, key, value, output;  // [E, D, D]
    template <class F, class... P>
    static void each(F&& f, P&... p) {
      f("query", p.query...);
      f("key", p.key...);
      f("value", p.value...);
      f("output", p.output...);
    }
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
    validate_options("MultiHeadExpert.init");
    const auto square = [&](std::uint64_t k) {
      return initial.weights<T>(ctx, seed.fork(k), experts, model_dim, model_dim);
    };
    return {square(0), square(1), square(2), square(3)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    validate_options("MultiHeadExpert");
    expect_shape("MultiHeadExpert", "params.query", p.query, {experts, model_dim, model_dim});
    expect_shape("MultiHeadExpert", "params.key", p.key, {experts, model_dim, model_dim});
    expect_shape("MultiHeadExpert", "params.value", p.value, {experts, model_dim, model_dim});
    expect_shape("MultiHeadExpert", "params.output", p.output, {experts, model_dim, model_dim});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    const SelfAttention<T, B> attention{ctx, groups, length, scale(), causal};
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    const View<const T, 2, B> rows = x.as(x.extent(0) * length, model_dim);
    for (auto* t : {&saved.q, &saved.k, &saved.v, &saved.context}) t->resize(slots.slots, model_dim);
    saved.log_sum_exp.resize(slots.slots, heads);
    B::grouped_gemm(ctx, tokens, rows, p.query.view(), false, saved.q.view(), fn::Store{});
    B::grouped_gemm(ctx, tokens, rows, p.key.view(), false, saved.k.view(), fn::Store{});
    B::grouped_gemm(ctx, tokens, rows, p.value.view(), false, saved.v.view(), fn::Store{});

    Head<T, B> head{ctx, slots, head_dim()};
    auto probabilities = ctx.template scratch<T>(slots.slots, length);
    for (Index h = 0; h < heads; ++h) {
      head.take(ctx, saved, h);
      attention.probabilities(ctx, head.q, head.k, probabilities, saved.log_sum_exp, h);
      attention.apply(ctx, probabilities, head.v, head.q);  // q is done with
      head.put(ctx, head.q, h, saved.context.view());
    }
    B::grouped_gemm(ctx, slots, std::as_const(saved.context).view(), p.output.view(), false,
                    z.as(slots.slots, model_dim), fn::Store{});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    auto mark = ctx.mark();
    const SelfAttention<T, B> attention{ctx, groups, length, scale(), causal};
    const Groups<B> tokens = position_groups(ctx, Positions<B>{groups, length}), slots = tokens.in_slot_order();
    const View<const T, 2, B> rows = x.as(x.extent(0) * length, model_dim), du = dz.as(slots.slots, model_dim);
    const auto wide = [&] { return ctx.template scratch<T>(slots.slots, model_dim); };
    const auto narrow = [&] { return ctx.template scratch<T>(slots.slots, head_dim()); };

    auto dcontext = wide(), dq = wide(), dk = wide(), dv = wide();
    B::grouped_outer(ctx, slots, saved.context.view(), du, grads.output.view());
    B::grouped_gemm(ctx, slots, du, p.output.view(), true, dcontext, fn::Store{});

    Head<T, B> head{ctx, slots, head_dim()};
    auto dhead = narrow(), result = narrow();
    auto pr = ctx.template scratch<T>(slots.slots, length), dpr = ctx.template scratch<T>(slots.slots, length);
    for (Index h = 0; h < heads; ++h) {
      head.take(ctx, saved, h);
      take_rows(ctx, slots, dcontext, dhead, h * head_dim());
      attention.again(ctx, head.q, head.k, saved.log_sum_exp, h, pr);
      attention.scores(ctx, dhead, head.v, dpr);
      fill(ctx, result, 0);
      attention.add_transposed(ctx, pr, dhead, result);
      head.put(ctx, result, h, dv);
      attention.probabilities_backward(ctx, dpr, pr);
      attention.apply(ctx, pr, head.k, result);
      head.put(ctx, result, h, dq);
      fill(ctx, result, 0);
      attention.add_transposed(ctx, pr, head.q, result);
      head.put(ctx, result, h, dk);
    }
    const View<const T, 2, B> from_q = dq, from_k = dk, from_v = dv;
    B::grouped_outer(ctx, tokens, rows, from_q, grads.query.view());
    B::grouped_outer(ctx, tokens, rows, from_k, grads.key.view());
    B::grouped_outer(ctx, tokens, rows, from_v, grads.value.view());
    B::grouped_gemm(ctx, slots, from_q, p.query.view(), true, dcontext, fn::Store{});  // dcontext is done with
    auto sum = wide();
    B::grouped_gemm(ctx, slots, from_k, p.key.view(), true, sum, fn::AddTo<T, B>{dcontext});
    B::grouped_gemm(ctx, slots, from_v, p.value.view(), true, dslots.as(slots.slots, model_dim), fn::AddTo<T, B>{sum});
  }

 private:
  /// The columns of one head, contiguous, so that a product can take them.
  template <class T, class B>
  struct Head {
    Groups<B> slots;
    View<T, 2, B> q, k, v;  // [S · L, D / H]

    Head(auto& ctx, Groups<B> rows, Index dim) : slots(rows) {
      for (auto* t : {&q, &k, &v}) *t = ctx.template scratch<T>(rows.slots, dim);
    }
    void take(auto& ctx, const Saved<T, B>& saved, Index h) const {
      take_rows(ctx, slots, saved.q, q, h * q.extent(1));
      take_rows(ctx, slots, saved.k, k, h * q.extent(1));
      take_rows(ctx, slots, saved.v, v, h * q.extent(1));
    }
    void put(auto& ctx, View<const T, 2, B> part, Index h, View<T, 2, B> all) const {
      B::for_rows(ctx, slots.slots, fn::PutHead<T, B>{slots, part, h * q.extent(1), all});
    }
  };

  Index head_dim() const { return model_dim / heads; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim())); }
  void validate_options(const char* where) const {
    expect(model_dim >= 1, where, "model_dim", "at least 1", model_dim);
    expect(length >= 1, where, "length", "at least 1", length);
    expect(heads >= 1 && model_dim % heads == 0, where, "heads", Joined{"a divisor of model_dim = ", model_dim}, heads);
  }
};

}  // namespace gatefold
