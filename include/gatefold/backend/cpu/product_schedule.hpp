#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/block_product.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// Decides how Product, the engine for matrix products, divides the work of each expert. The decision depends on the
/// number of rows of each expert and is made before any work is done. Also computes the largest memory that a Product
/// can need for any routing with the same number of slots.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Chooses the number of threads and the sizes of tasks. For each expert, also chooses how its weights B reach the
/// innermost loop (WeightPath), for example packed or read in place.
template <class P>
class ProductSchedule {
 public:
  /// Chooses the sizes of the tasks for one batch of matrix products.
  /// @param stores  whether the epilogue (the function applied to each sum) only stores the sums
  ProductSchedule(const Batch<P>& batch, bool stores, int threads) : b_(batch), stores_(stores), threads_(threads) {
    Index work = 0, most_tiles = 0;
    for (Index e = 0; e < b_.experts; ++e) {
      const Problem<P> p = b_[e];
      if (p.rows == 0 || p.columns == 0) continue;
      work += p.rows * p.columns * p.depth;
      depth_ = std::max(depth_, p.depth);
      most_tiles = std::max(most_tiles, divide_up(p.rows, Tile<P>::rows));
    }
    empty_ = most_tiles == 0;
    if (work < tuning.serial_work) threads_ = 1;
    // Large tasks reuse packed operands more often; small tasks keep all threads busy. Therefore tasks are made smaller
    // only until there are enough of them.
    const auto idle = [&] { return threads_ > 1 && tasks() < tuning.product_tasks_each * threads_; };
    while (idle() && panels_ > tuning.product_panels) panels_ /= 2;
    while (idle() && block_tiles_ > 1) block_tiles_ /= 2;
    block_tiles_ = std::min(block_tiles_, std::max<Index>(most_tiles, 1));
  }

  bool empty() const { return empty_; }
  int threads() const { return threads_; }
  /// Returns the largest depth (number of terms in a sum) of the experts' matrix products.
  Index depth() const { return depth_; }
  /// Returns the largest number of columns of a work item. Work items are the parts into which the columns of a matrix
  /// product are divided.
  Index columns() const { return panels_ * Tile<P>::columns; }
  /// Returns the number of tasks into which the rows of an expert's matrix product are divided.
  Index row_blocks(const Problem<P>& p) const { return divide_up(divide_up(p.rows, Tile<P>::rows), block_tiles_); }
  WeightPath path(const Problem<P>& p) const {
    if (p.packed) return WeightPath::prepacked;
    const bool in_columns = !p.a.lines_are_rows && !p.b.lines_are_rows;
    if (p.depth <= tuning_of<P>.rank_update_depth && stores_ && in_columns) return WeightPath::rank_update;
    return packs(b_) && row_blocks(p) > 1 ? WeightPath::by_call : WeightPath::by_task;
  }

  /// Returns whether the right factor B must be packed. Tasks can read B in place unless B is transposed, gathered or
  /// narrower than a panel, or the matrix unit (AMX) computes the product.
  static bool packs(const Batch<P>& b) {
    return on_amx<P> || b.all.b.lines_are_rows || b.all.b.rows || b.all.columns < Tile<P>::columns;
  }

  /// Returns whether rows of the result c are written with non-temporal stores. This requires gradients c that replace
  /// earlier values and need not stay in the cache (Batch::stays_cached), whole panels of columns, aligned rows, and
  /// vector registers (not AMX). Sums must have at most Tile::depth terms, so that each element of c is written once.
  bool streams(const Problem<P>& p) const {
    constexpr Index register_bytes = Register<T>::size * sizeof(T);
    const auto aligned = [](std::uintptr_t bytes) { return bytes % register_bytes == 0; };
    return !on_amx<P> && stores_ && b_.slots == Batch<P>::Slots::are_depth && !b_.accumulate && !b_.stays_cached &&
           p.depth <= Tile<P>::depth && p.columns % Tile<P>::columns == 0 &&
           aligned(reinterpret_cast<std::uintptr_t>(p.c)) &&
           aligned(static_cast<std::uintptr_t>(p.c_stride) * sizeof(T));
  }

