#pragma once

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/attention/mask.hpp"
#include "gatefold/attention/products.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/math.hpp"

namespace gatefold {

/// Selects the attention heads whose weights the mixing AttentionPosterior uses.
enum class FollowedHead {
  lowest_entropy,              // the head with the lowest mean entropy in the sequence; if causal, up to this item
  lowest_entropy_of_sequence,  // the head with the lowest mean entropy in the whole sequence: Graph of Tokens
  every                        // all heads, weighted by their exact posterior
};

namespace functor {

/// Adds one block of keys j to the entropy −Σ_j A log A of the attention weights A of an item, with log A = scale ·
/// score − log_sum_exp.
template <class T, class B>
struct AttentionEntropy {
  detail_::attending::Mask<T, B> mask;
  detail_::attending::Block block;
  detail_::attending::HeadRows rows;
  View<const T, 2, B> log_sum_exp;  // [N, heads]
  T scale;
  View<const T, 2, B> score;
  View<T, 2, B> entropy;  // [N, heads]

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const Index i = block.row + row, key = block.first_key(row), n = rows.item(i), h = rows.head(i);
    const T normaliser = log_sum_exp(n, h);
    const T total = sum_columns<T>(lanes, mask.count(block, row), [&](auto at, Index j) {
      using functor::math::exp;
      using functor::math::where_positive;
      const auto log_a = mask.seen(at, i, key + j, at.load(&score(row, j))) * scale - normaliser, a = exp(log_a);
      const decltype(exp(log_a)) zero(T(0));
      // A weight A of 1 adds exactly 0. The entropy of an item with only one key therefore has no rounding error.
      return where_positive(a, where_positive(T(1) - a, a * log_a, zero), zero);
    });
    if (lanes.lane == 0) entropy(n, h) -= total;
  }
};
/// Writes to head[i] the attention head with the lowest mean entropy. The mean runs over the items of the sequence of
/// item i, or only over its items up to i if `so_far` is true. Ties go to the lower head. Padding does not count.
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
      if (so_far || i + 1 == end) head(i) = lowest(g);
    }
    if (!so_far)
      for (Index i = g * length; i + 1 < end; ++i) head(i) = head(end - 1);
  }

 private:
  GATEFOLD_HD Index lowest(Index g) const {
    Index best = 0;
    for (Index h = 1; h < total.extent(1); ++h)
      if (total(g, h) < total(g, best)) best = h;
    return best;
  }
};

}  // namespace functor

namespace detail_::mixing {

/// Returns whether items of the same sequence can follow different attention heads.
template <class T, class B>
bool several_heads(FollowedHead head, const AttentionTrace<T, B>& a) {
  return head == FollowedHead::lowest_entropy && a.causal;
}
/// Returns the entropy −Σ_j A log A of the attention weights A of each item and head, as [N, heads] in scratch memory.
template <class T, class B>
View<T, 2, B> attention_entropies(auto& ctx, const AttentionTrace<const T, B>& a) {
  const Index items = a.q.extent(0), heads = a.heads();
  auto entropy = ctx.template scratch<T>(items, heads);
  fill(ctx, entropy, 0);
  const detail_::attending::HeadRows rows{heads, a.length};
  const View<const T, 2, B> q = detail_::attending::split_heads(ctx, rows, a.q),
                            k = detail_::attending::split_heads(ctx, rows, a.k);
  const detail_::attending::Keys<T, B> keys(ctx, a.valid, k, rows);
  const detail_::attending::Mask<T, B> mask{a.length, a.causal, keys.mask};
  detail_::attending::for_each_block(
      ctx, heads * items, a.length, a.causal, {}, [&](auto& own, const detail_::attending::Block& block) {
        auto of_block = own.mark();
        const View<const T, 2, B> score = detail_::attending::Products<T, B>(own, block).scores(own, q, k);
        B::for_rows(own, block.all_rows(),
                    functor::AttentionEntropy<T, B>{mask, block, rows, a.log_sum_exp, T(a.scale), score, entropy});
      });
  return entropy;
}
/// Writes the attention head that each item follows to `followed`, or 0 if all heads are used (FollowedHead::every).
template <class T, class B>
void follow_head(auto& ctx, FollowedHead head, const AttentionTrace<const T, B>& a, View<const T, 1, B> valid,
                 View<Index, 1, B> followed) {
  if (head == FollowedHead::every) return fill(ctx, followed, 0);
  auto mark = ctx.mark();
  const Index sequences = followed.size() / a.length;
  auto total = ctx.template scratch<T>(sequences, a.heads());
  const View<const T, 2, B> entropy = a.entropy.data() ? a.entropy : attention_entropies<T, B>(ctx, a);
  B::for_each(ctx, sequences,
              functor::ChooseHead<T, B>{entropy, valid, a.length, several_heads(head, a), total, followed});
}

}  // namespace detail_::mixing

}  // namespace gatefold
