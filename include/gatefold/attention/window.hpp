#pragma once

#include "gatefold/attention/blocks.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/math.hpp"

/// Computes the window of an item (the keys to which it attends), blocks of attention scores that contain these keys,
/// and the scores of position keys. A position key belongs to a place in the window, not to an item.
namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), WindowScores, WindowPlaces);

namespace detail_::attending {

/// The window of an item is the range of keys to which it attends: the last `width` keys up to the item. These keys
/// belong to items of the current segment or to remembered items of earlier segments. The keys of remembered items come
/// first.
///
///     item t sees the keys  first(t) + o,  o = 0 … width − 1,  first(t) = past + t − width + [itself],   (1)
///
/// if they exist, which means that they are in 0 … past + length − 1. [itself] is 1 if an item attends to itself, else
/// 0. If `chunked`, positions are divided into chunks of `width`, and an item sees only the keys of its chunk:
///
///     item t sees the keys  first(t) … past + t,   first(t) = past + t − (position + t) mod width        (2)
struct Window {
  Index length;          // items of each sequence
  Index past;            // remembered items before each sequence
  Index width;           // largest number of keys to which an item attends
  bool itself = true;    // true: the last key of an item is its own key; false: the key of the previous item
  bool chunked = false;  // if true, use (2) instead of (1); then `itself` must be true
  Index position = 0;    // position of item 0 in its sequence; used only if chunked

  GATEFOLD_HD Index keys() const { return past + length; }
  /// Returns the index, among the keys of the sequence, at which the window of item t begins. It is negative if the
  /// window begins before the first key.
  GATEFOLD_HD Index first(Index t) const { return chunked ? past + t - in_chunk(t) : end(t) - width; }
  /// Returns the index of the first key after the window of item t.
  GATEFOLD_HD Index end(Index t) const { return past + t + (itself ? 1 : 0); }
  /// Returns the number of items of the chunk that precede item t.
  GATEFOLD_HD Index in_chunk(Index t) const { return (position + t) % width; }
  /// Returns how many of the next `most` items, from item t on, can be rows of one block. They must be items of the
  /// segment and, if chunked, of the same chunk.
  GATEFOLD_HD Index rows(Index t, Index most) const {
    const Index left = chunked && width - in_chunk(t) < length - t ? width - in_chunk(t) : length - t;
    return left < most ? left : most;
  }
  /// Returns the row of item n's own key. The rows are the keys of all sequences, including remembered items.
  GATEFOLD_HD Index own(Index n) const { return n / length * keys() + past + n % length; }
  /// Returns the largest number of items before a segment to which an item of the segment can attend. It is not useful
  /// to remember more items.
  GATEFOLD_HD Index most() const { return itself ? width - 1 : width; }
  /// Returns the number of items of each sequence to remember for the next segment.
  GATEFOLD_HD Index remembered() const { return keys() < most() ? keys() : most(); }

  /// Returns whether item t attends to a key, given by its index among the keys of the sequence.
  GATEFOLD_HD bool sees(Index t, Index key) const { return first(t) <= key && key < end(t); }

