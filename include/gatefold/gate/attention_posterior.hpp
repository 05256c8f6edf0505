#pragma once

#include <cmath>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/gate/streamed_mixing.hpp"
#include "gatefold/routing/attention_trace.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/policy.hpp"

namespace gatefold {

/// Whose attention an AttentionPosterior follows.
enum class FollowedHead {
  lowest_entropy,              // of the sequence; where attention is causal, of the tokens up to the item itself
  lowest_entropy_of_sequence,  // also where attention is causal: one head per sequence, as the paper says
  every                        // the exact posterior over heads
};

namespace fn {

/// to[n,c] = from[n, first + c], and its adjoint: from[n, first + c] += to[n,c]
template <class T, class B>
struct TakeColumns {
  View<const T, 2, B> from;
  Index first;
  View<T, 2, B> to;
  GATEFOLD_HD void operator()(Index i) const {
    const Index columns = to.extent(1);
    to.data()[i] = from(i / columns, first + i % columns);
  }
};
template <class T, class B>
struct AddColumns {
  View<const T, 2, B> to;
  Index first;
  View<T, 2, B> from;
  GATEFOLD_HD void operator()(Index i) const {
    const Index columns = to.extent(1);
    from(i / columns, first + i % columns) += to.data()[i];
  }
};

template <class T>
struct Both {
  const T *a, *b;
  T* both;
  GATEFOLD_HD void operator()(Index n) const { both[n] = a[n] != 0 && b[n] != 0 ? T(1) : T(0); }
};
/// entropy[i] += −Σ_j A log A over one block of keys, log A = scale · score − log_sum_exp
template <class T, class B>
struct AttentionEntropy {
  Visible<T, B> visible;
  View<const T, 2, B> log_sum_exp;  // [N, heads]
  T scale;
  Index h, first_row, first_key;
  View<const T, 2, B> score;
  View<T, 2, B> entropy;  // [N, heads]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index i = first_row + row;
    T total = 0;
    for (Index j = lanes.lane; j < score.extent(1); j += lanes.size) {
      if (!visible.sees(i, first_key + j)) continue;
      const T log_a = scale * score(row, j) - log_sum_exp(i, h), a = std::exp(log_a);
      if (a > 0 && a < 1) total -= a * log_a;  // one key alone: exactly 0, not the rounding of log 1
    }
    total = lanes.sum(total);
    if (lanes.lane == 0) entropy(i, h) += total;
  }
};
/// head[i] = argmin_h of the mean entropy over the sequence, or over its items up to i; ties to the lower head. Padding does
/// not count.
template <class T, class B>
struct ChooseHead {
  View<const T, 2, B> entropy;
  View<const T, 1, B> valid;
  Index length;
  bool so_far;
  View<T, 2, B> total;  // [sequences, heads]
  View<Index, 1, B> head;
  GATEFOLD_HD void operator()(Index g) const {
    const Index heads = entropy.extent(1), end = (g + 1) * length;
    for (Index h = 0; h < heads; ++h) total(g, h) = 0;
    for (Index i = g * length; i < end; ++i) {
      if (!valid.data() || valid(i) != 0)
        for (Index h = 0; h < heads; ++h) total(g, h) += entropy(i, h);
      head(i) = 0;
      for (Index h = 1; h < heads; ++h)
        if (total(g, h) < total(g, head(i))) head(i) = h;
    }
    if (!so_far)
      for (Index i = g * length; i + 1 < end; ++i) head(i) = head(end - 1);
  }
};

/// Head h's part of the log posterior as one product: queries [scale · q_h, u / σ²], keys [k_h, m_h]. Rows that follow
/// another head are left alone, unless `everybody`.
template <class T, class B>
struct PosteriorFeatures {
  AttentionTrace<const T, B> a;
  View<const T, 2, B> x, means;  // [N, D]
  View<const Index, 1, B> head;
  bool everybody;
  Index h;
  T precision;
  View<T, 2, B> queries, keys;  // [N, F]
  GATEFOLD_HD void operator()(Index i) const {
    const Index columns = queries.extent(1), n = i / columns, c = i % columns, width = a.q.extent(1) / a.heads();
    if (!everybody && head(n) != h) return;
    queries(n, c) = c < width ? T(a.scale) * a.q(n, h * width + c) : precision * x(n, c - width);
    keys(n, c) = c < width ? a.k(n, h * width + c) : means(n, c - width);
  }
};
/// bias[j] = −‖m_j‖² / 2σ²
template <class T, class B>
struct PosteriorKeyBias {
  View<const T, 2, B> means;
  View<const Index, 1, B> head;
  bool everybody;
  Index h;
  T precision;
  T* bias;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    if (!everybody && head(n) != h) return;
    T square = 0;
    for (Index d = lanes.lane; d < means.extent(1); d += lanes.size) square += means(n, d) * means(n, d);
    square = lanes.sum(square);
    if (lanes.lane == 0) bias[n] = T(-0.5) * precision * square;
  }
};
/// bias[h,i]: −log_sum_exp of head h, so that A is normalised; or 0 for the head followed and −∞ for the others.
template <class T, class B>
struct PosteriorRowBias {
  View<const T, 2, B> log_sum_exp;
  View<const Index, 1, B> head;
  bool every;
  View<T, 2, B> bias;  // [heads, N]
  GATEFOLD_HD void operator()(Index k) const {
    const Index h = k / bias.extent(1), n = k % bias.extent(1);
    bias(h, n) = every ? -log_sum_exp(n, h) : head(n) == h ? T(0) : -T(INFINITY);
  }
};
/// The adjoints of features and biases: dq, dk, du, dm and dlog_sum_exp of head h.
template <class T, class B>
struct PosteriorFeaturesBackward {
  AttentionTrace<const T, B> a;
  AttentionTrace<T, B> da;
  View<const T, 2, B> means, dqueries, dkeys;
  View<const Index, 1, B> head;
  const T* dbias;
  bool everybody;
  Index h;
  T precision;
  View<T, 2, B> dx, dmeans;
  GATEFOLD_HD void operator()(Index i) const {
    const Index columns = dqueries.extent(1), n = i / columns, c = i % columns, width = a.q.extent(1) / a.heads();
    const bool mine = everybody || head(n) == h;
    if (c < width) {
      if (!mine) return;
      if (da.q.data()) da.q(n, h * width + c) += T(a.scale) * dqueries(n, c);
      if (da.k.data()) da.k(n, h * width + c) += dkeys(n, c);
    } else {
      const Index d = c - width;
      dmeans(n, d) = mine ? dkeys(n, c) - precision * dbias[n] * means(n, d) : T(0);
      if (mine) dx(n, d) += precision * dqueries(n, c);
    }
  }
};
template <class T, class B>
struct PosteriorRowBiasBackward {
  View<const T, 2, B> dbias;  // [heads, N]
  View<T, 2, B> dlog_sum_exp;
  GATEFOLD_HD void operator()(Index k) const {
    const Index h = k / dbias.extent(1), n = k % dbias.extent(1);
    dlog_sum_exp(n, h) -= dbias(h, n);
  }
};

}  // namespace fn

