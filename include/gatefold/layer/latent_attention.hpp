#pragma once

#include <cmath>
#include <type_traits>

#include "gatefold/attention/attend_cache.hpp"
#include "gatefold/attention/attend_window.hpp"
#include "gatefold/attention/kv_cache.hpp"
#include "gatefold/attention/rotary.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/rms_norm.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/routing/sequence.hpp"

namespace gatefold {

/// Multi-head latent attention of DeepSeek-V2 and V3, as a branch: causal self-attention whose keys and values are
/// linear maps of a short vector, the latent vector of an item. A KV cache holds only the latent vector and the rotated
/// key of an item, or with `expanded_cache` the keys and values of all heads.
///
///     [c, r] = x W_latent,   [k_h, v_h] = norm(c) W_kv,   [q_h, s_h] = norm(x W_down) W_q               (1)
///     score_h = scale (⟨q_h, k_h⟩ + ⟨R(s_h), R(r)⟩),   u = concat_h(softmax(score_h) v_h) W_o           (2)
///
/// R rotates s_h, a part of the query, and r, a part of the key, by the position (Rotary). All heads share R(r).
/// Without W_down (query_rank = 0), the queries are x W_q. scale is 1/√(plain_dim + rotary_dim), times m² if
/// rotary.rope_type is not `original` and rotary.factor > 1, with m = 0.1 mscale_all_dim ln(factor) + 1.
///
/// Source: DeepSeek-AI 2024, arXiv:2405.04434, eq. (9) to (19); transformers' modeling_deepseek_v3.py.
/// @param x      [N, model_dim] in items, N = sequences · length;  u [N, model_dim] out
/// @param extra  items per sequence (0: all are one sequence), padding, and the KV cache of earlier items, whose size
///               `cache` returns. Only `infer` takes a cache. A row of the cache is norm(c) and R(r): latent_dim +
///               rotary_dim values. With `expanded_cache`, the cache has two rows for each head, a key and a value; the
///               narrower row is padded with zeros
/// @throws ArgumentError if query_rank < 0, another width or heads is less than 1, epsilon is not positive, or an
///         option of `rotary` or a shape is invalid
/// @cost   the linear maps, and 2·N·L·heads·(plain_dim + rotary_dim + value_dim) flop with L keys. In a step with a
///         cache, W_kv is applied to all earlier items again unless expanded_cache is true
/// @order  see attention/attend_window.hpp. No bit of the output of an item depends on later items, or on where the
///         caller divides a sequence into segments
struct LatentAttention {
  Index model_dim = 0, heads = 1;
  Index query_rank = 0;  // width of x W_down (q_lora_rank); 0: no W_down
  Index latent_dim = 0;  // width of c (kv_lora_rank)
  Index plain_dim = 0;   // width of the part of a query and key that is not rotated (qk_nope_head_dim)
  Index rotary_dim = 0;  // width of the rotated part (qk_rope_head_dim)
  Index value_dim = 0;   // width of a value (v_head_dim)
  Rotary rotary{.interleaved = true};
  bool bias = false;  // if true, W_down, W_latent and W_o have a bias
  // If true, a KV cache holds the keys and values of all heads. A step then does not compute the keys and values of
  // earlier items from latent vectors again.
  bool expanded_cache = false;
  double epsilon = 1e-6;  // is added to the mean square in the norms

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Linear::Params<T, B> query_down;   // empty if query_rank = 0
    RmsNorm::Params<T, B> query_norm;  // gain [1, query_rank]
    Linear::Params<T, B> query, latent;
    RmsNorm::Params<T, B> latent_norm;  // gain [1, latent_dim]
    Linear::Params<T, B> key_value, output;
    GATEFOLD_PACK(query_down, query_norm, query, latent, latent_norm, key_value, output)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> down, short_query;     // x W_down and norm(x W_down), both [N, query_rank]
    Tensor<T, 2, B> c, row;                // c [N, latent_dim]; row [N, latent_dim + rotary_dim]: norm(c), R(r)
    Tensor<T, 2, B> q, k, v;               // q, k [N, heads · (plain_dim + rotary_dim)], v [N, heads · value_dim]
    Tensor<T, 2, B> context, log_sum_exp;  // [N, heads · value_dim], [N, heads]
    RmsNorm::Saved<T, B> query_inverse, latent_inverse;
  };
  template <class T, class B>
  using Extra = CachedSequence<T, B>;

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  LatentAttention with_model_dim(Index width) const { return fill_model_dim(*this, "LatentAttention", width); }
  /// Returns the size of a KV cache for `layers` attentions like this one.
  /// @param longest  the largest number of items of a sequence
  CacheSize cache(Index layers, Index sequences, Index longest) const {
    return {.layers = layers, .sequences = sequences, .parts = cache_parts(), .width = cache_row(), .longest = longest};
  }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_options();
    Params<T, B> p{{},
                   {},
                   query().template init<T, B>(ctx, 1, seed.fork(0)),
                   latent().template init<T, B>(ctx, 1, seed.fork(1)),
                   {constant_tensor<T>(ctx, 1, 1, latent_dim)},
                   key_value().template init<T, B>(ctx, 1, seed.fork(2)),
                   output().template init<T, B>(ctx, 1, seed.fork(3))};
    if (query_rank > 0) {
      p.query_down = query_down().template init<T, B>(ctx, 1, seed.fork(4));
      p.query_norm = {constant_tensor<T>(ctx, 1, 1, query_rank)};
    }
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    constexpr const char* where = "LatentAttention";
    expect_options();
    if (query_rank > 0) {
      detail_::attending::expect_linear(where, "params.query_down.weight", "params.query_down.bias", query_down(),
                                        p.query_down);
      expect_shape(where, "params.query_norm.gain", p.query_norm.gain, {1, query_rank});
    }
    detail_::attending::expect_linear(where, "params.query.weight", "params.query.bias", query(), p.query);
    detail_::attending::expect_linear(where, "params.latent.weight", "params.latent.bias", latent(), p.latent);
    expect_shape(where, "params.latent_norm.gain", p.latent_norm.gain, {1, latent_dim});
    detail_::attending::expect_linear(where, "params.key_value.weight", "params.key_value.bias", key_value(),
                                      p.key_value);
    detail_::attending::expect_linear(where, "params.output.weight", "params.output.bias", output(), p.output);
    detail_::attending::expect_cached(where, extra, items, cache_parts(), cache_row(),
                                      expanded_cache ? "keys or values of a head" : "latent vector and rotated key", 0);
  }

  GATEFOLD_BRANCH_PASSES(LatentAttention)

 private:
  GATEFOLD_DECLARE_RUN

  /// Stores k and v of the current items in the cache, and computes the attention to all keys and values in the cache
  /// (expanded_cache).
  template <class T, class B>
  void attend_expanded(typename B::Context& ctx, View<const T, 2, B> q, View<const T, 2, B> k, View<const T, 2, B> v,
                       const Extra<T, B>& extra, View<T, 2, B> context, View<T, 2, B> log_sum_exp) const;

  Index cache_dim() const { return latent_dim + rotary_dim; }
  Index head_row() const { return key_dim() > value_dim ? key_dim() : value_dim; }
  Index cache_parts() const { return expanded_cache ? 2 * heads : 1; }
  Index cache_row() const { return expanded_cache ? head_row() : cache_dim(); }
  Index key_dim() const { return plain_dim + rotary_dim; }
  Linear query_down() const { return {model_dim, query_rank, bias}; }
  Linear query() const { return {query_rank > 0 ? query_rank : model_dim, heads * key_dim(), false}; }
  Linear latent() const { return {model_dim, cache_dim(), bias}; }
  Linear key_value() const { return {latent_dim, heads * (plain_dim + value_dim), false}; }
  Linear output() const { return {heads * value_dim, model_dim, bias}; }
  RmsNorm norm(Index width) const { return {width, epsilon}; }
  double scale() const {
    const double m = rotary.rope_type == RopeType::original || rotary.mscale_all_dim == 0 || rotary.factor <= 1
                         ? 1
                         : 0.1 * rotary.mscale_all_dim * std::log(rotary.factor) + 1;
    return m * m / std::sqrt(static_cast<double>(key_dim()));
  }
  /// Returns the struct of options and masks that the functions in attend_window.hpp take.
  /// @param past   the number of earlier items of each sequence
  /// @param valid  the mask of all keys
  template <class T, class B>
  detail_::attending::WindowForm<T, B> form(Index length, Index past, View<const T, 1, B> valid) const {
    return {.window = detail_::attending::last_keys(length, past, 0), .heads = heads, .scale = scale(), .valid = valid};
  }
  void expect_options() const {
    constexpr const char* where = "LatentAttention";
    expect_sizes(where, {{"model_dim", model_dim}, {"heads", heads}});
    expect(query_rank >= 0, where, "query_rank", "at least 0", query_rank);
    expect_sizes(
        where,
        {{"latent_dim", latent_dim}, {"plain_dim", plain_dim}, {"rotary_dim", rotary_dim}, {"value_dim", value_dim}});
    expect_positive(where, "epsilon", epsilon);
    rotary.validate(where, rotary_dim);
  }
};

