#pragma once

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/one_group.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

/// Scores of items against items of their sequence, block by block: which blocks there are, which rows and keys each has,
/// and its products. A block is a part of one long sequence, or several short ones, which a grouped product takes at once.
namespace gatefold {

namespace mixing {

/// How many rows and keys a block has at most, and how many short sequences it takes at once.
struct BlockSize {
  Index rows = 128, keys = 512;

  GATEFOLD_HD Index sequences(Index length) const { return length <= rows ? rows * keys / (length * length) : 1; }
};

/// Rows against keys: those of `sequences` whole sequences, each against its own, or a part of one sequence.
struct Block {
  Index row, rows, key, keys, sequences;  // first and number, of each sequence

  GATEFOLD_HD Index all_rows() const { return rows * sequences; }
  /// The first key that row r of the block meets.
  GATEFOLD_HD Index first_key(Index r) const { return sequences == 1 ? key : key + r / rows * keys; }
};

/// Items that each follow one of several heads, hence meet that head's keys alone: to the products of a block the heads
/// are experts, whose weights are their keys, and the items are their rows. Rows are the items of each block sorted by
/// head; keys stand block by block, head by head within. Of one head: nothing is sorted, a row is an item.
template <class B>
struct Following {
  static constexpr BlockSize size{256, 256};  // as many rows as keys: also of a causal mask, blocks see whole blocks of keys

  Index heads = 1, length = 0;
  View<const Index, 1, B> head{};     // [N] the head that item n follows
  View<const Index, 1, B> rows{};     // [N] the row of item n
  View<const Index, 1, B> items{};    // [N] the item of a row
  View<const Index, 1, B> offsets{};  // [blocks · heads + 1] the first row of each head of each block

  /// The block of a row, and of an item.
  GATEFOLD_HD Index block(Index n) const {
    return n / length * ((length + size.rows - 1) / size.rows) + n % length / size.rows;
  }
  BlockSize block_size() const { return heads > 1 ? size : BlockSize{}; }
  GATEFOLD_HD Index item(Index row) const { return heads > 1 ? items(row) : row; }
  GATEFOLD_HD Index row(Index item) const { return heads > 1 ? rows(item) : item; }
  /// Where the key of item j for head h stands.
  GATEFOLD_HD Index key(Index j, Index h) const {
    if (heads == 1) return j;
    const Index end = j / length * length + length, first = j - j % length % size.keys;
    return heads * first + h * (first + size.keys < end ? size.keys : end - first) + j - first;
  }
  /// Where the key stands that item i meets.
  GATEFOLD_HD Index key_for(Index i, Index j) const { return heads > 1 ? key(j, head(i)) : j; }
};

}  // namespace mixing

namespace fn {

/// key[n] = block(n) · heads + head(n)
template <class B>
struct FollowingKey {
  mixing::Following<B> following;
  View<Index, 1, B> key;
  GATEFOLD_HD void operator()(Index n) const { key(n) = following.block(n) * following.heads + following.head(n); }
};
/// rows[items[r]] = r
template <class B>
struct InvertOrder {
  View<const Index, 1, B> items;
  View<Index, 1, B> rows;
  GATEFOLD_HD void operator()(Index r) const { rows(items(r)) = r; }
};
/// to[h] = from[first + h] − row
template <class B>
struct BlockOffsets {
  View<const Index, 1, B> from;
  Index first, row;
  View<Index, 1, B> to;
  GATEFOLD_HD void operator()(Index h) const { to(h) = from(first + h) - row; }
};

}  // namespace fn

namespace mixing {

/// Call f(context, first, count) for ranges of items, whole sequences, that cover all: a backend whose threads work apart
/// gets ranges of one long sequence or some short ones. Ranges may be at work at once.
template <class C, class F>
void for_sequences(C& ctx, Index items, Index length, BlockSize size, const F& f) {
  if (items == 0) return;
  const Index range = length * size.sequences(length);
  C::Backend::for_tasks(ctx, (items + range - 1) / range, [&](C& own, Index first, Index count) {
    const Index begin = first * range, end = begin + count * range;
    f(own, begin, (end < items ? end : items) - begin);
  });
}
/// Call f(context, block) for blocks that cover the pairs of rows and keys of every sequence, those of a row in ascending
/// order of keys. Blocks of different sequences may be at work at once.
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

/// `count` groups of `rows` slots each, in scratch.
template <class C>
auto even_groups(C& ctx, Index count, Index rows) {
  using B = typename C::Backend;
  auto offsets = ctx.template scratch<Index>(count + 1);
  B::for_each(ctx, count + 1, fn::EvenOffsets<B>{rows, offsets});
  return Groups<B>{offsets, {}, count * rows};
}

/// Which row follows which head, in scratch.
/// @param head  [N] in [0, heads)
template <class C, class B = typename C::Backend>
Following<B> following(C& ctx, View<const Index, 1, B> head, Index heads, Index length) {
  Following<B> f{heads, length, head};
  if (heads == 1 || head.size() == 0) return f;
  const Index items = head.size(), blocks = f.block(items - 1) + 1;
  const auto rows = ctx.template scratch<Index>(items), order = ctx.template scratch<Index>(items),
             offsets = ctx.template scratch<Index>(blocks * heads + 1);
  auto mark = ctx.mark();
  const auto key = ctx.template scratch<Index>(items);
  B::for_each(ctx, items, fn::FollowingKey<B>{f, key});
  B::group_by(ctx, key, offsets, order);
  B::for_each(ctx, items, fn::InvertOrder<B>{order, rows});
  return {heads, length, head, rows, order, offsets};
}

/// The products of a block: every sequence, or every head of it that items may follow, is an expert whose weights are its
/// keys. The offsets live in scratch.
template <class T, class B>
struct Products {
  Block block;
  Index heads;
  Groups<B> groups;

