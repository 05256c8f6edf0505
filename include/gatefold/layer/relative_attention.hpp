#pragma once

#include <cmath>

#include "gatefold/attention/attend_window.hpp"
#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/attention/heads.hpp"
#include "gatefold/attention/segment_memory.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/noise.hpp"

namespace gatefold {

/// Causal multi-head attention to a window of the last L items, with a learned key e_o for each relative position o
/// (position key). It is a branch. The window can begin in an earlier segment of the text, because the last items of
/// that segment are remembered. c are the remembered items, followed by the current items x. With q = x W_q, k = c W_k
/// and v = c W_v:
///
///     A_h[i,o] = softmax_o((⟨q_h,i, k_h,i+o⟩ + ⟨q_h,i, e_o⟩) / √(D/H)),   o = −(L − 1) … 0              (1)
///     u_i = concat_h(Σ_o A_h[i,o] v_h,i+o) O                                                           (2)
///
/// Softmax and sum use only the offsets o for which item i + o exists; h is one of H heads. Padding and items do not
/// attend to each other: u of padding is 0 for any values of the padding, and padding has no gradient. The position
/// keys e [L, D/H] come from a RelativeKeys around this attention or around its stack, and all heads share them.
/// Without RelativeKeys, the term with e is omitted. No gradient flows into remembered items.
///
/// Source: Sukhbaatar et al. 2019, arXiv:1905.07799, sec. 2, the attention of papers 001 and 002. `reference({…})` is
/// the attention of their code: o = −L … −1, so an item does not attend to itself. In their code, a stream also begins
/// with L items of zeros, to which items attend as to other keys (call SegmentMemory::begin with L).
/// @param x      [N, D] in items, N = sequences · length;  u [N, D] out
/// @param extra  items per sequence (0: all are one sequence), padding, position keys, memory of remembered items,
///         noise of dropout, and whether the caller reads the attention trace (a Block does). A memory of keys and
///         values is only for `infer`; forward needs a memory of items, because gradients flow through their keys and
///         values to W_k and W_v
/// @param saved  Q, context [N, D], K, V of all keys, and the log-sum-exp of each item and head; never an L × L matrix.
///         If the trace is needed, also the entropy of each item and head, and K, V without remembered items. The trace
///         describes the probabilities before dropout
/// @param dextra  `.relative`: the view to which backward adds the gradient of e. `.trace`: the gradient of the trace,
///         which Block sets; its views are empty outside a Block
/// @throws ArgumentError if heads does not divide model_dim, window < 1, dropout is not in [0, 1), length does not
///         divide N, or the memory or the position keys have wrong extents
/// @cost   8·N·D² + 6·N·L·D flop, and 4·D² for each remembered item; with a memory of keys and values, remembered items
///         add no flop, so each new item costs 8·D² + 6·L·D
/// @order  see attention/attend_window.hpp: no bit of the output of an item depends on later items, other sequences or
///         padding
struct RelativeAttention {
  Index model_dim = 0, heads = 1;
  Index window = 0;    // L, the largest number of keys to which an item attends
  double dropout = 0;  // dropout rate of the attention probabilities
  bool itself = true;  // if true, an item also attends to itself

  static RelativeAttention reference(RelativeAttention options) {
    options.itself = false;
    return options;
  }

  template <class T, class B>
  using Params = Attention::Params<T, B>;
  /// Saved values that only the attention trace needs (the tensors that a gate can read). They are empty unless a
  /// caller reads the trace.
  template <class T, class B>
  struct ForTrace {
    bool asked = false;
    Index length = 0;
    Tensor<T, 2, B> entropy;  // [N, heads] entropy of the attention weights A
    // Keys and values [N, D] without the remembered items. Empty if no items are remembered; the trace then uses
    // Saved.k and Saved.v.
    Tensor<T, 2, B> k, v;
    View<const T, 1, B> valid{};     // the caller's mask
    View<const T, 2, B> relative{};  // the caller's position keys e
  };
  template <class T, class B>
  struct Saved {
    // [keys, D] for each sequence the remembered items, then its items of x; empty if no items are remembered
    Tensor<T, 2, B> items;
    Tensor<T, 2, B> q, k, v;      // queries [N, D], keys [keys, D], values [keys, D]
    Tensor<T, 2, B> context;      // [N, D]
    Tensor<T, 2, B> log_sum_exp;  // [N, heads]
    ForTrace<T, B> trace;
  };
  template <class T, class B>
  struct Extra {
    Index length = 0;                // number of items per sequence; 0: all items are one sequence
    View<const T, 1, B> valid{};     // [N] 1 for items, 0 for padding; empty: no padding
    View<const T, 2, B> relative{};  // [window, D/H] position keys e; empty: no term with e
    AttentionMemory<T, B> memory{};  // items before this segment; empty: there are no such items
    Noise noise{};                   // empty: no dropout
    bool traced = false;             // true: the attention trace is needed