namespace functor {

/// Writes the keys and values of all heads of one item. The item's vector key_value has two parts for each head h, and
/// R(r) is the rotated key that all heads share: k_h = [first part of head h, R(r)], v_h = second part of head h.
template <class T, class B>
struct SplitKeyValue {
  Index heads, plain, value, latent;
  View<const T, 2, B> key_value, row;  // [M, heads · (plain + value)], [M, latent + width of R(r)]
  View<T, 2, B> k, v;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index rotated = row.extent(1) - latent;
    const T* const shared = row.data() + n * row.extent(1) + latent;
    for (Index h = 0; h < heads; ++h) {
      const T* const from = &key_value(n, h * (plain + value));
      T *const key = &k(n, h * (plain + rotated)), *const to = &v(n, h * value);
      each_column<T>(lanes, plain, [&](auto at, Index j) { at.store(key + j, at.load(from + j)); });
      each_column<T>(lanes, rotated, [&](auto at, Index j) { at.store(key + plain + j, at.load(shared + j)); });
      each_column<T>(lanes, value, [&](auto at, Index j) { at.store(to + j, at.load(from + plain + j)); });
    }
  }
};
/// Backward pass of SplitKeyValue: writes the gradients of key_value and of the shared key R(r). The gradient of R(r)
/// is a sum over the heads.
template <class T, class B>
struct JoinKeyValue {
  Index heads, plain, value;
  View<const T, 2, B> dk, dv;
  View<T, 2, B> dkey_value, dshared;  // [N, heads · (plain + value)], [N, width of R(r)]
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index rotated = dshared.extent(1);
    for (Index h = 0; h < heads; ++h) {
      const T *const key = &dk(n, h * (plain + rotated)), *const from = &dv(n, h * value);
      T* const to = &dkey_value(n, h * (plain + value));
      each_column<T>(lanes, plain, [&](auto at, Index j) { at.store(to + j, at.load(key + j)); });
      each_column<T>(lanes, value, [&](auto at, Index j) { at.store(to + plain + j, at.load(from + j)); });
    }
    each_column<T>(lanes, rotated, [&](auto at, Index j) {
      auto total = at.load(&dk(n, plain + j));
      for (Index h = 1; h < heads; ++h) total = total + at.load(&dk(n, h * (plain + rotated) + plain + j));
      at.store(&dshared(n, j), total);
    });
  }
};

}  // namespace functor

