#pragma once

#include "gatefold/attention/blocks.hpp"
#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"

namespace gatefold {

namespace functor {

/// Writes the first row of each sequence of a block, for a grouped product: to[g] is the first row of sequence g. A
/// sequence that is not in use has no rows.
template <class B>
struct SequenceOffsets {
  detail_::attending::Block block;
  detail_::attending::InUse<B> in_use;
  View<Index, 1, B> to;
  GATEFOLD_HD void operator()(Index g) const {
    const Index row = g * block.rows;
    to(g) = in_use.offsets.data() ? clamp(row, inside(in_use.begin()), inside(in_use.end())) : row;
  }

 private:
  GATEFOLD_HD static Index clamp(Index v, Index low, Index high) { return v < low ? low : v > high ? high : v; }
  GATEFOLD_HD Index inside(Index row) const { return clamp(row - block.row, 0, block.all_rows()); }
};
/// Writes the first row of each head h, counted from `row`, the first row of a block: to[h] = from[first + h] − row.
template <class B>
struct BlockOffsets {
  View<const Index, 1, B> from;
  Index first, row;
  View<Index, 1, B> to;
  GATEFOLD_HD void operator()(Index h) const { to(h) = from(first + h) - row; }
};

}  // namespace functor

namespace detail_::attending {

/// Returns `count` groups of `rows` rows each, for a grouped product (one matrix product for each group). Their offsets
/// are in scratch memory.
template <class C>
auto even_groups(C& ctx, Index count, Index rows) {
  using B = typename C::Backend;
  auto offsets = ctx.template scratch<Index>(count + 1);
  B::for_each(ctx, count + 1, functor::EvenOffsets<B>{rows, offsets});
  return Groups<B>{offsets, {}, count * rows};
}

/// The matrix products of a block of attention scores, as grouped products (one matrix product for each expert, in one
/// call). Each sequence takes the place of an expert, and the keys of the sequence take the place of its weights. If
/// each item uses only one head (Following), each head of a sequence takes the place of an expert. The offsets are in
/// scratch memory. Only rows in use are computed.
template <class T, class B>
struct Products {
  Block block;
  Index heads;
  Groups<B> groups;

  template <class C>
  Products(C& ctx, const Block& of, const InUse<B>& in_use = {}, const Following<B>& following = {})
      : block(of), heads(following.heads) {
    auto offsets = ctx.template scratch<Index>(of.sequences * heads + 1);
    if (heads == 1)
      B::for_each(ctx, offsets.size(), functor::SequenceOffsets<B>{of, in_use, offsets});
    else
      B::for_each(ctx, offsets.size(),
                  functor::BlockOffsets<B>{following.offsets, following.block(of.row) * heads, of.row, offsets});
    groups = {offsets, {}, of.all_rows()};
  }
  /// Returns the products for the same rows of the block, with `count` keys in place of each key.
  Products with_keys(Index count) const {
    Products wide = *this;
    wide.block.key *= count;
    wide.block.keys *= count;
    return wide;
  }
  /// Returns the scores of a block, s[i,j] = ⟨queries_i, keys_j⟩, in scratch memory.
  template <class C>
  View<T, 2, B> scores(C& ctx, View<const T, 2, B> queries, View<const T, 2, B> keys) const {
    auto s = ctx.template scratch<T>(block.all_rows(), block.keys);
    grouped_gemm(ctx, rows(queries), of_keys(keys), true, s, functor::Store{});
    return s;
  }
  /// Adds Σ_j s[i,j] x_j to y_i, for each row i of the block and its keys j.
  template <class C>
  void add(C& ctx, View<const T, 2, B> s, View<const T, 2, B> x, View<T, 2, B> y) const {
    grouped_gemm(ctx, s, of_keys(x), false, rows(y), functor::AddTo<T, B>{rows(y)});
  }
  /// Adds Σ_i s[i,j] y_i to x_j, for each key j and the rows i of the block.
  void add_transposed(auto& ctx, View<const T, 2, B> s, View<const T, 2, B> y, View<T, 2, B> x) const {
    FullPrecision<B>::grouped_outer(ctx, groups, s, rows(y), of_keys(x));
  }

 private:
  // Keys and values are used once, so a backend that can read them in place need not pack them.
  template <class C, class E>
  void grouped_gemm(C& ctx, View<const T, 2, B> a, View<const T, 3, B> w, bool transpose, View<T, 2, B> c,
                    const E& epilogue) const {
    using Full = FullPrecision<B>;
    if constexpr (requires { Full::grouped_gemm_in_place(ctx, groups, a, w, transpose, c, epilogue); }) {
      Full::grouped_gemm_in_place(ctx, groups, a, w, transpose, c, epilogue);
    } else {
      Full::grouped_gemm(ctx, groups, a, w, transpose, c, epilogue);
    }
  }
  template <class V>
  V rows(const V& of_items) const {
    return of_items.rows(block.row, block.all_rows());
  }
  auto of_keys(const auto& of_items) const {
    return of_items.rows(block.key * heads, block.keys * block.sequences * heads)
        .as(block.sequences * heads, block.keys, of_items.extent(1));
  }
};

}  // namespace detail_::attending
}  // namespace gatefold
