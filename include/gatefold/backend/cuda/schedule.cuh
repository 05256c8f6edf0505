#pragma once

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// How the tiles of a product are dealt to blocks that stay until all is done.
namespace gatefold::detail_::device {

/// Steps [begin, end) of a tile's sums: all of them, the first, or the last.
struct TilePart {
  Index tile = -1;
  int begin = 0, end = 0;
};

/// What one block computes of `tiles` tiles of `steps` steps each: whole tiles round by round, and at the end, where
/// there is less than two tiles for each block, equal shares of what is left (McNaughton's wrap-around rule, 1959:
/// preemptive scheduling without idle time). A tile that two blocks share is begun by the one before, as the first
/// thing of its share, and ended by the other, as its last: the chain of each sum stays in order, and who waits, waits
/// for a block that began earlier.
/// @cost  the busiest block has max(steps, ⌈tiles · steps / blocks⌉) steps, rounded up to a whole step in each part
class Schedule {
 public:
  GATEFOLD_HD Schedule(Index tiles, int steps, Index blocks)
      : blocks_(blocks), rounds_(tiles / blocks > 1 ? tiles / blocks - 1 : 0), steps_(steps) {
    rest_ = (tiles - rounds_ * blocks) * steps;
    const Index fair = divide_up(rest_, blocks);
    share_ = fair > steps ? fair : steps;
  }

  /// The n-th part of a block; tile −1 after the last.
  GATEFOLD_HD TilePart part(Index block, Index n) const {
    if (n < rounds_) return {n * blocks_ + block, 0, steps_};
    // Its share of the steps of the rest, the last tile of it first.
    const Index begin = block * share_, end = begin + share_ < rest_ ? begin + share_ : rest_;
    const Index tile = (end - 1) / steps_ - (n - rounds_), first = tile * steps_;
    if (begin >= end || first + steps_ <= begin) return {};
    return {rounds_ * blocks_ + tile, static_cast<int>(begin > first ? begin - first : 0),
            static_cast<int>(end - first < steps_ ? end - first : steps_)};
  }

 private:
  Index blocks_, rounds_, rest_, share_;  // rest_: steps of the tiles after the rounds
  int steps_;
};

}  // namespace gatefold::detail_::device
