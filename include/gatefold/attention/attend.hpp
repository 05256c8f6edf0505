#pragma once

#include <cmath>

#include "gatefold/attention/streamed_softmax.hpp"
#include "gatefold/tensor/expect_shape.hpp"

/// Computes multi-head self-attention from queries, keys and values that the caller has already projected. The caller
/// also applies the output projection.
///
///     A_h = softmax(scale · Q_h K_hᵀ) over the allowed keys of the sequence,   context = concat_h(A_h V_h)  (1)
///
/// A_h are the weights of head h. An allowed key is not padding and, if causal, not later than the item. Padding
/// attends to no keys. The context of an item without any allowed key is 0.
///
/// Source: Vaswani et al. 2017, arXiv:1706.03762, eq. (1).
///
/// Backward computes the weights again from the log-sum-exps. In addition to the error of the score, the weights have a
/// relative error of |score|·2⁻²⁴ in float (2⁻⁵³ in double).
/// @cost   4·N·L·D flop forward, 10·N·L·D backward. Both are half as large if causal and L is much larger than a block.
///         Scratch for the scores of the blocks, and for a few copies of q, k and v of those sequences that are
///         computed at the same time; no N × L matrix
/// @order  blocks of keys in ascending order; if causal, no bit of the results of forward for an item depends on later
///         items. In forward, an item with NaN affects only items for which it is an allowed key, and padding affects
///         no item. Backward computes products over whole blocks of keys. A NaN gradient therefore affects all items of
///         the sequence in the same block, causal or not, and the values of padding must be finite
namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), AttendFinish, AttendMean);

namespace detail_::attending {

/// The options of an attention over sequences of `length` items (tokens), with its mask of padding.
template <class T, class B>
struct Form {
  Index length, heads;  // items per sequence, number of heads
  double scale;
  bool causal;
  View<const T, 1, B> valid{};  // [N] mask: 1 for items, 0 for padding; empty: no padding
  // Used if the attention is an expert of a mixture of experts. Each sequence then belongs to a slot (one row of work
  // of an expert). `slots` is Groups::offsets [E + 1]: the first slot of each expert, then the end of the last expert's
  // slots. Only sequences of the slots from slots[0] to slots[E] − 1 are computed. If `slots` is empty, all sequences
  // are computed.
  View<const Index, 1, B> slots{};

  /// Returns the size limits of a range of items that one task computes. If a range has several short sequences, the
  /// scores of all their heads fit in one block.
  BlockSize range() const { return {BlockSize{}.rows, BlockSize{}.keys / heads}; }
};

/// A range of whole sequences in a call of an attention: the items [first, first + count). `of` returns the rows of an
/// input or output of the call that belong to these items. `split` also orders these rows by head.
template <class T, class B>
struct Part {
  Form<T, B> form;
  Index first, count;
  HeadRows rows{form.heads, form.length};
  InUse<B> items{form.slots, form.length, first};
  InUse<B> of_heads = items.times(form.heads);

