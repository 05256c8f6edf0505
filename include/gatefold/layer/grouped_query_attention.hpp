#pragma once

#include <cmath>
#include <type_traits>

#include "gatefold/attention/attend_cache.hpp"
#include "gatefold/attention/attend_window.hpp"
#include "gatefold/attention/heads.hpp"
#include "gatefold/attention/kv_cache.hpp"
#include "gatefold/attention/rotary.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/rms_norm.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/routing/sequence.hpp"

namespace gatefold {

/// Selects how GroupedQueryAttention divides queries and keys by their root mean square: not at all, separately for
/// each head (Qwen3), for all heads of an item together (OLMoE), or for each head after its rotation, without a gain
/// (Llama 4).
enum class QueryKeyNorm : char { none, head, all, rotated_head };

/// Causal self-attention of published decoders, as a branch. Several query heads share one key and value head, and
/// positions are rotary.
///
///     q = τ R(norm(x W_q + b_q)),   k = R(norm(x W_k + b_k)),   v = x W_v + b_v                         (1)
///     A_h = softmax(q_h k_gᵀ / √F) over the keys allowed,   g = ⌊h · kv_heads / heads⌋                   (2)
///     u = concat_h(σ_h A_h v_g) W_o + b_o                                                               (3)
///
/// R rotates by the position (Rotary); with rotary.partial_rotary_factor = 0, items have no positions. With
/// QueryKeyNorm::rotated_head, the norm follows the rotation. τ is a factor that depends on the position
/// (QueryTemperature), and F the number of values of a head. An item attends to itself and to earlier items of its
/// sequence. If `window` is set, it attends only to the last `window` positions, including its own. If `chunk` is set,
/// positions are divided into chunks of `chunk` positions, and an item attends only to items of its own chunk. Without
/// sinks, σ_h is 1. With sinks, each head has a learned score s_h, which takes part in the softmax like the score of a
/// key, but has no value: σ_h = sigmoid(log Σ_j exp(score_j) − s_h).
///
/// Source: Ainslie et al. 2023, arXiv:2305.13245 (grouped queries), and the models Mixtral, Qwen2-MoE, Qwen3-MoE,
/// OLMoE, gpt-oss and Llama 4 in Hugging Face's transformers. In transformers, chunks of a sequence with padding on the
/// left begin with its first item that is not padding; here they begin with its first item.
/// @param x      [N, model_dim] in items, N = sequences · length;  u [N, model_dim] out
/// @param extra  items per sequence (0: all are one sequence), padding, and the KV cache of earlier items. The function
///               `cache` returns the size of the cache. Only `infer` takes a cache. A cache can hold only the items of
///               the window or chunk, or all items, for example if it also serves layers without a window. Padding has
///               context 0
/// @param saved  q, context [N, heads · F], k, v [N, kv_heads · F], the log-sum-exp of each item and head, and q and k
///               before their norm
/// @throws ArgumentError if heads is not a multiple of kv_heads, both window and chunk are set, length does not divide
///         N, or an option of the positions or an extent of the cache is invalid
/// @cost   4·N·D·F·(heads + kv_heads) + 4·N·W·F·heads flop. W is the mean number of keys of an item: about the window,
///         half of a chunk, or L/2 without both. Without a cache, keys and values are copied for every query head if
///         heads are shared; with a cache, only the rows of the N items are copied
/// @order  see attention/attend_window.hpp: no bit of the output of an item depends on later items or on other
///         sequences. Without a window, with or without chunks, no bit depends on where the caller divides a sequence
///         into segments
struct GroupedQueryAttention {
  Index model_dim = 0, heads = 1;
  Index kv_heads = 0;  // 0: heads
  Index head_dim = 0;  // F; 0: model_dim / heads
  Rotary rotary{};
  bool bias = false, output_bias = false;  // bias of queries, keys and values; bias of the output
  QueryKeyNorm norm = QueryKeyNorm::none;
  double epsilon = 1e-6;  // is added to the mean square in the norm
  Index window = 0;       // 0: all earlier items
  bool sinks = false;
  Index chunk = 0;  // size of the chunks of positions to which attention is limited; 0: no chunks
  QueryTemperature temperature{};

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Linear::Params<T, B> query, key, value, output;
    RmsNorm::Params<T, B> query_norm, key_norm;  // gain [1, 0] unless norm is `head` or `all`
    Tensor<T, 2, B> sink;                        // [1, heads]; [1, 0] without sinks
    GATEFOLD_PACK(query, key, value, output, query_norm, key_norm, sink)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> q, k, v;               // q and k of (1), after norm, rotation and factor τ; v of (1)
    Tensor<T, 2, B> context, log_sum_exp;  // context A_h v_g before the factor σ_h; log-sum-exp of the scores
    Tensor<T, 2, B> plain_q, plain_k;      // queries and keys before the norm; empty without a norm
    RmsNorm::Saved<T, B> query_inverse, key_inverse;  // inverse root mean squares of the norms
  };
  template <class T, class B>
  using Extra = CachedSequence<T, B>;

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  GroupedQueryAttention with_model_dim(Index width) const {
    return fill_model_dim(*this, "GroupedQueryAttention", width);
  }
  /// Returns F, the number of values of a head.
  Index width() const { return head_dim > 0 ? head_dim : heads > 0 ? model_dim / heads : 0; }
  /// Returns the width of the keys of an item over all heads, kv_heads · F. The values of an item have the same width.
  Index kv_dim() const { return (kv_heads > 0 ? kv_heads : heads) * width(); }
  /// Returns the size of a KV cache for `layers` attentions like this one.
  /// @param longest  the largest number of items of a sequence
  CacheSize cache(Index layers, Index sequences, Index longest) const {
    return {.layers = layers,
            .sequences = sequences,
            .parts = cache_parts(),
            .width = width(),
            .longest = longest,
            .keep = reach() > 1 ? reach() - 1 : reach(),
            .absolute = chunk > 0 || temperature.floor_scale > 0};
  }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_options();
    return {
        query().template init<T, B>(ctx, 1, seed.fork(0)),        key().template init<T, B>(ctx, 1, seed.fork(1)),
        key().template init<T, B>(ctx, 1, seed.fork(2)),          output().template init<T, B>(ctx, 1, seed.fork(3)),
        {constant_tensor<T>(ctx, 1, 1, normed(heads * width()))}, {constant_tensor<T>(ctx, 1, 1, normed(kv_dim()))},
        constant_tensor<T>(ctx, 0, 1, sinks ? heads : 0)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    constexpr const char* where = "GroupedQueryAttention";
    expect_options();
    detail_::attending::expect_linear(where, "params.query.weight", "params.query.bias", query(), p.query);
    detail_::attending::expect_linear(where, "params.key.weight", "params.key.bias", key(), p.key);
    detail_::attending::expect_linear(where, "params.value.weight", "params.value.bias", key(), p.value);
    detail_::attending::expect_linear(where, "params.output.weight", "params.output.bias", output(), p.output);
    expect_shape(where, "params.query_norm.gain", p.query_norm.gain, {1, normed(heads * width())});
    expect_shape(where, "params.key_norm.gain", p.key_norm.gain, {1, normed(kv_dim())});
    expect_shape(where, "params.sink", p.sink, {1, sinks ? heads : 0});
    detail_::attending::expect_cached(where, extra, items, cache_parts(), width(), "keys or values of a head", reach());
  }

