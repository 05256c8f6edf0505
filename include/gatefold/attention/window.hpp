#pragma once

#include "gatefold/attention/blocks.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// Computes the window of an item (the keys to which it attends), and blocks of attention scores that contain these
/// keys.
namespace gatefold::detail_::attending {

/// The window of each item, to which it attends: the last `width` keys up to the item. These keys belong to items of
/// the current segment or to remembered items of earlier segments. The keys of remembered items come first.
///
///     item t sees the keys  first(t) + o,  o = 0 … width − 1,  first(t) = past + t − width + [itself],   (1)
///
/// if they exist, which means that they are in 0 … past + length − 1. [itself] is 1 if an item attends to itself, else
/// 0.
struct Window {
  Index length;        // items of each sequence
  Index past;          // remembered items before each sequence
  Index width;         // largest number of keys to which an item attends
  bool itself = true;  // true: the last key of an item is its own key; false: the key of the previous item

  GATEFOLD_HD Index keys() const { return past + length; }
  /// Returns the index, among the keys of the sequence, at which the window of item t begins. It is negative if the
  /// window begins before the first key.
  GATEFOLD_HD Index first(Index t) const { return past + t - width + (itself ? 1 : 0); }
  /// Returns the row of the own key of item n among the keys of all sequences, which include remembered items.
  GATEFOLD_HD Index own(Index n) const { return n / length * keys() + past + n % length; }
  /// Returns the largest number of items that are worth remembering for the next segment, because windows reach back no
  /// further.
  GATEFOLD_HD Index most() const { return itself ? width - 1 : width; }
  /// Returns the number of items of each sequence to remember after this segment.
  GATEFOLD_HD Index remembered() const { return keys() < most() ? keys() : most(); }

  /// Returns whether item t attends to a key, given by its index among the keys of the sequence.
  GATEFOLD_HD bool sees(Index t, Index key) const { return first(t) <= key && key < first(t) + width; }

  /// The columns (keys) of a block of attention scores that are in the window of an item: the first column, their
  /// number, and the place of the first column in the window.
  struct Seen {
    Index first, count, place;
  };
  GATEFOLD_HD Seen seen(const Block& block, Index item) const {
    return columns(first(item % length) - block.key % keys(), block.keys);
  }
  /// Returns the columns 0 … count − 1 that are in a window which begins at column `begin`.
  GATEFOLD_HD Seen columns(Index begin, Index count) const {
    const Index end = begin + width, from = begin > 0 ? begin : 0, to = end < count ? end : count;
    return from < to ? Seen{from, to - from, from - begin} : Seen{0, 0, 0};
  }
};

/// The largest number of keys over which a product on the CPU sums in one chain, key by key (Tile::depth of the CPU
/// backend). The bits of a sum over at most this many keys do not depend on the block of scores. A longer sum has the
/// same bits only in blocks that begin with the same key.
inline constexpr Index keys_of_a_chain = 256;

/// Calls f(block) for blocks of attention scores that cover the rows of `sequences` sequences, in order. A block has
/// all keys in the windows of its rows. It consists of several short sequences, or of rows of a long one. The first key
/// of an item's block does not depend on the number of later items. If the window and the rows of a block fit in one
/// chain (keys_of_a_chain), no bit depends on the first key either.
template <class F>
void for_each_window_block(const Window& window, Index sequences, const F& f) {
  constexpr BlockSize size;
  constexpr Index area = size.rows * size.keys;
  const Index fit = area / (window.width + size.rows), most = fit > size.rows ? size.rows : fit > 0 ? fit : 1;
  const Index keys = window.keys();
  if (keys <= keys_of_a_chain || (window.length <= most && window.first(0) <= 0)) {
    const Index fits = area / (window.length * keys), together = fits > 0 ? fits : 1;
    for (Index g = 0; g < sequences; g += together)
      f(Block{g * window.length, window.length, g * keys, keys, g + together < sequences ? together : sequences - g});
    return;
  }
  for (Index g = 0; g < sequences; ++g)
    for (Index t = 0; t < window.length; t += most) {
      const Index rows = t + most < window.length ? most : window.length - t;
      const Index begin = window.first(t) > 0 ? window.first(t) : 0, end = window.first(t + rows - 1) + window.width;
      if (begin < end) f(Block{g * window.length + t, rows, g * keys + begin, end - begin, 1});
    }
}

}  // namespace gatefold::detail_::attending
