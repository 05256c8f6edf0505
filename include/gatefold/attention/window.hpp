#pragma once

#include "gatefold/attention/blocks.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// Attention to a window of the past: which keys an item sees, and in which blocks.
namespace gatefold::detail_::attending {

/// The keys that items of a segment see: those at most so many places back, in the segment itself or among the items
/// remembered from before it, whose keys stand first.
///
///     item t sees the keys  first(t) + o,  o = 0 … width − 1,  first(t) = past + t − width + [itself],   (1)
///
/// of those that there are: 0 … past + length − 1.
struct Window {
  Index length;        // items of each sequence
  Index past;          // items remembered before them
  Index width;         // keys seen at most
  bool itself = true;  // whether an item is the last of its own keys, else the one before it is

  GATEFOLD_HD Index keys() const { return past + length; }
  /// The place, among the keys of its sequence, where the window of item t begins; before the first key it is negative.
  GATEFOLD_HD Index first(Index t) const { return past + t - width + (itself ? 1 : 0); }
  /// The row of item n, the t-th of its sequence, among the keys of all sequences.
  GATEFOLD_HD Index own(Index n) const { return n / length * keys() + past + n % length; }
  /// How many items are worth remembering.
  GATEFOLD_HD Index most() const { return itself ? width - 1 : width; }
  /// How many of them there are after this segment.
  GATEFOLD_HD Index remembered() const { return keys() < most() ? keys() : most(); }

  /// Whether item t sees the key at a place among those of its sequence.
  GATEFOLD_HD bool sees(Index t, Index key) const { return first(t) <= key && key < first(t) + width; }

  /// The columns of a block that an item of its rows sees, and the place in its window of the first of them.
  struct Seen {
    Index first, count, place;
  };
  GATEFOLD_HD Seen seen(const Block& block, Index item) const {
    const Index begin = first(item % length) - block.key % keys(), end = begin + width;
    const Index from = begin > 0 ? begin : 0, to = end < block.keys ? end : block.keys;
    return from < to ? Seen{from, to - from, from - begin} : Seen{0, 0, 0};
  }
};

/// How many keys of a block a product on the CPU sums in one chain (Tile::depth there). A sum over so many has the same
/// bits in any block, a longer one in blocks that begin with the same key.
inline constexpr Index keys_of_a_chain = 256;

/// Call f(block) for blocks that cover the rows of `sequences` sequences, one after the other, each with all keys that
/// a row of it sees: several short sequences, or rows of a long one. An item's block begins with the same key however
/// many items follow; if its window and the rows of a block fit in one chain, no bit depends on that key either.
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