/// Tokens follow the tokens they attend to: the mixing of Attention-Aware gates.
///
///     r_j = softmax(z_j),   AP_h[i,j] ∝ A_h[i,j] exp(−‖u_i − m_h,j‖² / 2σ²),   m_h,j = v_h,j O_h          (1)
///     q_i = Σ_j AP_h*[i,j] r_j,   h* = argmin_h of the mean entropy of A_h                               (2)
///     q_i = Σ_h HP[i,h] Σ_j AP_h[i,j] r_j,   HP[i,h] ∝ Σ_j A_h[i,j] exp(−‖u_i − m_h,j‖² / 2σ²)           (3)
///
/// Source: paper 002 (Graph of Tokens), lemma 1, eq. (14)-(16); (3) with FollowedHead::every. Weights are formed as
/// log A + (⟨u_i, m_j⟩ − ‖m_j‖²/2)/σ² − log-sum-exp: ‖u_i‖² cancels, nothing underflows. A is recomputed from the trace of
/// the attention. σ → ∞ gives A, σ → 0 the token of nearest m.
/// mean_of_heads: the paper's MHA is the mean over heads, (1/H) Σ_h A_h X W_h, so that a usual attention's v O stands for
/// W_h / H; with it m is multiplied by H.
/// @param x      [N, D] in   items u;  z [N, E] in  logits;  q [N, E] out
/// @param extra  the trace (required; a Block supplies it), with attention's own mask, and padding
/// @param saved  r, log q [N, E], one log-sum-exp and one head per item; never the N × L matrix
/// @throws ArgumentError unless σ > 0 and the trace has N items of D and heads that divide D
/// @cost   2·N·L·D flop for the entropies, 2·N·D² for m, 2·N·L·(D/H + D) for the weights; three times that backward (half of
///         N·L if causal). The weights H times that, and N·H·D scratch, for `every` and for lowest_entropy under a
///         causal attention, where each item follows the head that was best so far
/// @order  keys in ascending order, ties of entropy to the lower head. Causal attention: no bit of an item depends on later
///         ones, except with lowest_entropy_of_sequence, which lets one choice look ahead. Padding mixes into nobody;
///         an item that sees nobody keeps its own r
struct AttentionPosterior {
  double sigma = 1;
  FollowedHead head = FollowedHead::lowest_entropy;
  bool mean_of_heads = true;
  bool only_confident = false;  // j runs over J_i = {j : H(r_j) ≤ H(r_i)} (paper 002, proposition 1)