  template <class C>
  Products(C& ctx, const Block& of) : block(of), heads(1), groups(even_groups(ctx, of.sequences, of.rows)) {}
  template <class C>
  Products(C& ctx, const Block& of, const Following<B>& following)
      : block(of),
        heads(following.heads),
        groups(heads == 1 ? even_groups(ctx, of.sequences, of.rows) : groups_by_head(ctx, of, following)) {}
  /// s[i,j] = ⟨queries_i, keys_j⟩, in scratch
  template <class C>
  View<T, 2, B> scores(C& ctx, View<const T, 2, B> queries, View<const T, 2, B> keys) const {
    auto s = ctx.template scratch<T>(block.all_rows(), block.keys);
    B::grouped_gemm(ctx, groups, rows(queries), of_keys(keys), true, s, fn::Store{});
    return s;
  }
  /// y_i += Σ_j s[i,j] x_j
  template <class C>
  void add(C& ctx, View<const T, 2, B> s, View<const T, 2, B> x, View<T, 2, B> y) const {
    B::grouped_gemm(ctx, groups, s, of_keys(x), false, rows(y), fn::AddTo<T, B>{rows(y)});
  }
  /// x_j += Σ_i s[i,j] y_i
  template <class C>
  void add_transposed(C& ctx, View<const T, 2, B> s, View<const T, 2, B> y, View<T, 2, B> x) const {
    B::grouped_outer(ctx, groups, s, rows(y), of_keys(x));
  }

 private:
  template <class C>
  static Groups<B> groups_by_head(C& ctx, const Block& of, const Following<B>& following) {
    auto offsets = ctx.template scratch<Index>(of.sequences * following.heads + 1);
    B::for_each(ctx, offsets.size(), fn::BlockOffsets<B>{following.offsets, following.block(of.row) * following.heads,
                                                        of.row, offsets});
    return {offsets, {}, of.all_rows()};
  }
  template <class V>
  V rows(const V& of_items) const {
    return of_items.rows(block.row, block.all_rows());
  }
  template <class V>
  auto of_keys(const V& of_items) const {
    return of_items.rows(block.key * heads, block.keys * block.sequences * heads)
        .as(block.sequences * heads, block.keys, of_items.extent(1));
  }
};

}  // namespace mixing
}  // namespace gatefold
