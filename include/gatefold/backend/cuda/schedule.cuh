#pragma once

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// The assignment of the tiles of a product to thread blocks that stay resident until all tiles are computed.
namespace gatefold::detail_::device {

/// A part of the work for a tile: the steps [begin, end) of its sums. A step adds some products to each sum. A part
/// consists of all steps of the tile, of its first steps, or of its last steps.
struct TilePart {
  Index tile = -1;
  int begin = 0, end = 0;
};

/// Divides `tiles` tiles with `steps` steps of work each between thread blocks. Whole tiles are assigned in rounds: in
/// each round, every block gets one tile. The last tiles, fewer than two for each block, are divided into shares of
/// equally many steps, at least the steps of one tile (McNaughton's wrap-around rule, 1959: preemptive scheduling
/// without idle time). The last share can be smaller, and blocks after it get none.
///
/// If two blocks share a tile, the block with the lower index computes the first steps of that tile, before the rest of
/// its own share. The next block computes the remaining steps of the tile, after the rest of its share. The order of
/// each sum is therefore the same as on one block. A block waits only for the part that the block with the next lower
/// index computes first in its share.
/// @cost  the busiest block computes max(steps, ⌈tiles · steps / blocks⌉) steps
class Schedule {
 public:
  GATEFOLD_HD Schedule(Index tiles, int steps, Index blocks)
      : blocks_(blocks), rounds_(tiles / blocks > 1 ? tiles / blocks - 1 : 0), steps_(steps) {
    rest_ = (tiles - rounds_ * blocks) * steps;
    const Index fair = divide_up(rest_, blocks);
    share_ = fair > steps ? fair : steps;
  }

  /// Returns the n-th part of the work of a thread block. After its last part, it returns a part with tile −1.
  GATEFOLD_HD TilePart part(Index block, Index n) const {
    if (n < rounds_) return {n * blocks_ + block, 0, steps_};
    // This block's share of the steps of the last tiles is [begin, end). The block begins with the last tile of its
    // share.
    const Index begin = block * share_, end = begin + share_ < rest_ ? begin + share_ : rest_;
    const Index tile = (end - 1) / steps_ - (n - rounds_), first = tile * steps_;
    if (begin >= end || first + steps_ <= begin) return {};
    return {rounds_ * blocks_ + tile, static_cast<int>(begin > first ? begin - first : 0),
            static_cast<int>(end - first < steps_ ? end - first : steps_)};
  }

 private:
  Index blocks_, rounds_, rest_, share_;  // rest_: steps of the tiles that remain after whole rounds
  int steps_;
};

}  // namespace gatefold::detail_::device
