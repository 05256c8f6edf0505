#pragma once

#include <cmath>
#include <limits>

#include "gatefold/attention/mask.hpp"
#include "gatefold/attention/products.hpp"
#include "gatefold/backend/math.hpp"

/// Computes weighted means of values under a softmax of scores, as in attention, without an N × N matrix for N items.
///
///     w[i,j] = exp(scale · ⟨queries_i, keys_j⟩) for the keys j visible to item i, else 0                (1)
///     y[i,:] = Σ_j w[i,j] values[j,:] / Σ_j w[i,j]                                                     (2)
///
/// The backend's products compute the scores block by block. The scores of a block are used immediately and are not
/// kept. For each row, the sums of (2) are kept relative to the largest score so far, and are rescaled when a larger
/// score appears. Backward computes the scores again and normalises them with the log-sum-exp.
namespace gatefold {

namespace functor {

/// Computes the weights of one row of a block in a streamed softmax. Replaces each score by the unnormalised weight
/// exp(scale · (score − the row's largest score so far)), or by 0 if the key is hidden, and updates the sums of the
/// row. With t = scale · (score − the largest score), the entropy of the weights is log Σ e^t − Σ t e^t / Σ e^t, in
/// which both terms are at least 0.
template <class T, class B, class MaskT = detail_::attending::Mask<T, B>>
struct SoftmaxBlock {
  MaskT mask;
  detail_::attending::Block block;
  T scale;
  View<T, 2, B> score;       // [rows, keys] scores of the block
  View<T, 1, B> top, total;  // [N] of each row: largest score so far, sum of the weights
  View<T, 1, B> scored;      // [N] of each row: sum for the entropy (see above); empty: not computed
  View<T, 2, B> sums;        // [N, E] of each row: weighted sum of the values

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const Index to = block.row + row, i = mask.item(block, row), first = mask.first(block, row),
                key = block.first_key(row) + first, count = mask.count(block, row);
    const auto seen = [&](auto at, Index j) { return mask.seen(at, i, key + j, at.load(&score(row, first + j))); };
    const T highest = max_columns<T>(lanes, count, seen), before = top(to), best = highest > before ? highest : before;
    const T shift = best == -T(INFINITY) ? T(0) : best,
            keep = best == before ? T(1) : std::exp(scale * (before - best));
    using functor::math::exp;
    using functor::math::where_positive;
    const auto exponent = [&](auto at, Index j) { return (seen(at, j) - shift) * scale; };
    // This order of steps keeps few values in registers: steps that need no sum come first, and the previous largest
    // score is read again at the end.
    hide(lanes, score, row, first, count);
    if (keep != 1)
      each_column<T>(lanes, sums.extent(1),
                     [&](auto at, Index e) { at.store(&sums(to, e), at.load(&sums(to, e)) * keep); });
    TwoValues<T> more{0, 0};
    if (scored.data()) {
      more = sum_two_columns<T>(lanes, count, [&](auto at, Index j) {
        const auto t = exponent(at, j), w = exp(t);
        at.store(&score(row, first + j), w);
        return TwoValues{w, where_positive(w, w * t, w)};
      });
    } else {
      more.first = sum_columns<T>(lanes, count, [&](auto at, Index j) {
        const auto w = exp(exponent(at, j));
        at.store(&score(row, first + j), w);
        return w;
      });
    }
    if (lanes.lane != 0) return;
    if (scored.data()) {
      const T all = total(to) > 0 ? scored(to) + total(to) * scale * (top(to) - best) : T(0);
      scored(to) = (keep > 0 ? keep * all : T(0)) + more.second;
    }
    total(to) = total(to) * keep + more.first;
    top(to) = best;
  }

  /// Sets the scores of a row to 0, except those of its visible columns [first, first + count).
  GATEFOLD_HD static void hide(const auto& lanes, View<T, 2, B> of, Index row, Index first, Index count) {
    T* const scores = of.data() + row * of.extent(1);
    zero_columns(lanes, scores, first);
    zero_columns(lanes, scores + first + count, of.extent(1) - first - count);
  }
};

/// Backward pass of row i of a block in a streamed softmax. On entry, `slope` holds ⟨g_i, values_j⟩, with g_i the
/// gradient of the row's output. Replaces `score` by its gradient scale · w (⟨g_i, values_j⟩ − mean_i), and `slope` by
/// the normalised weight w. mean_i is the row's entry of `mean`.
template <class T, class B, class MaskT = detail_::attending::Mask<T, B>>
struct SoftmaxBlockBackward {
  MaskT mask;
  detail_::attending::Block block;
  T scale;
  View<const T, 1, B> log_sum_exp;  // [N] log-sum-exp of the scores of each item
  View<const T, 1, B> mean;         // [N] of each row: mean_i (see above)
  View<T, 2, B> score, slope;       // [rows, keys]

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const Index i = mask.item(block, row), first = mask.first(block, row), key = block.first_key(row) + first,
                count = mask.count(block, row);
    // If all keys of an item are hidden, the caller passes −∞ or 0 as its log-sum-exp. The normaliser is 0 in both
    // cases, so that every weight is exp(−∞) = 0.
    const T normaliser = log_sum_exp(i) == -T(INFINITY) ? T(0) : log_sum_exp(i), shift = mean(block.row + row);
    each_column<T>(lanes, count, [&](auto at, Index j) {
      using functor::math::exp;
      using functor::math::where_positive;
      const auto w = exp(mask.seen(at, i, key + j, at.load(&score(row, first + j))) * scale - normaliser);
      // If the weight is 0, the gradient is 0 for any slope. If the weight is NaN, the gradient is NaN.
      at.store(&score(row, first + j), where_positive(w, w * scale * (at.load(&slope(row, first + j)) - shift), w));
      at.store(&slope(row, first + j), w);
    });
    SoftmaxBlock<T, B>::hide(lanes, score, row, first, count);
    SoftmaxBlock<T, B>::hide(lanes, slope, row, first, count);
  }
};

}  // namespace functor