  template <class V>
  V of(const V& all) const {
    return rows_if_any(all, first, count);
  }
  View<const T, 2, B> split(auto& ctx, View<const T, 2, B> all) const { return split_heads(ctx, rows, of(all), items); }
  Keys<T, B> keys(auto& ctx, View<const T, 2, B> values) const { return {ctx, of(form.valid), values, rows, of_heads}; }
  Mask<T, B> mask(const Keys<T, B>& keys) const {
    Mask<T, B> seen{.length = form.length, .causal = form.causal, .keys = keys.mask, .in_use = of_heads};
    if (form.valid.data()) seen.rows = keys.mask;
    return seen;
  }
};

/// Computes multi-head attention, equation (1) of this header.
/// @param q, k, v  [N, D] in
/// @param context  [N, D] out
/// @param log_sum_exp  [N, heads] out, the log-sum-exp of the scores of each item and head
/// @param entropy  [N, heads] out, the entropy of the attention weights of each item and head; if empty, it is not
///                 computed
template <class C, class T, class B>
void forward(C& ctx, const Form<T, B>& form, In<T, 2, B> q, In<T, 2, B> k, In<T, 2, B> v, Out<T, 2, B> context,
             Out<T, 2, B> log_sum_exp, Out<T, 2, B> entropy) {
  for_sequences(ctx, q.extent(0), form.length, form.range(), [&](C& own, Index first, Index count) {
    auto mark = own.mark();
    const Part<T, B> part{form, first, count};
    const View<const T, 2, B> queries = part.split(own, q), keys = part.split(own, k), values = part.split(own, v);
    const Keys<T, B> clean = part.keys(own, values);
    const Sums<T, B> sums(own, own.template scratch<T>(values.extent(0), values.extent(1)), entropy.data() != nullptr);
    add_keys<C, T, B>(own, queries, keys, form.scale, part.mask(clean), clean.values, sums);
    for_rows(own, count, part.items,
             functor::AttendFinish<T, B>{part.rows, T(form.scale), sums, part.of(context), part.of(log_sum_exp),
                                         part.of(entropy)});
  });
}
/// Backward pass of multi-head attention: adds the gradients of queries, keys and values to dq, dk and dv [N, D].
/// @param dlog_sum_exp  [N, heads] in, the gradient of log_sum_exp; if empty, this gradient is 0
template <class C, class T, class B>
void backward(C& ctx, const Form<T, B>& form, In<T, 2, B> q, In<T, 2, B> k, In<T, 2, B> v, In<T, 2, B> context,
              In<T, 2, B> log_sum_exp, In<T, 2, B> dcontext, In<T, 2, B> dlog_sum_exp, Out<T, 2, B> dq, Out<T, 2, B> dk,
              Out<T, 2, B> dv) {
  for_sequences(ctx, q.extent(0), form.length, form.range(), [&](C& own, Index first, Index count) {
    auto mark = own.mark();
    const Part<T, B> part{form, first, count};
    const View<const T, 2, B> queries = part.split(own, q), keys = part.split(own, k), values = part.split(own, v),
                              of_context = part.split(own, dcontext);
    const Keys<T, B> clean = part.keys(own, values);
    auto mean = own.template scratch<T>(values.extent(0)), normaliser = own.template scratch<T>(values.extent(0));
    for_rows(own, count, part.items,
             functor::AttendMean<T, B>{part.rows, part.of(context), part.of(dcontext), part.of(log_sum_exp),
                                       part.of(dlog_sum_exp), mean, normaliser});
    const auto sum_to = [&](View<T, 2, B> all) {
      if (form.heads == 1) return part.of(all);
      auto d = own.template scratch<T>(values.extent(0), values.extent(1));
      fill(own, d, 0);
      return d;
    };
    const View<T, 2, B> of_q = sum_to(dq), of_k = sum_to(dk), of_v = sum_to(dv);
    add_keys_backward<C, T, B>(own, queries, keys, form.scale, part.mask(clean), clean.values, normaliser, mean,
                               of_context, of_v, of_q, of_k);
    if (form.heads == 1) return;
    const auto add = [&](View<const T, 2, B> d, View<T, 2, B> to) {
      for_rows(own, count, part.items, functor::AddHeads<T, B>{part.rows, d, part.of(to)});
    };
    add(of_q, dq);
    add(of_k, dk);
    add(of_v, dv);
  });
}

/// Checks the extents of the values that an attention saved for backward: q, context and log_sum_exp of its items, k
/// and v of all keys.
/// @throws ArgumentError if an extent is wrong
void expect_saved(const char* where, const auto& saved, Index items, Index keys, Index model_dim, Index heads) {
  expect_shape(where, "saved.q", saved.q, {items, model_dim});
  expect_shape(where, "saved.k", saved.k, {keys, model_dim});
  expect_shape(where, "saved.v", saved.v, {keys, model_dim});
  expect_shape(where, "saved.context", saved.context, {items, model_dim});
  expect_shape(where, "saved.log_sum_exp", saved.log_sum_exp, {items, heads});
}

}  // namespace detail_::attending

namespace functor {

/// Finishes a streamed softmax (attention/streamed_softmax.hpp) for item n. For each head, writes the context (the
/// weighted sum of the values divided by the sum of the weights) and the log-sum-exp of the scores. Also writes the
/// entropy of the weights if `entropy` is not empty. All three are 0 for a row without keys.
template <class T, class B>
struct AttendFinish {
  detail_::attending::HeadRows rows;
  T scale;
  detail_::attending::Sums<T, B> of;
  View<T, 2, B> context, log_sum_exp, entropy;  // entropy: empty if it is not computed

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index width = of.sums.extent(1);
    for (Index h = 0; h < rows.heads; ++h) {
      const Index row = rows.row(n, h);
      const T total = of.total(row), divisor = total == 0 ? T(1) : total;
      each_column<T>(lanes, width, [&](auto at, Index c) {
        at.store(&context(n, h * width + c), at.load(&of.sums(row, c)) / divisor);
      });
      if (lanes.lane != 0) continue;
      log_sum_exp(n, h) = total == 0 ? T(0) : scale * of.top(row) + std::log(divisor);
      if (entropy.data()) entropy(n, h) = std::log(divisor) - of.scored(row) / divisor;
    }
  }
};
/// Prepares the backward pass of the attention weights A. Writes mean_i = ⟨dcontext_i, context_i⟩ − dlog_sum_exp_i for
/// each item i and head. The gradient of a score is then A[i,j] (⟨dcontext_i, v_j⟩ − mean_i), with v_j the value of key
/// j. Also copies log_sum_exp to split_log_sum_exp, in the order of rows of HeadRows.
template <class T, class B>
struct AttendMean {
  detail_::attending::HeadRows rows;
  View<const T, 2, B> context, dcontext, log_sum_exp, dlog_sum_exp;  // dlog_sum_exp: empty if it is 0
  View<T, 1, B> mean, split_log_sum_exp;                             // [N · H]

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index width = context.extent(1) / rows.heads;
    for (Index h = 0; h < rows.heads; ++h) {
      const T dot = sum_columns<T>(lanes, width, [&](auto at, Index c) {
        return at.load(&dcontext(n, h * width + c)) * at.load(&context(n, h * width + c));
      });
      if (lanes.lane != 0) continue;
      const Index row = rows.row(n, h);
      mean(row) = dlog_sum_exp.data() ? dot - dlog_sum_exp(n, h) : dot;
      split_log_sum_exp(row) = log_sum_exp(n, h);
    }
  }
};

}  // namespace functor

}  // namespace gatefold
