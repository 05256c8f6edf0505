#pragma once

#include <cmath>
#include <optional>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/mixing/streamed_mixing.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/routing/sequence.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), Identity);

/// A mixing in which similar items share their probabilities and therefore tend to go to the same experts
/// (Similarity-Aware gates). u_i is item i, z_i are its logits, W_s is a metric and τ a temperature.
///
///     r_j = softmax(z_j),   S[i,j] = softmax_j(u_iᵀ W_s u_j / τ),   q_i = Σ_j S[i,j] r_j                 (1)
///     rank = log q, computed as log Σ_j exp(log S + log r) if q underflows                              (2)
///
/// Source: paper 002 (Graph of Tokens), eq. (7), (8); W_s = I and τ = 1 in its experiments. j runs over the sequence of
/// i, and with `causal` only over j ≤ i. The paper has no causal mask, but without it the routing of a language model
/// would depend on future tokens. Scores grow with ‖u‖², so after a layer norm S is close to the identity unless τ is
/// of the order of √D. τ → 0 gives Independent for distinct items of equal norm, and τ → ∞ the mean of the sequence.
/// @param x      [N, D] in   items u;  z [N, E] in  logits;  q [N, E] out
/// @param extra  length of the sequences (0: one sequence), padding, and optionally τ for this call (Annealed has
///               schedules)
/// @param saved  r, log q [N, E] and one log-sum-exp per item. The N × L matrix S is never stored
/// @throws ArgumentError unless τ > 0, 1/τ is finite and not 0 in T, and the length divides N
/// @cost   2·N·L·D flop in forward and 6·N·L·D in backward (half if causal), and of the order of N·L·E flop more in
///         each; scratch memory for blocks of S
/// @order  sums run over j in ascending order; with `causal`, no bit of an item depends on later items. Padding mixes
///         into no item and keeps its own r. If an item that is not padding has NaN, all items that mix with it get NaN
struct TokenSimilarity {
  double tau = 1;
  bool causal = true;
  bool learned_metric = false;  // if true, W_s is learned and starts as the identity; if false, it is the identity
  // If true, item i takes probabilities only from items j with an entropy that is not larger than its own: H(r_j) ≤
  // H(r_i), with r the probabilities before mixing (paper 002, proposition 1).
  bool only_confident = false;
  Index model_dim = 0;  // width D of the items and of W_s [D, D]; 0: taken from the scores

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> metric;  // [D, D], [0, 0] unless learned_metric
    GATEFOLD_PACK(metric)
    static constexpr int expert_extents[] = {-1};
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> r, log_q;     // [N, E]
    Tensor<T, 1, B> log_sum_exp;  // [N]
  };
  template <class T, class B>
  struct Extra {
    Index length = 0;             // items per sequence; 0: all items are one sequence
    View<const T, 1, B> valid{};  // [N] mask: 1 = item, 0 = padding; empty: no padding
    std::optional<double> tau{};  // τ for this call; if empty, the option `tau`

    Extra with_valid(View<const T, 1, B> mask) const { return {length, valid.data() ? valid : mask, tau}; }
  };

  TokenSimilarity with_model_dim(Index width) const { return fill_model_dim(*this, "TokenSimilarity", width); }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed) const {
    expect(tau > 0, "TokenSimilarity", "tau", "more than 0", tau);
    expect(!learned_metric || model_dim >= 1, "TokenSimilarity.init", "model_dim", "at least 1", model_dim);
    const Index size = learned_metric ? model_dim : 0;
    Params<T, B> p{Tensor<T, 2, B>(size, size)};
    B::for_each(ctx, p.metric.size(), functor::Identity<T>{size, p.metric.data()});
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    const Index size = learned_metric ? model_dim : 0;
    expect_shape("TokenSimilarity", "params.metric", p.metric, {size, size});
    expect(temperature(extra) > 0, "TokenSimilarity", "tau", "more than 0", temperature(extra));
    expect(std::isfinite(T(1 / temperature(extra))) && T(1 / temperature(extra)) > 0, "TokenSimilarity", "tau",
           "a value for which 1 / tau is finite and not 0", temperature(extra));
    Sequence<T, B>{extra.length, extra.valid}.validate("TokenSimilarity.forward", items);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Saved<T, B>& saved, const Extra<T, B>& extra) const {
    auto mark = ctx.mark();
    for (auto* t : {&saved.r, &saved.log_q}) t->resize(z.extent(0), z.extent(1));
    saved.log_sum_exp.resize(z.extent(0));
    B::for_rows(ctx, z.extent(0), functor::Softmax<T, B>{z, saved.r});
    const View<const T, 2, B> log_r = log_probabilities<T, B>(ctx, z);
    const View<const T, 2, B> queries = learned_metric ? times_metric(ctx, x, p) : x;
    detail_::mixing::forward<typename B::Context, T, B>(ctx, heads(queries, x), 1 / temperature(extra),
                                                        visible<T, B>(ctx, saved.r, log_r, extra), saved.r, log_r, q,
                                                        saved.log_q, saved.log_sum_exp);
  }
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B>, const Saved<T, B>& saved) const {
    return saved.log_q;
  }
  /// Writes the gradient of the logits to dz. Adds the gradients of the items and of the parameters to dx and grads.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> z, In<T, 2, B> q,
                const Saved<T, B>& saved, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B> dx,
                Params<T, B>& grads, const Extra<T, B>& extra, Nothing<T, B>&) const {
    expect_shape("TokenSimilarity.backward", "saved.r", saved.r, {z.extent(0), z.extent(1)});
    expect_shape("TokenSimilarity.backward", "saved.log_q", saved.log_q, {z.extent(0), z.extent(1)});
    expect_shape("TokenSimilarity.backward", "saved.log_sum_exp", saved.log_sum_exp, {z.extent(0)});
    auto mark = ctx.mark();
    const View<const T, 2, B> log_r = only_confident ? log_probabilities<T, B>(ctx, z) : View<const T, 2, B>{};
    auto dr = ctx.template scratch<T>(z.extent(0), z.extent(1));
    View<T, 2, B> dqueries = dx;
    if (learned_metric) {
      dqueries = ctx.template scratch<T>(x.extent(0), x.extent(1));
      fill(ctx, dqueries, 0);
    }
    const View<const T, 2, B> queries = learned_metric ? times_metric(ctx, x, p) : x;
    detail_::mixing::backward<typename B::Context, T, B>(ctx, heads(queries, x), 1 / temperature(extra),
                                                         visible<T, B>(ctx, saved.r, log_r, extra), saved.r, q,
                                                         saved.log_sum_exp, drank, dq, dr, {one(dqueries), one(dx)});
    if (learned_metric) {
      if (!grads.metric.is_skipped())
        B::gemm(ctx, x, true, View<const T, 2, B>(dqueries), false, true, grads.metric.view(), functor::Store{});
      B::gemm(ctx, View<const T, 2, B>(dqueries), false, p.metric.view(), true, true, dx, functor::Store{});
    }
    B::for_rows(ctx, z.extent(0), functor::SoftmaxBackward<T, B>{saved.r, dr, dz});
  }

 private:
  double temperature(const auto& extra) const { return extra.tau.value_or(tau); }
  template <class V>
  static auto one(const V& rows) {
    return rows.as(Index(1), rows.extent(0), rows.extent(1));
  }
  template <class T, class B>
  static MixingHeads<const T, B> heads(View<const T, 2, B> queries, View<const T, 2, B> keys) {
    return {one(queries), one(keys)};
  }
  template <class T, class B>
  static View<const T, 2, B> log_probabilities(auto& ctx, View<const T, 2, B> z) {
    auto log_r = ctx.template scratch<T>(z.extent(0), z.extent(1));
    B::for_rows(ctx, z.extent(0), functor::LogSoftmax<T, B>{z, log_r});
    return log_r;
  }
  template <class T, class B>
  static View<const T, 2, B> times_metric(auto& ctx, View<const T, 2, B> x, const Params<T, B>& p) {
    auto v = ctx.template scratch<T>(x.extent(0), x.extent(1));
    B::gemm(ctx, x, false, p.metric.view(), false, false, v, functor::Store{});
    return v;
  }
  template <class T, class B>
  Visible<T, B> visible(auto& ctx, View<const T, 2, B> r, View<const T, 2, B> log_r, const Extra<T, B>& extra) const {
    Visible<T, B> v{Sequence<T, B>{extra.length}.of(r.extent(0)), causal, extra.valid};
    if (only_confident) v.entropy = detail_::mixing::entropies(ctx, r, log_r);
    return v;
  }
};

namespace functor {

/// Writes element i, in row-major order, of the identity matrix w.
template <class T>
struct Identity {
  Index columns;
  T* w;
  GATEFOLD_HD void operator()(Index i) const { w[i] = i / columns == i % columns ? T(1) : T(0); }
};

}  // namespace functor

}  // namespace gatefold