  GATEFOLD_BRANCH_PASSES(GroupedQueryAttention)

 private:
  GATEFOLD_DECLARE_RUN

  Index cache_parts() const { return 2 * (kv_heads > 0 ? kv_heads : heads); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(width())); }
  Linear query() const { return {model_dim, heads * width(), bias}; }
  Linear key() const { return {model_dim, kv_dim(), bias}; }
  Linear output() const { return {heads * width(), model_dim, output_bias}; }
  /// Returns the number of values that one norm with learned gains covers, or 0 if no norm has gains.
  /// @param all  number of values of all heads of an item
  Index normed(Index all) const { return norm == QueryKeyNorm::head ? width() : norm == QueryKeyNorm::all ? all : 0; }
  /// Returns the largest number of keys to which an item attends, or 0 if there is no limit.
  Index reach() const { return chunk > 0 ? chunk : window; }
  template <class T, class B>
  detail_::attending::WindowForm<T, B> form(Index items, const Extra<T, B>& extra) const {
    return {.window = detail_::attending::last_keys(extra.of(items), 0, reach(), chunk > 0),
            .heads = heads,
            .scale = scale(),
            .valid = extra.valid};
  }
  void expect_options() const {
    constexpr const char* where = "GroupedQueryAttention";
    expect_sizes(where, {{"model_dim", model_dim}, {"heads", heads}});
    expect(kv_heads >= 0 && (kv_heads == 0 || heads % kv_heads == 0), where, "kv_heads",
           Joined{"0 or a divisor of heads = ", heads}, kv_heads);
    expect(head_dim >= 1 || (head_dim == 0 && model_dim % heads == 0), where, "head_dim",
           Joined{"at least 1, or 0 if heads divides model_dim = ", model_dim}, head_dim);
    expect(window >= 0, where, "window", "at least 0", window);
    expect(chunk >= 0, where, "chunk", "at least 0", chunk);
    expect(chunk == 0 || window == 0, where, "chunk", Joined{"0, because window is ", window}, chunk);
    temperature.validate(where);
    expect_positive(where, "epsilon", epsilon);
    rotary.validate(where, width());
  }
  /// Computes x W + b, the queries or keys of all items before their rotation. Also normalises them if the norm has
  /// learned gains (QueryKeyNorm::head or all).
  template <class T, class B, class Keep, class Raw, class Inverse>
  View<T, 2, B> normed_projection(typename B::Context& ctx, const Linear& linear, const Linear::Params<T, B>& p,
                                  const RmsNorm::Params<T, B>& gain, View<const T, 2, B> x, View<T, 2, B> to, Keep keep,
                                  Raw raw, Inverse inverse) const {
    Nothing<T, B> nothing{};
    const Index together = gain.gain.extent(1);
    if (together == 0) {
      linear.template forward<T, B>(ctx, p, one_group(ctx, x.extent(0)), x, to, nothing);
      return to;
    }
    const View<T, 2, B> plain = keep_or_scratch<T, B>(ctx, keep, raw, to.extent(0), to.extent(1));
    linear.template forward<T, B>(ctx, p, one_group(ctx, x.extent(0)), x, plain, nothing);
    const Index rows = to.size() / together;
    const View<const T, 2, B> from(plain.data(), rows, together);
    const View<T, 2, B> z(to.data(), rows, together);
    const RmsNorm by{together, epsilon};
    if constexpr (std::is_null_pointer_v<Keep>) {
      by.template infer<T, B>(ctx, gain, one_group(ctx, rows), from, z);
    } else {
      by.template forward<T, B>(ctx, gain, one_group(ctx, rows), from, z, keep->*inverse);
    }
    return to;
  }
  /// Returns gains of 1 for the norm of a head, in scratch memory: [1, F].
  template <class T, class B>
  View<const T, 2, B> gain_of_one(typename B::Context& ctx) const {
    const View<T, 2, B> gain = ctx.template scratch<T>(1, width());
    fill(ctx, gain, 1);
    return gain;
  }
  /// Computes the queries or keys of equation (1), without the temperature τ.
  template <class T, class B, class Keep, class Raw, class Inverse>
  void rotated_projection(typename B::Context& ctx, const Linear& linear, const Linear::Params<T, B>& p,
                          const RmsNorm::Params<T, B>& gain, View<const T, 2, B> x, View<const T, 2, B> table,
                          View<T, 2, B> to, Keep keep, Raw raw, Inverse inverse) const {
    const bool norm_follows = norm == QueryKeyNorm::rotated_head;
    const View<T, 2, B> rotated = norm_follows ? keep_or_scratch<T, B>(ctx, keep, raw, to.extent(0), to.extent(1)) : to;
    normed_projection<T, B>(ctx, linear, p, gain, x, rotated, keep, raw, inverse);
    detail_::attending::rotate<T>(ctx, rotary, table, width(), 0, false, rotated);
    if (!norm_follows) return;
    const Index rows = to.size() / width();
    View<T, 1, B> kept{};
    if constexpr (!std::is_null_pointer_v<Keep>) {
      (keep->*inverse).inverse.resize(rows);
      kept = (keep->*inverse).inverse;
    }
    B::for_rows(ctx, rows,
                functor::RootMeanSquare<T, B>{one_group(ctx, rows), View<const T, 2, B>(rotated.data(), rows, width()),
                                              gain_of_one<T, B>(ctx), T(epsilon),
                                              View<T, 2, B>(to.data(), rows, width()), kept});
  }
  /// Returns the gradient of the queries or keys before their rotation. With QueryKeyNorm::rotated_head, returns the
  /// gradient before both rotation and norm.
  /// @param d  the gradient of the queries or keys after rotation (with rotated_head, after rotation and norm), in
  ///         scratch memory. With rotated_head, the result is in other scratch memory; otherwise the result overwrites
  ///         d
  template <class T, class B>
  View<T, 2, B> rotate_back(typename B::Context& ctx, View<const T, 2, B> table, const Tensor<T, 2, B>& plain,
                            const RmsNorm::Saved<T, B>& inverse, View<T, 2, B> d) const {
    View<T, 2, B> to = d;
    if (norm == QueryKeyNorm::rotated_head) {
      const Index rows = d.size() / width();
      expect_shape("GroupedQueryAttention.backward", "saved: queries or keys before the norm", plain,
                   {d.extent(0), d.extent(1)});
      expect_shape("GroupedQueryAttention.backward", "saved: inverse of the norm", inverse.inverse, {rows});
      to = ctx.template scratch<T>(d.extent(0), d.extent(1));
      const View<T, 2, B> of_gain = ctx.template scratch<T>(rows, width());
      B::for_rows(
          ctx, rows,
          functor::RootMeanSquareBackward<T, B>{one_group(ctx, rows), View<const T, 2, B>(plain.data(), rows, width()),
                                                gain_of_one<T, B>(ctx), View<const T, 2, B>(d.data(), rows, width()),
                                                inverse.inverse, View<T, 2, B>(to.data(), rows, width()), of_gain});
    }
    detail_::attending::rotate<T>(ctx, rotary, table, width(), 0, true, to);
    return to;
  }
  /// Returns the keys or values `kv` with one copy of each head for every query head that uses it. Returns kv itself if
  /// no query heads share a head.
  template <class T, class B>
  View<const T, 2, B> for_each_query_head(typename B::Context& ctx, View<const T, 2, B> kv) const {
    const Index all = heads * width();
    if (kv.extent(1) == all) return kv;
    const View<T, 2, B> to = ctx.template scratch<T>(kv.extent(0), all);
    B::for_rows(ctx, kv.extent(0), functor::RepeatHeads<T, B>{width(), all / kv.extent(1), kv, to});
    return to;
  }
  /// Returns the gradient of the items x, in scratch memory, from `d`, the gradient of the queries or keys before their
  /// rotation. Adds the gradients of the linear map and of the norm to `grads` and `dgain`.
  template <class T, class B>
  View<T, 2, B> back_to_items(typename B::Context& ctx, const Linear& linear, const Linear::Params<T, B>& p,
                              const RmsNorm::Params<T, B>& gain, View<const T, 2, B> x, const Tensor<T, 2, B>& plain,
                              const RmsNorm::Saved<T, B>& inverse, View<T, 2, B> d, Linear::Params<T, B>& grads,
                              RmsNorm::Params<T, B>& dgain) const {
    const Nothing<T, B> nothing{};
    View<const T, 2, B> dplain = d;
    if (const Index together = gain.gain.extent(1); together > 0) {
      const Index rows = d.size() / together;
      const View<T, 2, B> to = ctx.template scratch<T>(rows, together);
      RmsNorm{together, epsilon}.template backward<T, B>(ctx, gain, one_group(ctx, rows),
                                                         View<const T, 2, B>(plain.data(), rows, together), inverse,
                                                         View<const T, 2, B>(d.data(), rows, together), to, dgain);
      dplain = View<const T, 2, B>(to.data(), d.extent(0), d.extent(1));
    }
    const View<T, 2, B> dx = ctx.template scratch<T>(x.extent(0), model_dim);
    linear.template backward<T, B>(ctx, p, one_group(ctx, x.extent(0)), x, nothing, dplain, dx, grads);
    return dx;
  }
};