 private:
  using T = SumOf<P>;

  Index tasks() const {
    Index n = 0;
    for (Index e = 0; e < b_.experts; ++e) {
      const Problem<P> p = b_[e];
      if (p.rows > 0) n += row_blocks(p) * divide_up(p.columns, columns());
    }
    return n;
  }

  const Batch<P>& b_;
  const bool stores_;
  int threads_;
  bool empty_ = true;
  Index depth_ = 0, panels_ = tuning.product_columns / Tile<P>::columns, block_tiles_ = tuning_of<P>.product_tiles;
};

/// The sizes of the scratch memory of a Product (a batch of matrix products), in elements. They are computed from sizes
/// only, and are sufficient for every routing with the same number of slots. Later calls therefore reuse the memory of
/// the first call.
template <class P>
struct ProductMemory {
  Index items;  // largest number of work items that are computed together
  // Memory for packed parts of the weights B that several tasks share. If not all parts fit, they are packed and used
  // in groups (waves), one group after the other.
  Index packed;
  Index a, sums, panels;  // scratch memory of each thread

  ProductMemory(const Batch<P>& b, int threads, Index budget) {
    const Index rows = b.most_rows(), depth = b.most_depth(), columns = b.all.columns;
    const Index tiles = std::min(tuning_of<P>.product_tiles, divide_up(rows, Tile<P>::rows));
    const Index widest = std::min(tuning.product_columns, PackedMatrix<P>::padded(columns));
    const Index narrowest = threads > 1 ? std::min<Index>(tuning.product_panels * Tile<P>::columns, widest) : widest;
    items = b.experts * divide_up(columns, narrowest);
    packed = std::min(most_packed(b, threads), std::max(budget, words<P>(std::min(depth, chunk)) * widest));
    a = tiles * Tile<P>::rows * Tile<P>::stride;
    sums = tiles * Tile<P>::rows * (depth > Tile<P>::depth ? widest : std::min(widest, Tile<P>::depth));
    panels = BlockProduct<P>::memory(ProductSchedule<P>::packs(b), depth, columns);
    // rank_update, the function for sums with few terms, uses the memory of the panels for a copy of columns of B,
    // rounded to bfloat16.
    if constexpr (!std::is_same_v<P, SumOf<P>>)
      panels = std::max(panels, words<P>(std::min(depth, tuning_of<P>.rank_update_depth)) * widest);
  }

  /// The number of rows of the right factor B that are packed at a time. Sums are computed in chunks of this many
  /// terms.
  static constexpr Index chunk = tuning.packed_blocks * Tile<P>::depth;

 private:
  // Returns the largest memory that packed parts of the weights B can need at the same time, in words (packed
  // elements). It is needed for experts that have no packed weights yet and more rows than one task takes.
  static Index most_packed(const Batch<P>& b, int threads) {
    const Index rows = b.most_rows(), depth = b.most_depth(), padded = PackedMatrix<P>::padded(b.all.columns);
    const Index unshared = (threads > 1 ? 1 : tuning_of<P>.product_tiles) * Tile<P>::rows;
    if (b.all.packed || rows <= unshared || !ProductSchedule<P>::packs(b)) return 0;
    switch (b.slots) {
      case Batch<P>::Slots::none:
        return words<P>(std::min(depth, chunk)) * padded;
      case Batch<P>::Slots::are_rows:
        return std::min(b.experts, rows / (unshared + 1)) * words<P>(std::min(depth, chunk)) * padded;
      default:
        // The largest number of rows of the weights B that are packed at a time for all experts together, without
        // padding.
        const Index all = std::min(depth, b.experts * chunk);
        return words<P>(all + std::min(b.experts, all) * (values_of_step<P> - 1)) * padded;
    }
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
