#pragma once

#include <algorithm>

#include "gatefold/backend/cpu/executor.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// Divides the rows of a matrix product into blocks and register tiles, and the work items of a batch of products into
/// parts that threads compute.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A block of rows [first, first + count) of a matrix product. It is divided into register tiles with heights that are
/// as equal as possible. The height of all tiles except the last is a multiple of `unit` (Tile::unit).
struct RowBlock {
  Index first, count, tiles, unit;

  Index begin(Index t) const { return std::min(t * divide_up(count, unit) / tiles * unit, count); }
  Index size(Index t) const { return begin(t + 1) - begin(t); }

  /// Returns one block with all rows of an expert, for matrix products with operands of type P. `rows` is at least 1.
  template <class P>
  static RowBlock all(Index rows) {
    return {0, rows, divide_up(rows, Tile<P>::rows), Tile<P>::unit};
  }
  /// Divides the rows of this block into n smaller blocks of whole tiles, and returns the i-th of them.
  RowBlock block(Index i, Index n) const {
    const Index from = i * tiles / n, to = (i + 1) * tiles / n;
    return {first + begin(from), begin(to) - begin(from), to - from, unit};
  }
};

/// A wave: a group of work items (parts of matrix products) that all threads compute together. A large batch is
/// computed in several waves, because the work items of a wave must fit into the scratch memory.
/// @tparam Item  has a member `Index begin`, which only the wave uses
template <class Item>
class Wave {
 public:
  /// Makes a wave without work items.
  /// @param items  memory for the largest possible number of items
  Wave(Item* items, ExecutorRef executor, int threads) : items_(items), executor_(executor), threads_(threads) {}

  void add(const Item& item) { items_[count_++] = item; }
  void clear() { count_ = 0; }

  /// Calls f(item, part, worker) for every item of the wave and every part from 0 to parts(item) − 1, on all threads.
  /// `worker` has the same meaning as in parallel_for.
  template <class P, class F>
  void each_part(const P& parts, const F& f) {
    Index all = 0;
    for (Item* item = items_; item < items_ + count_; ++item) {
      item->begin = all;
      all += parts(*item);
    }
    parallel_for(executor_, threads_, all, [&](Index i, int worker) noexcept {
      const Item& item = find(i);
      f(item, i - item.begin, worker);
    });
  }

 private:
  // Returns the item to which part number i belongs. The parts of all items are numbered one after the other, and
  // `begin` is the number of an item's first part. The result is the last item with begin <= i. Items without parts are
  // not found, because the next item has the same `begin`.
  const Item& find(Index i) const {
    return *(std::upper_bound(items_, items_ + count_, i, [](Index x, const Item& item) { return x < item.begin; }) -
             1);
  }

  Item* items_;
  ExecutorRef executor_;
  int threads_;
  Index count_ = 0;
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
