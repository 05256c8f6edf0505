#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// Every number of the products that could be another one. No result depends on them, but for Tile::depth. Rejected
/// values stand beside the chosen ones, with the time of a layer that they take more or less.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

struct Tuning {
  // The register tile: four registers are left for B and a broadcast of A. k unrolled 16 times: +20 %, registers spill.
  Index tile_rows = 14;
  // How far ahead a tile that reads packed panels from memory prefetches: lines.
  Index prefetched_lines = 32;
  // Rows of B that are copied at a time, so that memory is read in long runs.
  Index copied_rows = 16;

  // Up to so many terms of a sum c is most of the memory. None: the backward of 16 items +56 %, of one +89 %.
  Index rank_update_depth = 32;
  // Elements of gradients from which on they are stored past the caches. All: steps of 128 items with 16 experts of
  // 64 x 128 +9 %, in bfloat16 +15 %. None: of 16 items with 8 experts of 512 x 2048 +13 %, with 64 of them +10 %.
  Index streamed_size = 1 << 20;

  // Multiply-adds below which waking threads costs more than it saves.
  Index serial_work = 1 << 18;
  // Elements of a, hidden and c of a block of a pair: they stay in a cache. Half: no difference.
  Index cached_size = 1 << 18;
  // Tiles of a block of a pair at most; tiles for each thread at least, or blocks get smaller. Small experts whole, one
  // to a thread with all its blocks: no difference.
  Index pair_tiles = 24;
  Index pair_tiles_each = 3;
  // Tiles and columns of a task of a product at most, panels at least; tasks for each thread, or they get smaller.
  Index product_tiles = 12;
  Index product_columns = 1024;
  Index product_panels = 4;
  Index product_tasks_each = 4;
  // Blocks of k for which a product packs B at a time, and bytes. Four of A at a time, by turns for each panel: no
  // difference.
  Index packed_blocks = 16;
  Index packed_bytes = 16 << 20;

  // Loops: elements and keys from which they are shared among threads, rows of a task at most, tasks for each thread.
  Index shared_elements = 1 << 14;
  Index shared_keys = 1 << 13;
  Index loop_rows = 64;
  Index loop_tasks_each = 8;
  // A sum over slots: elements from which it is shared, columns of a task, rows that are read together.
  Index shared_sum = 1 << 16;
  Index sum_columns = 512;
  Index sum_rows = 8;
  // A product that hands out its rows: rows of a task, whose logits stay in a cache; rows not worth sharing.
  Index handed_rows = 256;
  Index unshared_rows = 64;
};

inline constexpr Tuning with_32_registers{}, with_16_registers{.tile_rows = 6};
inline constexpr Tuning tuning = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? with_32_registers : with_16_registers;
// The matrix unit: two of its tiles by two, so that it waits for no load. No path for few terms, whose sums would have
// other bits; blocks of about as many rows as above. Not timed: there was no such unit.
inline constexpr Tuning with_amx{.tile_rows = 32, .rank_update_depth = -1, .pair_tiles = 12, .product_tiles = 6};
template <class P>
inline constexpr Tuning tuning_of = on_amx<P> ? with_amx : tuning;

/// The register tile: rows of A by columns of B that one thread sums at a time.
template <class P>
struct Tile {
  static constexpr int size = Register<SumOf<P>>::size;
  static constexpr int columns = 2 * size;
  static constexpr int rows = static_cast<int>(tuning_of<P>.tile_rows);
  // Rows that take as long as one: a tile of the matrix unit.
  static constexpr int unit = on_amx<P> ? 16 : 1;
  // Terms of a chain, see tile.hpp, eq. (1). A panel of B [depth, columns] stays in the first-level cache. Part of the
  // definition of a result, hence the same on every target; 128 and 192 were no faster.
  static constexpr Index depth = 256;
  // Rows of packed A lie this far apart: a cache line more than a power of two, which would put them all in one set.
  static constexpr Index stride = words<P>(depth) + 64 / sizeof(SumOf<P>);
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