template <class T, class B>
void LatentAttention::attend_expanded(typename B::Context& ctx, View<const T, 2, B> q, View<const T, 2, B> k,
                                      View<const T, 2, B> v, const Extra<T, B>& extra, View<T, 2, B> context,
                                      View<T, 2, B> log_sum_exp) const {
  const Index row = head_row(), rows = q.extent(0) * heads;
  const auto padded = [&](View<const T, 2, B> from, Index width) {
    if (width == row) return from;
    const View<T, 2, B> to = ctx.template scratch<T>(from.extent(0), heads * row);
    fill(ctx, to, 0);
    copy_columns(ctx, width, from.as(rows, width), 0, to.as(rows, row), 0);
    return View<const T, 2, B>(to);
  };
  const View<T, 2, B> wide = ctx.template scratch<T>(q.extent(0), heads * row);
  detail_::attending::attend_cached(ctx, extra.cache, heads, heads, scale(), 0, false, padded(q, key_dim()),
                                    padded(k, key_dim()), padded(v, value_dim), extra.valid, wide, log_sum_exp);
  copy_columns(ctx, value_dim, View<const T, 2, B>(wide.as(rows, row)), 0, context.as(rows, value_dim), 0);
}

template <class T, class B, class Keep, class Step>
void LatentAttention::run(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Keep keep,
                          const Extra<T, B>& extra, const Step& step) const {
  using S = Saved<T, B>;
  const Index items = x.extent(0);
  if constexpr (!std::is_null_pointer_v<Keep>) detail_::attending::expect_no_cache("LatentAttention.forward", extra);
  if (items == 0) return run_step(ctx, u, step);
  auto mark = ctx.mark();
  const View<const T, 2, B> now = without_padding<T, B>(ctx, x, extra.valid);
  const Index length = extra.of(items);
  Nothing<T, B> nothing{};
  const auto rows = [&](auto member, Index columns) {
    return keep_or_scratch<T, B>(ctx, keep, member, items, columns);
  };
  const auto normalise = [&](const RmsNorm& by, const RmsNorm::Params<T, B>& gain, View<const T, 2, B> from,
                             View<T, 2, B> to, auto inverse) {
    if constexpr (std::is_null_pointer_v<Keep>) {
      by.template infer<T, B>(ctx, gain, one_group(ctx, items), from, to);
    } else {
      by.template forward<T, B>(ctx, gain, one_group(ctx, items), from, to, keep->*inverse);
    }
  };
  View<const T, 2, B> of_query = now;
  if (query_rank > 0) {
    const View<T, 2, B> down = rows(&S::down, query_rank), to = rows(&S::short_query, query_rank);
    query_down().template forward<T, B>(ctx, p.query_down, one_group(ctx, items), now, down, nothing);
    normalise(norm(query_rank), p.query_norm, down, to, &S::query_inverse);
    of_query = to;
  }
  const View<T, 2, B> q = rows(&S::q, heads * key_dim()), c = rows(&S::c, latent_dim), row = rows(&S::row, cache_dim()),
                      context = rows(&S::context, heads * value_dim), log_sum_exp = rows(&S::log_sum_exp, heads);
  query().template forward<T, B>(ctx, p.query, one_group(ctx, items), of_query, q, nothing);
  latent().template forward<T, B>(ctx, p.latent, one_group(ctx, items), now, row, nothing);
  const View<T, 2, B> normed = ctx.template scratch<T>(items, latent_dim);
  copy_columns(ctx, latent_dim, row, 0, c, 0);
  normalise(norm(latent_dim), p.latent_norm, c, normed, &S::latent_inverse);
  copy_columns(ctx, latent_dim, normed, 0, row, 0);
  const auto table = detail_::attending::rotary_table<T>(ctx, rotary, rotary_dim, extra.cache.position, length);
  detail_::attending::rotate<T>(ctx, rotary, table, key_dim(), plain_dim, false, q);
  detail_::attending::rotate<T>(ctx, rotary, table, cache_dim(), latent_dim, false, row);

  View<const T, 2, B> all = row;
  detail_::attending::WindowForm<T, B> of = form<T, B>(length, 0, extra.valid);
  if (extra.has_cache() && !expanded_cache) {
    const CacheView<T, B>& cache = extra.cache;
    const Index count = cache.items + length;
    detail_::attending::store_rows<typename B::Context, T, B>(ctx, cache, row);
    detail_::attending::store_valid<typename B::Context, T, B>(ctx, cache, extra.valid, length);
    all = detail_::attending::read_rows<typename B::Context, T, B>(
        ctx, cache, cache.rows.as(cache.rows.extent(1), cache.rows.extent(2)), count);
    const View<const T, 2, B> mask = detail_::attending::read_rows<typename B::Context, T, B>(
        ctx, cache, cache.valid.as(cache.valid.size(), 1), count);
    of = form<T, B>(length, cache.items, mask.as(mask.size()));
  }
  const Index keys = all.extent(0);
  const auto for_keys = [&](auto member, Index columns) {
    return keep_or_scratch<T, B>(ctx, keep, member, keys, columns);
  };
  const View<T, 2, B> k = for_keys(&S::k, heads * key_dim()), v = for_keys(&S::v, heads * value_dim);
  const View<T, 2, B> short_keys = ctx.template scratch<T>(keys, latent_dim),
                      key_value_rows = ctx.template scratch<T>(keys, heads * (plain_dim + value_dim));
  copy_columns(ctx, latent_dim, all, 0, short_keys, 0);
  key_value().template forward<T, B>(ctx, p.key_value, one_group(ctx, keys), short_keys, key_value_rows, nothing);
  B::for_rows(ctx, keys,
              functor::SplitKeyValue<T, B>{heads, plain_dim, value_dim, latent_dim, key_value_rows, all, k, v});
  if (extra.has_cache() && expanded_cache)
    attend_expanded<T, B>(ctx, q, k, v, extra, context, log_sum_exp);
  else
    detail_::attending::forward(ctx, of, q, k, v, context, log_sum_exp, {});
  output().template forward<T, B>(ctx, p.output, one_group(ctx, items), context, u, nothing);
  run_step(ctx, u, step);
}

