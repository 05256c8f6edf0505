#pragma once

#include "gatefold/attention/blocks.hpp"

namespace gatefold {

namespace detail_::attending {

/// The order of rows and keys of an attention in which each item uses only one of several heads (it follows this head).
/// The rows of each block of scores are its items sorted by head. The keys are stored block by block, and within a
/// block head by head. In the grouped products of a block, the heads are the experts, the keys are the weights, and the
/// items are the rows. With one head, row n is item n.
template <class B>
struct Following {
  /// The size of a block of attention scores. Rows and keys are divided at the same items. With a causal mask, a block
  /// of rows therefore needs only whole blocks of keys.
  static constexpr BlockSize size{256, 256};

  Index heads = 1, length = 0;
  View<const Index, 1, B> head{};     // [N] the head that item n uses
  View<const Index, 1, B> rows{};     // [N] the row of item n
  View<const Index, 1, B> items{};    // [N] the item of a row
  View<const Index, 1, B> offsets{};  // [blocks · heads + 1] first row of each block and head

  /// Returns the number of the block of scores that contains row n. This block also contains item n, because items are
  /// sorted only within blocks.
  GATEFOLD_HD Index block(Index n) const { return n / length * divide_up(length, size.rows) + n % length / size.rows; }
  BlockSize block_size() const { return heads > 1 ? size : BlockSize{}; }
  GATEFOLD_HD Index item(Index row) const { return heads > 1 ? items(row) : row; }
  GATEFOLD_HD Index row(Index item) const { return heads > 1 ? rows(item) : item; }
  /// Returns the row in which the key of item j for head h is stored.
  GATEFOLD_HD Index key(Index j, Index h) const {
    if (heads == 1) return j;
    const Index end = j / length * length + length, first = j - j % length % size.keys;
    return heads * first + h * (first + size.keys < end ? size.keys : end - first) + j - first;
  }
  /// Returns the row in which the key of item j is stored for the head that item i uses.
  GATEFOLD_HD Index key_for(Index i, Index j) const { return heads > 1 ? key(j, head(i)) : j; }
};

}  // namespace detail_::attending

namespace functor {

/// Writes the number by which items are sorted, key[n] = block(n) · heads + head(n): items are sorted by block, and
/// within a block by head.
template <class B>
struct FollowingKey {
  detail_::attending::Following<B> following;
  View<Index, 1, B> key;
  GATEFOLD_HD void operator()(Index n) const { key(n) = following.block(n) * following.heads + following.head(n); }
};
/// Writes the inverse of a permutation of the items: rows[items[r]] = r.
template <class B>
struct InvertOrder {
  View<const Index, 1, B> items;
  View<Index, 1, B> rows;
  GATEFOLD_HD void operator()(Index r) const { rows(items(r)) = r; }
};

}  // namespace functor

namespace detail_::attending {

/// Returns an order of items for attentions in which each item uses only one head: within each block of scores, the
/// items are sorted by this head. The order is in scratch memory.
/// @param head  [N] in, the head that each item uses, in [0, heads)
template <class C, class B = typename C::Backend>
Following<B> following(C& ctx, View<const Index, 1, B> head, Index heads, Index length) {
  Following<B> f{heads, length, head};
  if (heads == 1 || head.empty()) return f;
  const Index items = head.size(), blocks = f.block(items - 1) + 1;
  const auto rows = ctx.template scratch<Index>(items), order = ctx.template scratch<Index>(items),
             offsets = ctx.template scratch<Index>(blocks * heads + 1);
  auto mark = ctx.mark();
  const auto key = ctx.template scratch<Index>(items);
  B::for_each(ctx, items, functor::FollowingKey<B>{f, key});
  B::group_by(ctx, key, offsets, order);
  B::for_each(ctx, items, functor::InvertOrder<B>{order, rows});
  return {heads, length, head, rows, order, offsets};
}

}  // namespace detail_::attending
}  // namespace gatefold
