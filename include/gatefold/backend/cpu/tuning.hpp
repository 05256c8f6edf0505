#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// All tunable numbers of the CPU's matrix products and parallel loops. Results do not depend on them, except on
/// Tile::depth. The comments say which other values were tried, and how they changed the time of a layer.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

struct Tuning {
  // Number of rows of a register tile, the part of a matrix product A B that the innermost loop sums in vector
  // registers. Of 32 registers, 28 hold sums; four hold values of B and a value of A in all lanes. Tried: unrolling the
  // loop over the terms k 16 times; 20 % slower, because registers spill.
  Index tile_rows = 14;
  // The number of cache lines by which the innermost loop of a product prefetches ahead if it reads packed weights from
  // memory.
  Index prefetched_lines = 32;
  // When the right factor B of a product is packed, this many rows are copied at a time, so that memory is read in long
  // runs.
  Index copied_rows = 16;

  // A matrix product c = aᵀ b whose sums have at most this many terms is computed by the function rank_update, if its
  // epilogue only stores the sums. Most of the memory that such a product accesses is c. Tried: without rank_update,
  // the backward pass took 56 % longer for 16 items, 89 % longer for 1 item.
  Index rank_update_depth = 32;
  // Gradients of weights with at least this many elements are written with non-temporal stores. Tried: with
  // non-temporal stores for all gradients, steps of 128 items with 16 experts of 64 x 128 took 9 % longer, or 15 % in
  // bfloat16. Without non-temporal stores, steps of 16 items took 13 % longer with 8 experts of 512 x 2048, and 10 %
  // longer with 64 of these experts.
  Index streamed_size = 1 << 20;

  // A product with fewer multiply-adds than this always runs on one thread. For other products the context decides
  // (BasicContext::threads_for) from the time that they are expected to take.
  Index serial_work = 1 << 15;
  // The expected time of products on one thread is the longer of two times. The first is the time for the
  // multiply-adds: each lane of a vector register computes products_per_ns of them per nanosecond. The second is the
  // time for reading the weights, at weights_per_ns of them per nanosecond. On a Zen 4, products that read weights from
  // the second-level cache take about this time. Products that read them from main memory take ten times as long. These
  // products run on several threads anyway, because their weights are large.
  Index products_per_ns = 3, weights_per_ns = 24;
  // The two products of an MLP (ProductPair) are computed for one block of rows at a time. Unless a block has only one
  // or two register tiles, its input, hidden values and results have at most this many elements, so that they stay in a
  // cache. Tried: half as many elements; no difference.
  Index cached_size = 1 << 18;
  // ProductPair computes the two products of an MLP for one block of rows at a time. A block has at most this many
  // register tiles (groups of rows).
  Index pair_tiles = 24;
  // The two products of an MLP (ProductPair) are computed for blocks of rows. If each thread would get fewer blocks
  // than this, the blocks are halved. Tried: all blocks of a small expert on one thread; no difference.
  Index pair_tiles_each = 3;
  // The largest number of register tiles (groups of rows) in a task of a single or grouped matrix product (Product).
  Index product_tiles = 12;
  // The largest number of columns in a task of a single or grouped matrix product (Product).
  Index product_columns = 1024;
  // To get more tasks of a matrix product, the columns of a task are halved, but only down to this many panels (a panel
  // has the columns of two vector registers).
  Index product_panels = 4;
  // If each thread would get fewer tasks of a matrix product than this, tasks are made smaller: their columns are
  // halved, and then their rows.
  Index product_tasks_each = 4;
  // A matrix product A B packs at most packed_blocks · Tile::depth rows of B at a time. Tried: multiplying each panel
  // of B by four blocks of A before the next panel; this did not change the time.
  Index packed_blocks = 16;
  // Size of the memory for packed weights in a product, in bytes.
  Index packed_bytes = 16 << 20;

  // A parallel loop for_each with at least shared_elements elements first computes sampled_elements elements from the
  // middle of the loop on the calling thread. The measured time decides whether several threads compute the others.
  Index shared_elements = 1 << 14, sampled_elements = 1 << 11;
  // A parallel loop for_rows with n rows first computes n / rows_of_sample of them (rounded up), from the middle of the
  // loop, on the calling thread. The measured time decides whether several threads compute the other rows.
  Index rows_of_sample = 16;
  // The parallel sort group_by is shared between threads if there are at least this many keys.
  Index shared_keys = 1 << 13;
  // The largest number of rows in a task of the parallel loop for_rows.
  Index loop_rows = 64;
  // The parallel loop for_rows divides its rows into this many tasks for each thread, or into more if tasks would have
  // more than loop_rows rows.
  Index loop_tasks_each = 8;
  // A grouped_sum (for each expert, a sum of rows) of at least this many elements is shared between threads.
  Index shared_sum = 1 << 16;
  // The largest number of columns in a task of grouped_sum, which sums rows for each expert.
  Index sum_columns = 512;
  // The number of rows that grouped_sum, which sums rows for each expert, reads at the same time.
  Index sum_rows = 8;
  // The function gemm_rows computes a matrix product and calls a function for each finished row. A task of gemm_rows
  // has at most this many rows, so that they stay in a cache until that call.
  Index handed_rows = 256;
  // With fewer rows than this, gemm_rows (a matrix product and then a function for each of its rows) has only one task.
  Index unshared_rows = 64;
};

/// True if the processor has 32 vector registers, false if it has fewer.
#if defined(EIGEN_VECTORIZE_AVX512)
inline constexpr bool has_32_registers = true;
#elif defined(EIGEN_VECTORIZE_SSE2) || !defined(EIGEN_VECTORIZE)
inline constexpr bool has_32_registers = false;
#else
inline constexpr bool has_32_registers = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32;
#endif
inline constexpr Tuning with_32_registers{}, with_16_registers{.tile_rows = 6};
inline constexpr Tuning tuning = has_32_registers ? with_32_registers : with_16_registers;
// Values for Intel's matrix unit (AMX), chosen before a machine with this unit could be measured. A register tile is
// two by two tiles of the unit, so that the unit does not wait for loads. The function rank_update is not used, because
// its sums, computed in vector registers, would have different bits. Blocks have about as many rows as with vector
// registers.
inline constexpr Tuning with_amx{.tile_rows = 32, .rank_update_depth = -1, .pair_tiles = 12, .product_tiles = 6};
template <class P>
inline constexpr Tuning tuning_of = on_amx<P> ? with_amx : tuning;

/// The size of a register tile: the rows of A and the columns of B whose products the innermost loop of a matrix
/// product A B sums in registers at the same time.
template <class P>
struct Tile {
  static constexpr int size = Register<SumOf<P>>::size;
  static constexpr int columns = 2 * size;
  static constexpr int rows = static_cast<int>(tuning_of<P>.tile_rows);
  // A register tile with 1 to `unit` rows takes the same time. `unit` is the height of a tile of the matrix unit (AMX),
  // or 1 with vector registers.
  static constexpr int unit = on_amx<P> ? 16 : 1;
  // The largest number of terms that are summed without a break (in one chain, see tile.hpp, eq. (1)). With 256 terms,
  // a panel of B [depth, columns] stays in the first-level cache. The depth is part of the definition of a result, and
  // therefore the same on every target. Tried: 128 and 192; no faster.
  static constexpr Index depth = 256;
  // Distance between rows of packed A, in elements. It is a cache line more than a power of two, because with a power
  // of two all rows would be in the same set of the cache.
  static constexpr Index stride = words<P>(depth) + 64 / sizeof(SumOf<P>);
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