  /// The columns (keys) of a block of attention scores that are in the window of an item: the first column, their
  /// number, and the place of the first column in the window.
  struct Seen {
    Index first, count, place;
  };
  GATEFOLD_HD Seen seen(const Block& block, Index item) const {
    return columns(item % length, block.key % keys(), block.keys);
  }
  /// Returns the columns of a block that are in the window of item t. The block has `count` columns; its first column
  /// is the key with index `key` in the sequence.
  GATEFOLD_HD Seen columns(Index t, Index key, Index count) const {
    const Index begin = first(t) - key, after = end(t) - key;
    const Index from = begin > 0 ? begin : 0, to = after < count ? after : count;
    return from < to ? Seen{from, to - from, from - begin} : Seen{0, 0, 0};
  }
};

/// The largest number of keys over which a product on the CPU sums in one chain, key by key (Tile::depth of the CPU
/// backend). The bits of a sum over at most this many keys do not depend on the block of scores. A longer sum has the
/// same bits only in blocks that begin with the same key.
inline constexpr Index keys_of_a_chain = 256;

/// Calls f(block) for blocks of attention scores that cover the rows of `sequences` sequences, in order. A block has
/// all keys in the windows of its rows. It consists of several short sequences, or of rows of a long one.
///
/// The first key of a block can change the bits of sums that are longer than one chain (keys_of_a_chain). It is chosen
/// as follows:
/// - If all keys of a sequence fit in one chain, its block begins with key 0.
/// - Otherwise, the first key of an item's block does not depend on the number of later items.
/// - If the window and the rows of a block fit in one chain, no bit depends on the first key.
/// - If the window is chunked and the sums have several chains, the block of an item begins with the first key of the
///   item's chunk.
void for_each_window_block(const Window& window, Index sequences, const auto& f) {
  constexpr BlockSize size;
  constexpr Index area = size.rows * size.keys;
  const Index fit = area / (window.width + size.rows), most = fit > size.rows ? size.rows : fit > 0 ? fit : 1;
  const Index keys = window.keys();
  const bool from_first_key = window.first(window.chunked ? window.length - 1 : 0) <= 0;
  if (keys <= keys_of_a_chain || (window.length <= most && from_first_key)) {
    const Index fits = area / (window.length * keys), together = fits > 0 ? fits : 1;
    for (Index g = 0; g < sequences; g += together)
      f(Block{g * window.length, window.length, g * keys, keys, g + together < sequences ? together : sequences - g});
    return;
  }
  for (Index g = 0; g < sequences; ++g)
    for (Index t = 0, rows = 0; t < window.length; t += rows) {
      rows = window.rows(t, most);
      const Index begin = window.first(t) > 0 ? window.first(t) : 0, end = window.end(t + rows - 1);
      if (begin < end) f(Block{g * window.length + t, rows, g * keys + begin, end - begin, 1});
    }
}

/// Returns the scores of position keys for the rows of a block, ⟨queries_i, places_o⟩ [rows, width], in scratch memory.
/// Returns an empty view if there are no position keys.
/// @param places  [width, F] the position keys
template <class C, class T, class B>
View<const T, 2, B> position_scores(C& ctx, const Block& block, View<const T, 2, B> queries, In<T, 2, B> places) {
  if (places.empty()) return {};
  auto position = ctx.template scratch<T>(block.all_rows(), places.extent(0));
  B::gemm(ctx, queries.rows(block.row, block.all_rows()), false, places, true, false, position, functor::Store{});
  return position;
}
/// Backward pass of position_scores. Returns the gradient of the position scores, [rows, width], in scratch memory.
/// Adds the gradient of the queries to dqueries.
/// @param dscore  [rows, keys] gradient of the block's scores; 0 for keys that are not visible to a row
template <class C, class T, class B>
View<const T, 2, B> position_scores_backward(C& ctx, const Block& block, const Window& window,
                                             const Following<B>& following, View<const T, 2, B> dscore,
                                             In<T, 2, B> places, View<T, 2, B> dqueries) {
  const View<T, 2, B> dposition = ctx.template scratch<T>(block.all_rows(), places.extent(0));
  fill(ctx, dposition, 0);
  B::for_rows(ctx, block.all_rows(), functor::WindowPlaces<T, B>{window, block, dscore, dposition, following});
  B::gemm(ctx, View<const T, 2, B>(dposition), false, places, false, true, dqueries.rows(block.row, block.all_rows()),
          functor::Store{});
  return dposition;
}

}  // namespace detail_::attending

namespace functor {

/// Adds position keys to attention scores. Each place o in the window of an item has a key places_o, in addition to the
/// keys of items:
///
///     score[i,j] = ⟨queries_i, keys_j⟩ + ⟨queries_i, places_o⟩,   o the place of key j in the window of i   (3)
///
/// Adds position[i,o], the score of the position key, to score[i,j] for each key j in the window of row i. If the mask
/// value of key j (member `keys`) is not positive, key j is hidden, and the mask value (−∞ or NaN) replaces the score.
/// Source: Shaw et al. 2018, arXiv:1803.02155, eq. (5).
template <class T, class B>
struct WindowScores {
  detail_::attending::Window window;
  detail_::attending::Block block;
  View<const T, 1, B> keys;      // [M] positive: visible key; otherwise the value replaces its score (Mask::keys)
  View<const T, 2, B> position;  // [rows, width] scores of the position keys; empty: none
  View<T, 2, B> score;           // [rows, keys] scores of the block
  detail_::attending::Following<B> following{};

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const auto [first, count, place] = window.seen(block, following.item(block.row + row));
    T* const seen = score.data() + row * block.keys + first;
    const T* const key = keys.data() + block.first_key(row) + first;
    const T* const of_place = position.data() ? position.data() + row * window.width + place : nullptr;
    each_column<T>(lanes, count, [&](auto at, Index j) {
      using functor::math::where_positive;
      const auto flag = at.load(key + j), s = at.load(seen + j);
      at.store(seen + j, where_positive(flag, of_place ? s + at.load(of_place + j) : s, flag));
    });
  }
};
/// Writes the gradient of the scores of position keys: to[i,o] = score[i,j] for each key j in the window of row i, with
/// o the place of key j in this window.
template <class T, class B>
struct WindowPlaces {
  detail_::attending::Window window;
  detail_::attending::Block block;
  View<const T, 2, B> score;  // [rows, keys] gradients of the block's scores
  View<T, 2, B> to;           // [rows, width]
  detail_::attending::Following<B> following{};

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const auto [first, count, place] = window.seen(block, following.item(block.row + row));
    const T* const from = score.data() + row * block.keys + first;
    T* const of_place = to.data() + row * window.width + place;
    each_column<T>(lanes, count, [&](auto at, Index j) { at.store(of_place + j, at.load(from + j)); });
  }
};

}  // namespace functor

}  // namespace gatefold