namespace detail_::attending {

/// The state of a streamed softmax, in scratch memory: for each row, sums over the keys so far. N is the number of
/// rows, and E is the number of values of a key.
template <class T, class B>
struct Sums {
  View<T, 1, B> top, total;  // [N] of each row: largest score, sum of the weights relative to this score
  View<T, 2, B> sums;        // [N, E] of each row: weighted sum of the values
  View<T, 1, B> scored{};    // [N] of each row: the sum for the entropy (functor::SoftmaxBlock); empty: not computed

  template <class C>
  Sums(C& ctx, View<T, 2, B> out, bool with_entropy = false)
      : top(ctx.template scratch<T>(out.extent(0))), total(ctx.template scratch<T>(out.extent(0))), sums(out) {
    if (with_entropy) {
      scored = ctx.template scratch<T>(out.extent(0));
      fill(ctx, scored, 0);
    }
    fill(ctx, top, -std::numeric_limits<T>::infinity());
    fill(ctx, total, 0);
    fill(ctx, sums, 0);
  }
};

/// Position keys (a key for each place in the window of an attention), in addition to the keys of items. See
/// attention/window.hpp.
template <class T, class B>
struct Places {
  View<const T, 2, B> keys{};  // [width, F] position keys; empty: none
  View<T, 2, B> of_each{};     // [sequences · width, F] gradient of `keys`, separate for each sequence

  /// Adds the scores of the position keys to `score`, which holds the scores of a block.
  template <class C>
  void add(C& ctx, const Block& block, const Mask<T, B>& mask, View<const T, 2, B> queries, View<T, 2, B> score) const {
    if (keys.empty()) return;
    const View<const T, 2, B> position = position_scores(ctx, block, queries, keys);
    B::for_rows(ctx, block.all_rows(),
                functor::WindowScores<T, B>{mask.window, block, mask.keys, position, score, mask.following});
  }
  template <class C>
  void add_backward(C& ctx, const Block& block, const Mask<T, B>& mask, View<const T, 2, B> queries,
                    View<const T, 2, B> dscore, View<T, 2, B> dqueries) const {
    if (keys.empty()) return;
    const View<const T, 2, B> dposition =
        position_scores_backward<C, T, B>(ctx, block, mask.window, mask.following, dscore, keys, dqueries);
    const Index width = keys.extent(0), sequence = block.row / mask.length;
    Products<T, B>(ctx, Block{block.row, block.rows, sequence * width, width, block.sequences})
        .add_transposed(ctx, dposition, queries, of_each);
  }
};

/// Computes attention scores block by block, and adds the weighted values to the sums of a streamed softmax.
/// @order  keys in ascending order; with a causal mask, no bit of an item's results depends on later items
template <class C, class T, class B>
void add_keys(C& ctx, View<const T, 2, B> queries, View<const T, 2, B> keys, double scale, const Mask<T, B>& mask,
              View<const T, 2, B> values, const Sums<T, B>& to, const Places<T, B>& places = {}) {
  const Following<B>& following = mask.following;
  for_each_block(
      ctx, queries.extent(0), mask.length, mask.causal, following.block_size(), [&](C& own, const Block& block) {
        auto mark = own.mark();
        const View<T, 2, B> w = Products<T, B>(own, block, mask.in_use, following).scores(own, queries, keys);
        places.add(own, block, mask, queries, w);
        for_rows(own, block.all_rows(), mask.in_use.from(block.row),
                 functor::SoftmaxBlock<T, B>{mask, block, T(scale), w, to.top, to.total, to.scored, to.sums});
        Products<T, B>(own, block, mask.in_use).add(own, w, values, to.sums);
      });
}
/// Backward pass of add_keys, a streamed softmax over blocks of keys. Given dsums, the gradient of the weighted means
/// of the values, adds the gradients of values, queries and keys to dvalues, dqueries and dkeys.
/// @param mean  [N] for each row, the value that the gradient of the softmax subtracts from ⟨dsums_i, values_j⟩
template <class C, class T, class B>
void add_keys_backward(C& ctx, View<const T, 2, B> queries, View<const T, 2, B> keys, double scale,
                       const Mask<T, B>& mask, View<const T, 2, B> values, View<const T, 1, B> log_sum_exp,
                       View<const T, 1, B> mean, View<const T, 2, B> dsums, View<T, 2, B> dvalues,
                       View<T, 2, B> dqueries, View<T, 2, B> dkeys, const Places<T, B>& places = {}) {
  const Following<B>& following = mask.following;
  for_each_block(ctx, queries.extent(0), mask.length, mask.causal, following.block_size(),
                 [&](C& own, const Block& block) {
                   auto mark = own.mark();
                   const Products<T, B> of_values(own, block, mask.in_use), of_keys(own, block, mask.in_use, following);
                   const View<T, 2, B> d = of_keys.scores(own, queries, keys), w = of_values.scores(own, dsums, values);
                   places.add(own, block, mask, queries, d);
                   for_rows(own, block.all_rows(), mask.in_use.from(block.row),
                            functor::SoftmaxBlockBackward<T, B>{mask, block, T(scale), log_sum_exp, mean, d, w});
                   of_values.add_transposed(own, w, dsums, dvalues);
                   of_keys.add(own, d, keys, dqueries);
                   of_keys.add_transposed(own, d, queries, dkeys);
                   places.add_backward(own, block, mask, queries, d, dqueries);
                 });
}

}  // namespace detail_::attending
}  // namespace gatefold