template <class T, class B>
void LatentAttention::run_backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x,
                                   const Saved<T, B>& saved, In<T, 2, B> du, Out<T, 2, B> dx, Params<T, B>& grads,
                                   const Extra<T, B>& extra, Nothing<T, B>&) const {
  constexpr const char* where = "LatentAttention.backward";
  const Index items = x.extent(0);
  expect_shape(where, "saved.q", saved.q, {items, heads * key_dim()});
  expect_shape(where, "saved.k", saved.k, {items, heads * key_dim()});
  expect_shape(where, "saved.v", saved.v, {items, heads * value_dim});
  expect_shape(where, "saved.row", saved.row, {items, cache_dim()});
  expect_shape(where, "saved.context", saved.context, {items, heads * value_dim});
  if (items == 0) return;
  auto mark = ctx.mark();
  const detail_::attending::WindowForm<T, B> of = form<T, B>(extra.of(items), 0, extra.valid);
  const View<const T, 2, B> now = without_padding<T, B>(ctx, x, extra.valid),
                            dnow = without_padding<T, B>(ctx, du, extra.valid);
  const Nothing<T, B> nothing{};
  const auto scratch = [&](Index columns) { return ctx.template scratch<T>(items, columns); };
  const auto zeros = [&](Index columns) {
    auto d = scratch(columns);
    fill(ctx, d, 0);
    return d;
  };
  const View<T, 2, B> dcontext = scratch(heads * value_dim);
  output().template backward<T, B>(ctx, p.output, one_group(ctx, items), saved.context, nothing, dnow, dcontext,
                                   grads.output);
  const View<T, 2, B> dq = zeros(heads * key_dim()), dk = zeros(heads * key_dim()), dv = zeros(heads * value_dim);
  detail_::attending::backward(ctx, of, saved.q, saved.k, saved.v, saved.context, saved.log_sum_exp, dcontext,
                               View<const T, 2, B>{}, dq, dk, dv, View<T, 2, B>{});

  const View<T, 2, B> dkey_value = scratch(heads * (plain_dim + value_dim)), dshared = scratch(rotary_dim),
                      short_keys = scratch(latent_dim), dnormed = scratch(latent_dim), dc = scratch(latent_dim),
                      drow = scratch(cache_dim()), from_latent = scratch(model_dim);
  const auto table = detail_::attending::rotary_table<T>(ctx, rotary, rotary_dim, 0, of.window.length);
  B::for_rows(ctx, items, functor::JoinKeyValue<T, B>{heads, plain_dim, value_dim, dk, dv, dkey_value, dshared});
  detail_::attending::rotate<T>(ctx, rotary, table, rotary_dim, 0, true, dshared);
  copy_columns(ctx, latent_dim, saved.row, 0, short_keys, 0);
  key_value().template backward<T, B>(ctx, p.key_value, one_group(ctx, items), short_keys, nothing, dkey_value, dnormed,
                                      grads.key_value);
  norm(latent_dim)
      .template backward<T, B>(ctx, p.latent_norm, one_group(ctx, items), saved.c, saved.latent_inverse, dnormed, dc,
                               grads.latent_norm);
  copy_columns(ctx, latent_dim, dc, 0, drow, 0);
  copy_columns(ctx, rotary_dim, dshared, 0, drow, latent_dim);
  latent().template backward<T, B>(ctx, p.latent, one_group(ctx, items), now, nothing, drow, from_latent, grads.latent);
  add(ctx, from_latent, dx);

  detail_::attending::rotate<T>(ctx, rotary, table, key_dim(), plain_dim, true, dq);
  const View<T, 2, B> from_query = scratch(model_dim);
  if (query_rank == 0) {
    query().template backward<T, B>(ctx, p.query, one_group(ctx, items), now, nothing, dq, from_query, grads.query);
  } else {
    const View<T, 2, B> dshort = scratch(query_rank), ddown = scratch(query_rank);
    query().template backward<T, B>(ctx, p.query, one_group(ctx, items), saved.short_query, nothing, dq, dshort,
                                    grads.query);
    norm(query_rank)
        .template backward<T, B>(ctx, p.query_norm, one_group(ctx, items), saved.down, saved.query_inverse, dshort,
                                 ddown, grads.query_norm);
    query_down().template backward<T, B>(ctx, p.query_down, one_group(ctx, items), now, nothing, ddown, from_query,
                                         grads.query_down);
  }
  add(ctx, from_query, dx);
}

}  // namespace gatefold
