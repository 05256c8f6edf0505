#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// All tunable numbers of the products. Results do not depend on them, except on Tile::depth. The comments say which
/// values were tried, and how they changed the time of a layer.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

struct Tuning {
  // Rows of the register tile: its sums leave four registers for B and a broadcast of A. Tried: unrolling k 16 times;
  // 20 % slower, because registers spill.
  Index tile_rows = 14;
  // Number of cache lines by which a tile that reads packed panels from memory prefetches ahead.
  Index prefetched_lines = 32;
  // Rows of B that are copied at a time, so that memory is read in long runs.
  Index copied_rows = 16;

  // Sums of at most this many terms use the path rank_update, because most of the memory that such a product accesses
  // is c. Tried: no such path; the backward pass took 56 % longer for 16 items, 89 % longer for 1 item.
  Index rank_update_depth = 32;
  // Gradients with at least this many elements are written with non-temporal stores. Tried: all gradients; steps of 128
  // items with 16 experts of 64 x 128 took 9 % longer, in bfloat16 15 %. Tried: none; steps of 16 items with 8 experts
  // of 512 x 2048 took 13 % longer, with 64 of these experts 10 %.
  Index streamed_size = 1 << 20;

  // A product with fewer multiply-adds than this runs on one thread, because waking threads costs more than it saves.
  Index serial_work = 1 << 18;
  // The largest number of elements of a, hidden and c in a block of rows of a ProductPair, so that they stay in a
  // cache. Tried: half of it; no difference.
  Index cached_size = 1 << 18;
  // The largest number of tiles in a block of rows of a ProductPair.
  Index pair_tiles = 24;
  // If each thread would get fewer blocks of a ProductPair than this, blocks are halved. Tried: all blocks of a small
  // expert on one thread; no difference.
  Index pair_tiles_each = 3;
  // The largest number of tiles in a task of a Product.
  Index product_tiles = 12;
  // The largest number of columns in a task of a Product.
  Index product_columns = 1024;
  // Columns of a task are halved only down to this many panels.
  Index product_panels = 4;
  // If each thread would get fewer tasks of a Product than this, their columns are halved, and then their tiles.
  Index product_tasks_each = 4;
  // The number of blocks of k for which a product packs B at a time. Tried: four blocks of A at a time, in turn for
  // each panel; no difference.
  Index packed_blocks = 16;
  // Size of the memory for packed B, in bytes.
  Index packed_bytes = 16 << 20;

  // With at least this many elements, threads share a for_each.
  Index shared_elements = 1 << 14;
  // With at least this many keys, threads share a group_by.
  Index shared_keys = 1 << 13;
  // The largest number of rows in a task of for_rows.
  Index loop_rows = 64;
  // The number of tasks of for_rows for each thread, if tasks are not larger than loop_rows.
  Index loop_tasks_each = 8;
  // With at least this many elements, threads share a grouped_sum.
  Index shared_sum = 1 << 16;
  // The largest number of columns in a task of grouped_sum.
  Index sum_columns = 512;
  // Number of rows that grouped_sum reads together.
  Index sum_rows = 8;
  // The largest number of rows in a task of gemm_rows, so that its part of c stays in a cache.
  Index handed_rows = 256;
  // With fewer rows than this, gemm_rows has only one task.
  Index unshared_rows = 64;
};

inline constexpr Tuning with_32_registers{}, with_16_registers{.tile_rows = 6};
inline constexpr Tuning tuning = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? with_32_registers : with_16_registers;
// Values for the matrix unit. A register tile is two by two tiles of the unit, so that the unit does not wait for
// loads. There is no path rank_update, because its sums would have different bits. Blocks have about as many rows as
// with vector registers. These values were not timed, because there was no machine with this unit.
inline constexpr Tuning with_amx{.tile_rows = 32, .rank_update_depth = -1, .pair_tiles = 12, .product_tiles = 6};
template <class P>
inline constexpr Tuning tuning_of = on_amx<P> ? with_amx : tuning;

/// The register tile: rows of A by columns of B that one thread sums at a time.
template <class P>
struct Tile {
  static constexpr int size = Register<SumOf<P>>::size;
  static constexpr int columns = 2 * size;
  static constexpr int rows = static_cast<int>(tuning_of<P>.tile_rows);
  // The height of a tile of the matrix unit: the unit computes this many rows in the time of one row.
  static constexpr int unit = on_amx<P> ? 16 : 1;
  // The number of terms of a chain, see tile.hpp, eq. (1). A panel of B [depth, columns] stays in the first-level
  // cache. The depth is part of the definition of a result, and therefore the same on every target. Tried: 128 and 192;
  // no faster.
  static constexpr Index depth = 256;
  // Distance of rows of packed A: a cache line more than a power of two, because with a power of two all rows would be
  // in one cache set.
  static constexpr Index stride = words<P>(depth) + 64 / sizeof(SumOf<P>);
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
