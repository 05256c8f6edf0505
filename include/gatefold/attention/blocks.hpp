#pragma once

#include "gatefold/tensor/view.hpp"

/// Divides attention scores (a row for each query, a column for each key) into blocks. A block is a part of one long
/// sequence, or several short sequences that a grouped product computes at once. The scores of a block are in scratch
/// memory.
namespace gatefold {

GATEFOLD_FUNCTORS((class B, class F), RowsInUse);
GATEFOLD_FUNCTORS((class B), FollowingKey, InvertOrder);

namespace detail_::attending {

/// The size of a block of attention scores. A block of one sequence has at most `rows` rows (queries) and `keys` keys.
/// Sequences with at most `rows` items share a block if the shared block then has at most rows · keys scores.
struct BlockSize {
  Index rows = 128, keys = 512;

  /// Returns the size of blocks in which each row has the scores of all `length` keys of its sequence. Each key takes
  /// `wide` columns of a block.
  static BlockSize whole_rows(Index length, Index wide = 1) {
    const Index rows = BlockSize{}.rows * BlockSize{}.keys / (length * wide);
    return {rows > 0 ? rows : 1, length};
  }
  /// Returns the number of sequences of `length` items that share one block.
  GATEFOLD_HD Index sequences(Index length) const {
    const Index together = rows * keys / (length * length);
    return length <= rows && together > 1 ? together : 1;
  }
};

/// A block of attention scores, given by its rows (queries) and keys. It covers `sequences` whole sequences, each with
/// its own keys, or a part of one sequence.
struct Block {
  Index row, rows;  // first row, and the number of rows in each sequence
  Index key, keys;  // first key, and the number of keys in each sequence
  Index sequences;

  GATEFOLD_HD Index all_rows() const { return rows * sequences; }
  /// Returns the first key for which row r of the block has a score.
  GATEFOLD_HD Index first_key(Index r) const { return sequences == 1 ? key : key + r / rows * keys; }
};

/// The range of rows that an attention computes, [begin(), end()). Row numbers count from the first row of the part of
/// the attention that is computed at present. If the attention is an expert of a mixture of experts, its rows belong to
/// slots (rows of work of the experts). Only the rows of the slots in use are read and written.
template <class B>
struct InUse {
  View<const Index, 1, B> offsets{};  // first slot of each expert (Groups); empty: all rows are in use
  Index each = 1;                     // rows per slot
  Index first = 0;                    // the row with number 0 is number `first` among the rows of all slots

  GATEFOLD_HD Index begin() const { return offsets(0) * each - first; }
  GATEFOLD_HD Index end() const { return offsets(offsets.extent(0) - 1) * each - first; }
  GATEFOLD_HD bool has(Index row) const { return !offsets.data() || (row >= begin() && row < end()); }
  /// Returns the same range of rows, renumbered so that row `row` becomes row 0.
  InUse from(Index row) const { return {offsets, each, first + row}; }
  /// Returns the range of rows in use after each row has been replaced by `times` rows, for example one for each head.
  InUse times(Index times) const { return {offsets, each * times, first * times}; }
};

/// Calls f(context, first, count) for ranges of items [first, first + count) that cover all items and consist of whole
/// sequences. A range is one long sequence, or some short sequences that share a block. A backend can also join ranges
/// (for_tasks), for example if the ranges cannot be divided evenly between threads. Several ranges can run at the same
/// time.
template <class C, class F>
void for_sequences(C& ctx, Index items, Index length, BlockSize size, const F& f) {
  if (items == 0) return;
  const Index range = length * size.sequences(length);
  C::Backend::for_tasks(ctx, divide_up(items, range), [&](C& own, Index first, Index count) {
    const Index begin = first * range, end = begin + count * range;
    f(own, begin, (end < items ? end : items) - begin);
  });
}
/// Divides the attention scores of all sequences into blocks, and calls f(context, block) for each. If `causal`, leaves
/// out blocks in which every key is later than every query. The blocks of a row are passed to f in ascending order of
/// keys.
/// Blocks of different sequences can run at the same time.
template <class C, class F>
void for_each_block(C& ctx, Index items, Index length, bool causal, BlockSize size, const F& f) {
  for_sequences(ctx, items, length, size, [&](C& own, Index first, Index count) {
    const Index together = size.sequences(length);
    if (length <= size.rows) {
      for (Index row = first; row < first + count; row += together * length) {
        const Index left = (first + count - row) / length;
        f(own, Block{row, length, row, length, left < together ? left : together});
      }
      return;
    }
    for (Index begin = first; begin < first + count; begin += length)
      for (Index row = begin; row < begin + length; row += size.rows) {
        const Index rows = row + size.rows < begin + length ? size.rows : begin + length - row;
        const Index end = causal ? row + rows : begin + length;
        for (Index key = begin; key < end; key += size.keys)
          f(own, Block{row, rows, key, key + size.keys < end ? size.keys : end - key, 1});
      }
  });
}

/// Calls f(lanes, row) for the rows in [0, n) that are in the range `in_use`. `lanes` are the threads that compute a
/// row together.
template <class C, class B, class F>
void for_rows(C& ctx, Index n, const InUse<B>& in_use, const F& f) {
  B::for_rows(ctx, n, functor::RowsInUse<B, F>{in_use, f});
}

/// The order of rows and keys of an attention in which each item uses only one of several heads. We say that the item
/// follows this head. The rows of a block of scores are the items of the block, sorted by head. The keys are stored
/// block by block, and within a block head by head. In the grouped products of a block (one product for each expert),
/// the heads take the place of the experts, the keys take the place of the weights, and the items take the place of the
/// rows. With one head, items are not sorted, so row n is item n.
template <class B>
struct Following {
  /// The size of a block of attention scores. Blocks of rows and blocks of keys begin at the same items. With a causal
  /// mask, a block of rows therefore needs only whole blocks of keys.
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

/// Returns an order of items for attentions in which each item uses only one head: within each block of scores, the
/// items are sorted by this head. The order is in scratch memory, so keep a ctx.mark() while you use it.
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

namespace functor {

/// Calls f(lanes, row) if `row` is in the range of rows that an attention computes (InUse). `lanes` are the threads
/// that compute a row together.
template <class B, class F>
struct RowsInUse {
  detail_::attending::InUse<B> in_use;
  F f;

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    if (in_use.has(row)) f(lanes, row);
  }
};
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

}  // namespace gatefold