template <class T, class B, class Keep, class Step>
void GroupedQueryAttention::run(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u,
                                Keep keep, const Extra<T, B>& extra, const Step& step) const {
  using S = Saved<T, B>;
  const Index items = x.extent(0);
  if constexpr (!std::is_null_pointer_v<Keep>)
    detail_::attending::expect_no_cache("GroupedQueryAttention.forward", extra);
  if (items == 0) return run_step(ctx, u, step);
  auto mark = ctx.mark();
  const View<const T, 2, B> now = without_padding<T, B>(ctx, x, extra.valid);
  const auto rows = [&](auto member, Index columns) {
    return keep_or_scratch<T, B>(ctx, keep, member, items, columns);
  };
  const View<T, 2, B> q = rows(&S::q, heads * width()), k = rows(&S::k, kv_dim()), v = rows(&S::v, kv_dim()),
                      context = rows(&S::context, heads * width()), log_sum_exp = rows(&S::log_sum_exp, heads);
  const Index position = extra.cache.position, length = extra.of(items);
  const auto table = detail_::attending::rotary_table<T>(ctx, rotary, width(), position, length);
  rotated_projection<T, B>(ctx, query(), p.query, p.query_norm, now, table, q, keep, &S::plain_q, &S::query_inverse);
  rotated_projection<T, B>(ctx, key(), p.key, p.key_norm, now, table, k, keep, &S::plain_k, &S::key_inverse);
  detail_::attending::scale_by_position(ctx, temperature, position, length, q);
  Nothing<T, B> nothing{};
  key().template forward<T, B>(ctx, p.value, one_group(ctx, items), now, v, nothing);
  if (extra.has_cache()) {
    detail_::attending::attend_cached(ctx, extra.cache, heads, kv_dim() / width(), scale(), reach(), chunk > 0, q, k, v,
                                      extra.valid, context, log_sum_exp);
  } else {
    detail_::attending::forward(ctx, form(items, extra), q, for_each_query_head<T, B>(ctx, k),
                                for_each_query_head<T, B>(ctx, v), context, log_sum_exp, {});
  }
  View<T, 2, B> heard = context;
  if (sinks) {
    heard = ctx.template scratch<T>(items, heads * width());
    B::for_rows(ctx, items, functor::ApplySinks<T, B>{log_sum_exp, p.sink, context, heard});
  }
  output().template forward<T, B>(ctx, p.output, one_group(ctx, items), heard, u, nothing);
  run_step(ctx, u, step);
}