    Extra at(Index l) const { return {length, valid, relative, memory.at(l), noise.at(l), traced}; }
  };
  template <class T, class B>
  struct ExtraGrad {
    View<T, 2, B> relative{};      // gradient of the position keys, which backward adds to; empty: not computed
    AttentionTrace<T, B> trace{};  // gradient of the attention trace; empty outside a Block
  };

  GATEFOLD_BRANCH_CALLS;
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  RelativeAttention with_model_dim(Index width) const { return fill_model_dim(*this, "RelativeAttention", width); }
  /// Returns how many of the last items of a sequence must be remembered, because items of the next segment can attend
  /// to them.
  Index remembers() const { return span(1, 0, window).most(); }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_options();
    return projections().template init<T, B>(ctx, seed);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    validate_call(p, items, extra, true);
  }

  template <class T, class B, class Step = functor::NoStep<T>>
  [[gnu::noinline]] void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u,
                                 Saved<T, B>& saved, const Extra<T, B>& extra = {}, const Step& step = {}) const {
    validate_forward(p, x, u, extra, false);
    auto mark = ctx.mark();
    const detail_::attending::WindowForm<T, B> of = form(ctx, x.extent(0), extra);
    const View<const T, 2, B> now = without_padding<T, B>(ctx, x, extra.valid);
    const Index keys = x.extent(0) + of.window.past * sequences(x.extent(0), extra);
    saved.items.resize(of.window.past > 0 ? keys : 0, model_dim);
    for (auto* t : {&saved.q, &saved.context}) t->resize(x.extent(0), model_dim);
    for (auto* t : {&saved.k, &saved.v}) t->resize(keys, model_dim);
    saved.log_sum_exp.resize(x.extent(0), heads);
    if (of.window.past > 0)
      detail_::attending::join_past<typename B::Context, T, B>(ctx, of.window, extra.memory, 0, now, saved.items);
    const View<const T, 2, B> all = of.window.past > 0 ? View<const T, 2, B>(saved.items) : now;
    detail_::attending::project(ctx, now, p.query, saved.q);
    detail_::attending::project(ctx, all, p.key, saved.k);
    detail_::attending::project(ctx, all, p.value, saved.v);
    keep_for_trace(ctx, of, saved, extra);
    detail_::attending::forward(ctx, of, saved.q, saved.k, saved.v, saved.context, saved.log_sum_exp,
                                saved.trace.entropy);
    detail_::attending::project(ctx, saved.context, p.output, u);
    detail_::attending::remember(ctx, of.window, extra.memory, 0, all);
    detail_::attending::remember_valid(ctx, of.window, extra.memory, of.valid);
    run_step(ctx, u, step);
  }
  template <class T, class B, class Step = functor::NoStep<T>>
  [[gnu::noinline]] void infer(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u,
                               const Extra<T, B>& extra = {}, const Step& step = {}) const {
    validate_forward(p, x, u, extra, true);
    const bool projected = extra.memory.width() == 2 * model_dim;  // true: memory holds keys and values, not items
    auto mark = ctx.mark();
    const detail_::attending::WindowForm<T, B> of = form(ctx, x.extent(0), extra);
    const View<const T, 2, B> own = without_padding<T, B>(ctx, x, extra.valid);
    const auto scratch = [&](Index rows, Index columns) { return ctx.template scratch<T>(rows, columns); };
    const auto joined = [&](View<const T, 2, B> now, Index column) {
      return detail_::attending::with_past(ctx, of.window, extra.memory, column, now);
    };
    const View<T, 2, B> q = scratch(x.extent(0), model_dim), context = scratch(x.extent(0), model_dim),
                        log_sum_exp = scratch(x.extent(0), heads);
    const View<const T, 2, B> items = projected ? own : joined(own, 0);
    const View<T, 2, B> k = scratch(items.extent(0), model_dim), v = scratch(items.extent(0), model_dim);
    detail_::attending::project(ctx, own, p.query, q);
    detail_::attending::project(ctx, items, p.key, k);
    detail_::attending::project(ctx, items, p.value, v);
    const View<const T, 2, B> keys = projected ? joined(k, 0) : k, values = projected ? joined(v, model_dim) : v;
    detail_::attending::forward(ctx, of, q, keys, values, context, log_sum_exp, {});
    detail_::attending::project(ctx, context, p.output, u);
    detail_::attending::remember(ctx, of.window, extra.memory, 0, projected ? keys : items);
    if (projected) detail_::attending::remember(ctx, of.window, extra.memory, model_dim, values);
    detail_::attending::remember_valid(ctx, of.window, extra.memory, of.valid);
    run_step(ctx, u, step);
  }
  template <class T, class B>
  [[gnu::noinline]] void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x,
                                  const Saved<T, B>& saved, In<T, 2, B> du, Out<T, 2, B> dx, Params<T, B>& grads,
                                  const Extra<T, B>& extra, ExtraGrad<T, B>& dextra) const {
    expect_backward_shapes("RelativeAttention.backward", *this, x, du, dx);
    validate_call(p, x.extent(0), extra, false);
    expect_like("RelativeAttention.backward", "grads", p, grads);
    if (dextra.relative.data())
      expect_shape("RelativeAttention.backward", "dextra.relative", dextra.relative, {window, model_dim / heads});
    auto mark = ctx.mark();
    const detail_::attending::WindowForm<T, B> of = form(ctx, x.extent(0), extra);
    const Index keys = x.extent(0) + of.window.past * sequences(x.extent(0), extra);
    expect_shape("RelativeAttention.backward", "saved.items", saved.items, {of.window.past > 0 ? keys : 0, model_dim});
    detail_::attending::expect_saved("RelativeAttention.backward", saved, x.extent(0), keys, model_dim, heads);
    const View<const T, 2, B> now = without_padding<T, B>(ctx, x, extra.valid),
                              dnow = without_padding<T, B>(ctx, du, extra.valid);
    const View<const T, 2, B> all = of.window.past > 0 ? View<const T, 2, B>(saved.items) : now;
    const auto zeros = [&](Index rows) {
      auto d = ctx.template scratch<T>(rows, model_dim);
      fill(ctx, d, 0);
      return d;
    };
    const View<T, 2, B> dcontext = zeros(x.extent(0)), dq = zeros(x.extent(0)), dk = zeros(all.extent(0)),
                        dv = zeros(all.extent(0));
    detail_::attending::project_backward(ctx, saved.context, p.output, dnow, dcontext, grads.output);
    add_trace(ctx, of.window, dextra, dq, dk, dv, grads.output);
    detail_::attending::backward(ctx, of, saved.q, saved.k, saved.v, saved.context, saved.log_sum_exp, dcontext,
                                 dextra.trace.log_sum_exp, dq, dk, dv, dextra.relative);
    detail_::attending::project_backward(ctx, now, p.query, dq, dx, grads.query);
    const auto back = [&](const Tensor<T, 2, B>& w, View<const T, 2, B> d, Tensor<T, 2, B>& dw) {
      if (!dw.is_skipped()) B::gemm(ctx, all, true, d, false, true, dw.view(), functor::Store{});
      B::gemm(ctx, detail_::attending::without_past(ctx, of.window, d), false, w.view(), true, true, dx,
              functor::Store{});
    };
    back(p.key, dk, grads.key);
    back(p.value, dv, grads.value);
  }

  /// Returns the attention trace (the tensors that a gate can read) for the items of the current segment. Its views
  /// point into params, saved and the position keys e.
  /// @throws ArgumentError unless forward was called with extra.traced = true
  template <class T, class B>
  AttentionTrace<const T, B> trace(const Params<T, B>& p, const Saved<T, B>& saved) const {
    const ForTrace<T, B>& kept = saved.trace;
    expect(kept.asked, "RelativeAttention.trace", "extra.traced of forward", "true", "false");
    const bool apart = kept.k.extent(0) > 0;
    // The trace has only the keys of this segment, without remembered items. Its window is therefore limited to the
    // length of the segment.
    const detail_::attending::Window seen = span(kept.length, 0, window < kept.length ? window : kept.length);
    return {.q = saved.q,
            .k = apart ? kept.k : saved.k,
            .v = apart ? kept.v : saved.v,
            .log_sum_exp = saved.log_sum_exp,
            .output = p.output,
            .length = kept.length,
            .scale = scale(),
            .valid = kept.valid,
            .entropy = kept.entropy,
            .window = seen,
            .places = rows_if_any(kept.relative, window - seen.width, seen.width)};
  }

 private:
  double scale() const { return 1 / std::sqrt(static_cast<double>(model_dim / heads)); }
  template <class T, class B>
  void keep_for_trace(typename B::Context& ctx, const detail_::attending::WindowForm<T, B>& of, Saved<T, B>& saved,
                      const Extra<T, B>& extra) const {
    ForTrace<T, B>& kept = saved.trace;
    const Index items = extra.traced ? saved.q.extent(0) : 0;
    kept.asked = extra.traced;
    kept.length = of.window.length;
    kept.valid = extra.valid;
    kept.relative = extra.relative;
    kept.entropy.resize(items, heads);
    for (auto* t : {&kept.k, &kept.v}) t->resize(of.window.past > 0 ? items : 0, model_dim);
    detail_::attending::own_rows<typename B::Context, T, B>(ctx, of.window, saved.k, kept.k);
    detail_::attending::own_rows<typename B::Context, T, B>(ctx, of.window, saved.v, kept.v);
  }
  /// Adds the gradient of the attention trace (the tensors that a gate has read) to the gradients of queries, keys,
  /// values, output projection and position keys.
  template <class T, class B>
  static void add_trace(typename B::Context& ctx, const detail_::attending::Window& of, const ExtraGrad<T, B>& dextra,
                        View<T, 2, B> dq, View<T, 2, B> dk, View<T, 2, B> dv, Tensor<T, 2, B>& doutput) {
    const AttentionTrace<T, B>& from = dextra.trace;
    if (from.output.data() && !doutput.is_skipped()) add(ctx, from.output, doutput.view());
    if (from.q.data()) add(ctx, from.q, dq);
    if (from.k.data()) detail_::attending::add_own_rows<typename B::Context, T, B>(ctx, of, from.k, dk);
    if (from.v.data()) detail_::attending::add_own_rows<typename B::Context, T, B>(ctx, of, from.v, dv);
    if (!from.places.data() || !dextra.relative.data()) return;
    const Index farther = dextra.relative.extent(0) - from.places.extent(0);
    add(ctx, from.places, dextra.relative.rows(farther, from.places.extent(0)));
  }
  Attention projections() const { return {.model_dim = model_dim, .heads = heads}; }
  detail_::attending::Window span(Index length, Index past, Index width) const { return {length, past, width, itself}; }
  void expect_options() const {
    detail_::attending::expect_heads("RelativeAttention", model_dim, heads);
    expect(window >= 1, "RelativeAttention", "window", "at least 1", window);
    expect(0 <= dropout && dropout < 1, "RelativeAttention", "dropout", "0 <= dropout < 1", dropout);
  }
  template <class T, class B>
  static Index sequences(Index items, const Extra<T, B>& extra) {
    return extra.length > 0 ? items / extra.length : items > 0 ? 1 : 0;
  }
  /// Returns a WindowForm, the struct with window, options and padding mask that functions of attention/ take. The mask
  /// can be in scratch memory, so call ctx.mark() first.
  template <class T, class B>
  detail_::attending::WindowForm<T, B> form(typename B::Context& ctx, Index items, const Extra<T, B>& extra) const {
    const Index count = sequences(items, extra);
    const detail_::attending::Window seen =
        span(extra.length > 0 ? extra.length : items, extra.memory.items(count), window);
    return {.window = seen,
            .heads = heads,
            .scale = scale(),
            .relative = extra.relative,
            .rate = dropout,
            .noise = extra.noise,
            .valid =
                detail_::attending::valid_keys<typename B::Context, T, B>(ctx, seen, extra.memory, extra.valid, count)};
  }
  template <class T, class B>
  void validate_call(const Params<T, B>& p, Index items, const Extra<T, B>& extra, bool wide) const {
    expect_options();
    extra.noise.expect_given("RelativeAttention", dropout);
    detail_::attending::expect_projections("RelativeAttention", p, {model_dim, model_dim});
    Sequence<T, B>{extra.length, extra.valid}.validate("RelativeAttention.forward", items);
    if (extra.relative.data())
      expect_shape("RelativeAttention", "extra.relative", extra.relative, {window, model_dim / heads});
    const Index count = sequences(items, extra);
    if (count > 0)
      extra.memory.validate("RelativeAttention", span(items / count, extra.memory.items(count), window), count,
                            model_dim, wide, extra.valid.data() || extra.memory.valid.data());
  }
  template <class T, class B>
  void validate_forward(const Params<T, B>& p, View<const T, 2, B> x, View<T, 2, B> u, const Extra<T, B>& extra,
                        bool wide) const {
    expect_forward_shapes("RelativeAttention.forward", *this, x, "u", u);
    validate_call(p, x.extent(0), extra, wide);
  }
};

}  // namespace gatefold