  template <class T, class B>
  struct Extra {
    Required<AttentionTrace<const T, B>> trace;
    View<const T, 1, B> valid{};  // [N] 1 = item, 0 = padding; empty: all are items

    Extra with_valid(View<const T, 1, B> mask) const { return {trace, valid.data() ? valid : mask}; }
    struct WithoutTrace {
      View<const T, 1, B> valid{};
    };
    static Extra with_trace(const WithoutTrace& rest, const AttentionTrace<const T, B>& trace) {
      return {trace, rest.valid};
    }
  };
  template <class T, class B>
  struct ExtraGrad {
    AttentionTrace<T, B> trace;  // empty views: nobody asks
    void set_trace(const AttentionTrace<T, B>& to) { trace = to; }
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> r, log_q;     // [N, E]
    Tensor<T, 1, B> log_sum_exp;  // [N]
    Tensor<Index, 1, B> head;     // [N] the head followed
    template <class F>
    void choices(F&& f) const {
      for (Index n = 0; n < head.size(); ++n) f(head(n));
    }
  };

  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, const Extra<T, B>& extra) const {
    const AttentionTrace<const T, B>& a = extra.trace.value;
    expect(sigma > 0, "AttentionPosterior", "sigma", "more than 0", sigma);
    expect(std::isfinite(precision<T>()), "AttentionPosterior", "sigma", "so large that 1 / sigma² is finite", sigma);
    const Index dim = a.q.extent(1), heads = a.heads();
    for (const auto* t : {&a.q, &a.k, &a.v}) expect_shape("AttentionPosterior", "extra.trace.q, k, v", *t, {items, dim});
    expect_shape("AttentionPosterior", "extra.trace.log_sum_exp", a.log_sum_exp, {items, any_extent});
    expect_shape("AttentionPosterior", "extra.trace.output", a.output, {dim, dim});
    expect(heads >= 1 && dim % heads == 0, "AttentionPosterior", "extra.trace: heads",
           Joined{"a divisor of ", dim}, heads);
    expect(items == 0 || (a.length >= 1 && items % a.length == 0), "AttentionPosterior", "extra.trace.length",
           Joined{"a divisor of the number of items ", items}, a.length);
    if (extra.valid.data()) expect_shape("AttentionPosterior", "extra.valid", extra.valid, {items});
    if (a.valid.data()) expect_shape("AttentionPosterior", "extra.trace.valid", a.valid, {items});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Saved<T, B>& saved, const Extra<T, B>& extra) const {
    auto mark = ctx.mark();
    const Index items = z.extent(0);
    for (auto* t : {&saved.r, &saved.log_q}) t->resize(items, z.extent(1));
    saved.log_sum_exp.resize(items);
    saved.head.resize(items);
    B::for_rows(ctx, items, fn::Softmax<T, B>{z, saved.r});
    auto log_r = ctx.template scratch<T>(items, z.extent(1));
    B::for_rows(ctx, items, fn::LogSoftmax<T, B>{z, log_r});
    const View<const T, 1, B> valid = both_masks(ctx, extra);
    choose_head(ctx, extra, valid, saved.head.view());
    const Features<T, B> f = features(ctx, x, saved.head.view(), extra);
    mixing::forward<typename B::Context, T, B>(ctx, f.heads(), 1, visible<T, B>(ctx, saved.r, log_r, extra, valid),
                                               saved.r, log_r, q, saved.log_q, saved.log_sum_exp);
  }
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B>, const Saved<T, B>& saved) const {
    return saved.log_q;
  }
  /// Writes dz; adds to dx and to what dextra.trace points to.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, In<T, 2, B> z, In<T, 2, B> q,
                const Saved<T, B>& saved, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&, const Extra<T, B>& extra, ExtraGrad<T, B>& dextra) const {
    auto mark = ctx.mark();
    const AttentionTrace<const T, B>& a = extra.trace.value;
    const AttentionTrace<T, B>& da = dextra.trace;
    const Index items = x.extent(0), dim = x.extent(1), heads = a.heads(), width = dim / heads;
    auto log_r = ctx.template scratch<T>(items, z.extent(1)), dr = ctx.template scratch<T>(items, z.extent(1));
    B::for_rows(ctx, items, fn::LogSoftmax<T, B>{z, log_r});
    const Features<T, B> f = features(ctx, x, saved.head.view(), extra);
    Features<T, B> d = no_features<T, B>(ctx, items, dim, a);
    for (auto* t : {&d.queries, &d.keys}) fill(ctx, *t, 0);
    for (auto* t : {&d.row_bias, &d.key_bias})
      if (t->data()) fill(ctx, *t, 0);
    mixing::backward<typename B::Context, T, B>(ctx, f.heads(), 1, visible<T, B>(ctx, saved.r, log_r, extra, both_masks(ctx, extra)),
                                                saved.r, q, saved.log_sum_exp, drank, dq, dr, d.adjoint());
    auto dmeans = ctx.template scratch<T>(items, dim), means = ctx.template scratch<T>(items, dim);
    for (Index h = 0; h < heads; ++h) {
      auto inner = ctx.mark();
      const Index at = several(a) ? h : 0;
      auto v = means_of_head(ctx, a, h, means);
      B::for_each(ctx, items * (width + dim),
                  fn::PosteriorFeaturesBackward<T, B>{a, da, means, mixing::head(d.queries, at), mixing::head(d.keys, at),
                                                      saved.head, d.key_bias.data() + at * items, several(a), h, precision<T>(), dx,
                                                      dmeans});
      B::for_each(ctx, dmeans.size(), fn::Scale<T>{head_scale<T>(a), dmeans.data()});
      const View<const T, 2, B> dm = dmeans;
      if (da.output.data())
        B::gemm(ctx, View<const T, 2, B>(v), true, dm, false, true, da.output.rows(h * width, width), fn::Store{});
      if (da.v.data()) {
        B::gemm(ctx, dm, false, a.output.rows(h * width, width), true, false, v, fn::Store{});
        B::for_each(ctx, v.size(), fn::AddColumns<T, B>{v, h * width, da.v});
      }
    }
    if (head == FollowedHead::every && da.log_sum_exp.data())
      B::for_each(ctx, d.row_bias.size(), fn::PosteriorRowBiasBackward<T, B>{d.row_bias, da.log_sum_exp});
    B::for_rows(ctx, items, fn::SoftmaxBackward<T, B>{saved.r, dr, dz});
  }

 private:
  template <class T, class B>
  struct Features {
    View<T, 3, B> queries, keys;          // [H, N, D/H + D], H = 1 where an item's sequence follows one head
    View<T, 2, B> row_bias{}, key_bias{};  // [H, N]
    MixingHeads<const T, B> heads() const { return {queries, keys, row_bias, key_bias}; }
    MixingHeads<T, B> adjoint() const { return {queries, keys, row_bias, key_bias}; }
  };

  /// Whether items of one sequence may follow different heads.
  template <class A>
  bool several(const A& a) const {
    return head == FollowedHead::every || (head == FollowedHead::lowest_entropy && a.causal);
  }
  template <class T>
  T precision() const {
    return T(1 / (sigma * sigma));
  }
  template <class T, class A>
  T head_scale(const A& a) const {
    return mean_of_heads ? T(a.heads()) : T(1);
  }

  template <class T, class B>
  Features<T, B> no_features(auto& ctx, Index items, Index dim, const AttentionTrace<const T, B>& a) const {
    const Index parts = several(a) ? a.heads() : 1, columns = dim / a.heads() + dim;
    Features<T, B> f{ctx.template scratch<T>(parts, items, columns), ctx.template scratch<T>(parts, items, columns)};
    f.key_bias = ctx.template scratch<T>(parts, items);
    if (several(a)) f.row_bias = ctx.template scratch<T>(parts, items);
    return f;
  }
  /// m_h in `means`; returns v_h [N, D/H] in scratch.
  template <class T, class B>
  View<T, 2, B> means_of_head(auto& ctx, const AttentionTrace<const T, B>& a, Index h, View<T, 2, B> means) const {
    const Index width = a.q.extent(1) / a.heads();
    auto v = ctx.template scratch<T>(a.q.extent(0), width);
    B::for_each(ctx, v.size(), fn::TakeColumns<T, B>{a.v, h * width, v});
    B::gemm(ctx, View<const T, 2, B>(v), false, a.output.rows(h * width, width), false, false, means, fn::Store{});
    B::for_each(ctx, means.size(), fn::Scale<T>{head_scale<T>(a), means.data()});
    return v;
  }
  template <class T, class B>
  Features<T, B> features(auto& ctx, View<const T, 2, B> x, In<Index, 1, B> followed,
                          const Extra<T, B>& extra) const {
    const AttentionTrace<const T, B>& a = extra.trace.value;
    const Index items = x.extent(0);
    Features<T, B> f = no_features<T, B>(ctx, items, x.extent(1), a);
    auto mark = ctx.mark();
    auto means = ctx.template scratch<T>(items, x.extent(1));
    for (Index h = 0; h < a.heads(); ++h) {
      auto inner = ctx.mark();
      const Index at = several(a) ? h : 0;
      means_of_head(ctx, a, h, means);
      const View<T, 2, B> queries = mixing::head(f.queries, at), keys = mixing::head(f.keys, at);
      B::for_each(ctx, queries.size(),
                  fn::PosteriorFeatures<T, B>{a, x, means, followed, several(a), h, precision<T>(), queries, keys});
      B::for_rows(ctx, items,
                  fn::PosteriorKeyBias<T, B>{means, followed, several(a), h, precision<T>(), f.key_bias.data() + at * items});
    }
    if (several(a))
      B::for_each(ctx, f.row_bias.size(),
                  fn::PosteriorRowBias<T, B>{a.log_sum_exp, followed, head == FollowedHead::every, f.row_bias});
    return f;
  }
  /// What is an item for the attention and for the gate.
  template <class T, class B>
  static View<const T, 1, B> both_masks(auto& ctx, const Extra<T, B>& extra) {
    const View<const T, 1, B> of_attention = extra.trace.value.valid;
    if (!of_attention.data()) return extra.valid;
    if (!extra.valid.data()) return of_attention;
    auto both = ctx.template scratch<T>(extra.valid.size());
    B::for_each(ctx, both.size(), fn::Both<T>{extra.valid.data(), of_attention.data(), both.data()});
    return both;
  }
  template <class T, class B>
  void choose_head(auto& ctx, const Extra<T, B>& extra, In<T, 1, B> valid, Out<Index, 1, B> followed) const {
    if (head == FollowedHead::every) return fill(ctx, followed, 0);
    const AttentionTrace<const T, B>& a = extra.trace.value;
    auto mark = ctx.mark();
    const Index items = followed.size(), heads = a.heads(), width = a.q.extent(1) / heads;
    if (items == 0) return;
    auto entropy = ctx.template scratch<T>(items, heads), total = ctx.template scratch<T>(items / a.length, heads);
    auto q = ctx.template scratch<T>(Index(1), items, width), k = ctx.template scratch<T>(Index(1), items, width);
    fill(ctx, entropy, 0);
    const Visible<T, B> seen{a.length, a.causal, valid};
    for (Index h = 0; h < heads; ++h) {
      B::for_each(ctx, q.size(), fn::TakeColumns<T, B>{a.q, h * width, mixing::head(q, 0)});
      B::for_each(ctx, k.size(), fn::TakeColumns<T, B>{a.k, h * width, mixing::head(k, 0)});
      mixing::for_each_row_block(items, a.length, [&](Index row, Index rows) {
        mixing::for_each_key_block(row, rows, a.length, a.causal, [&](Index key, Index keys) {
          auto block = ctx.mark();
          const View<const T, 2, B> score = mixing::scores<typename B::Context, T, B>(ctx, {q, k}, 0, row, rows, key, keys);
          B::for_rows(ctx, rows, fn::AttentionEntropy<T, B>{seen, a.log_sum_exp, T(a.scale), h, row, key, score, entropy});
        });
      });
    }
    const bool so_far = head == FollowedHead::lowest_entropy && a.causal;
    B::for_each(ctx, items / a.length, fn::ChooseHead<T, B>{entropy, valid, a.length, so_far, total, followed});
  }
  template <class T, class B>
  Visible<T, B> visible(auto& ctx, View<const T, 2, B> r, View<const T, 2, B> log_r, const Extra<T, B>& extra,
                        In<T, 1, B> valid) const {
    const AttentionTrace<const T, B>& a = extra.trace.value;
    Visible<T, B> v{a.length, a.causal, valid};
    if (only_confident) v.entropy = mixing::entropies(ctx, r, log_r);
    return v;
  }
};

}  // namespace gatefold