template <class T, class B>
void GroupedQueryAttention::run_backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x,
                                         const Saved<T, B>& saved, In<T, 2, B> du, Out<T, 2, B> dx, Params<T, B>& grads,
                                         const Extra<T, B>& extra, Nothing<T, B>&) const {
  constexpr const char* where = "GroupedQueryAttention.backward";
  const Index items = x.extent(0), all = heads * width();
  expect_shape(where, "saved.q", saved.q, {items, all});
  expect_shape(where, "saved.k", saved.k, {items, kv_dim()});
  expect_shape(where, "saved.v", saved.v, {items, kv_dim()});
  expect_shape(where, "saved.context", saved.context, {items, all});
  expect_shape(where, "saved.log_sum_exp", saved.log_sum_exp, {items, heads});
  if (items == 0) return;
  auto mark = ctx.mark();
  const detail_::attending::WindowForm<T, B> of = form(items, extra);
  const View<const T, 2, B> now = without_padding<T, B>(ctx, x, extra.valid),
                            dnow = without_padding<T, B>(ctx, du, extra.valid);
  const Nothing<T, B> nothing{};
  const auto scratch = [&](Index columns) { return ctx.template scratch<T>(items, columns); };
  const auto zeros = [&](Index columns) {
    auto d = scratch(columns);
    fill(ctx, d, 0);
    return d;
  };
  const View<T, 2, B> dcontext = scratch(all);
  View<const T, 2, B> heard = saved.context, dlog_sum_exp{};
  if (sinks) {
    const View<T, 2, B> scaled = scratch(all);
    B::for_rows(ctx, items, functor::ApplySinks<T, B>{saved.log_sum_exp, p.sink, saved.context, scaled});
    heard = scaled;
  }
  output().template backward<T, B>(ctx, p.output, one_group(ctx, items), heard, nothing, dnow, dcontext, grads.output);
  if (sinks) {
    const View<T, 2, B> of_lse = scratch(heads), of_sink = scratch(heads);
    B::for_rows(ctx, items,
                functor::ApplySinksBackward<T, B>{saved.log_sum_exp, p.sink, saved.context, dcontext, of_lse, of_sink});
    if (!grads.sink.is_skipped())
      B::grouped_sum(ctx, one_group(ctx, items), View<const T, 2, B>(of_sink), grads.sink.view());
    dlog_sum_exp = of_lse;
  }
  const View<T, 2, B> dq = zeros(all), dkeys = zeros(all), dvalues = zeros(all);
  detail_::attending::backward(ctx, of, saved.q, for_each_query_head<T, B>(ctx, saved.k),
                               for_each_query_head<T, B>(ctx, saved.v), saved.context, saved.log_sum_exp, dcontext,
                               dlog_sum_exp, dq, dkeys, dvalues, View<T, 2, B>{});
  const auto of_shared = [&](View<T, 2, B> d) {
    if (kv_dim() == all) return d;
    const View<T, 2, B> sum = scratch(kv_dim());
    B::for_rows(ctx, items, functor::SumHeads<T, B>{width(), all / kv_dim(), d, sum});
    return sum;
  };
  const View<T, 2, B> dk = of_shared(dkeys), dv = of_shared(dvalues);
  const auto table = detail_::attending::rotary_table<T>(ctx, rotary, width(), 0, of.window.length);
  detail_::attending::scale_by_position(ctx, temperature, 0, of.window.length, dq);
  add(ctx,
      back_to_items<T, B>(ctx, query(), p.query, p.query_norm, now, saved.plain_q, saved.query_inverse,
                          rotate_back<T, B>(ctx, table, saved.plain_q, saved.query_inverse, dq), grads.query,
                          grads.query_norm),
      dx);
  add(ctx,
      back_to_items<T, B>(ctx, key(), p.key, p.key_norm, now, saved.plain_k, saved.key_inverse,
                          rotate_back<T, B>(ctx, table, saved.plain_k, saved.key_inverse, dk), grads.key,
                          grads.key_norm),
      dx);
  const View<T, 2, B> of_values = scratch(model_dim);
  key().template backward<T, B>(ctx, p.value, one_group(ctx, items), now, nothing, dv, of_values, grads.value);
  add(ctx, of_values, dx);
}

}  // namespace gatefold
