#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// All tunable numbers of the products. Results do not depend on them, except on Tile::depth. The comments list
/// rejected values, with the change that they make to the time of a layer.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

struct Tuning {
  // Rows of the register tile: four registers are left for B and a broadcast of A. Unrolling k 16 times: +20 %, because
  // registers spill.
  Index tile_rows = 14;
  // Lines by which a tile that reads packed panels from memory prefetches ahead.
  Index prefetched_lines = 32;
  // Rows of B that are copied at a time, so that memory is read in long runs.
  Index copied_rows = 16;

  // With at most this many terms in a sum, most of the memory is c, and the path rank_update is used. Without that
  // path, the backward pass of 16 items takes +56 %, of 1 item +89 %.
  Index rank_update_depth = 32;
  // Gradients with at least this many elements are stored past the caches. Always: steps of 128 items with 16 experts
  // of 64 x 128 take +9 %, in bfloat16 +15 %. Never: steps of 16 items with 8 experts of 512 x 2048 take +13 %, with 64
  // of these experts +10 %.
  Index streamed_size = 1 << 20;

  // Multiply-adds below which waking threads costs more than it saves.
  Index serial_work = 1 << 18;
  // Elements of a, hidden and c of one block of a pair, so that they stay in a cache. Half: no difference.
  Index cached_size = 1 << 18;
  // The most tiles of a block of a pair; the fewest tiles for each thread, below which blocks get smaller. Each small
  // expert whole, with all its blocks on one thread: no difference.
  Index pair_tiles = 24;
  Index pair_tiles_each = 3;
  // The most tiles and columns of a task of a product; the fewest panels of a task; the fewest tasks for each thread,
  // below which tasks get smaller.
  Index product_tiles = 12;
  Index product_columns = 1024;
  Index product_panels = 4;
  Index product_tasks_each = 4;
  // Blocks of k for which a product packs B at a time, and bytes of packed B. Four blocks of A at a time, in turn for
  // each panel: no difference.
  Index packed_blocks = 16;
  Index packed_bytes = 16 << 20;

  // Loops: elements and keys from which on threads share a loop; the most rows of a task; tasks for each thread.
  Index shared_elements = 1 << 14;
  Index shared_keys = 1 << 13;
  Index loop_rows = 64;
  Index loop_tasks_each = 8;
  // A sum over slots: elements from which on threads share it; columns of a task; rows that are read together.
  Index shared_sum = 1 << 16;
  Index sum_columns = 512;
  Index sum_rows = 8;
  // gemm_rows: rows of a task, whose logits stay in a cache; with fewer than unshared_rows, one task has all rows.
  Index handed_rows = 256;
  Index unshared_rows = 64;
};

inline constexpr Tuning with_32_registers{}, with_16_registers{.tile_rows = 6};
inline constexpr Tuning tuning = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? with_32_registers : with_16_registers;
// The matrix unit: a tile of two by two of its tiles, so that it does not wait for loads. It has no path for few terms,
// because their sums would have other bits. Blocks have about as many rows as above. Not timed, because there was no
// machine with this unit.
inline constexpr Tuning with_amx{.tile_rows = 32, .rank_update_depth = -1, .pair_tiles = 12, .product_tiles = 6};
template <class P>
inline constexpr Tuning tuning_of = on_amx<P> ? with_amx : tuning;

/// The register tile: rows of A by columns of B that one thread sums at a time.
template <class P>
struct Tile {
  static constexpr int size = Register<SumOf<P>>::size;
  static constexpr int columns = 2 * size;
  static constexpr int rows = static_cast<int>(tuning_of<P>.tile_rows);
  // Rows that take as long as one row: the height of a tile of the matrix unit.
  static constexpr int unit = on_amx<P> ? 16 : 1;
  // Terms of a chain, see tile.hpp, eq. (1). A panel of B [depth, columns] stays in the first-level cache. The depth is
  // part of the definition of a result, and therefore the same on every target. 128 and 192 were no faster.
  static constexpr Index depth = 256;
  // Distance of rows of packed A: a cache line more than a power of two, which would put all rows into one cache set.
  static constexpr Index stride = words<P>(depth) + 64 / sizeof(SumOf<P>);
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
