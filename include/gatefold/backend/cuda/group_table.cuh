#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <cub/block/block_scan.cuh>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// Sorts a table of keys by counting. For example, each row of the table has the experts that one item has picked. The
/// sort is stable. It reads the keys twice, or only once if one thread block holds all keys.
namespace gatefold::detail_::device {

/// Sizes for the sort by counting. A thread block processes up to `positions` keys. Each of its warps processes
/// `warp_positions` consecutive keys.
struct TableTile {
  static constexpr int threads = 256, warps = threads / 32, steps = 8;
  static constexpr int warp_positions = 32 * steps, positions = warps * warp_positions;
  // Largest number of groups. The counts of each warp then fit the shared memory of a block.
  static constexpr Index most_groups = 1024;
  // Largest number of keys in a row of the table. It is limited, because each key is compared with all keys of its row.
  static constexpr Index most_each = 64;
  static constexpr std::size_t bytes(Index groups) {
    return sizeof(int) * (static_cast<std::size_t>(groups) * warps + positions);
  }
};

/// The input and output arrays of a sort by counting, for a table of n keys in rows of `each` keys. The comment of the
/// primitive group_table in backend.hpp describes the output arrays `offsets` to `row_slots`.
struct Table {
  const Index* keys;
  // `n` is the number of all keys, `each` the number of keys in a row of the table, and `tile` the number of keys that
  // a thread block processes. `tile` is a multiple of `each`, so a tile consists of whole rows.
  int n, each, groups, tile;
  Index *offsets, *order, *rows, *row_offsets, *row_slots;
};

/// Counts the keys of each group in each tile of the table: counts[g · blocks + b] is the number of keys that are equal
/// to g in the tile of block b.
static __global__ void __launch_bounds__(TableTile::threads) table_counts_kernel(Table t, int* counts) {
  extern __shared__ int count[];
  for (int g = static_cast<int>(threadIdx.x); g < t.groups; g += TableTile::threads) count[g] = 0;
  __syncthreads();
  const int begin = static_cast<int>(blockIdx.x) * t.tile, end = t.n - begin < t.tile ? t.n : begin + t.tile;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += TableTile::threads) {
    GATEFOLD_ASSERT(0 <= t.keys[i] && t.keys[i] < t.groups, "group_table: key out of range");
    atomicAdd(&count[t.keys[i]], 1);
  }
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < t.groups; g += TableTile::threads)
    counts[static_cast<std::size_t>(g) * gridDim.x + blockIdx.x] = count[g];
}

/// Replaces each value by the sum of the values before it: x[i] ← Σ_{j < i} x[j]. One thread block computes all sums.
static __global__ void __launch_bounds__(TableTile::threads) table_sums_kernel(int* x, Index n) {
  constexpr int each = 8;
  using Scan = cub::BlockScan<int, TableTile::threads>;
  __shared__ typename Scan::TempStorage shared;
  int before = 0;
  for (Index first = 0; first < n; first += TableTile::threads * each) {
    const Index mine = first + Index(threadIdx.x) * each;
    int v[each], total;
    for (int i = 0; i < each; ++i) v[i] = mine + i < n ? x[mine + i] : 0;
    Scan(shared).ExclusiveSum(v, v, total);
    for (int i = 0; i < each; ++i)
      if (mine + i < n) x[mine + i] = before + v[i];
    before += total;
    __syncthreads();
  }
}

/// Computes the slot (position in sorted order) of every key of a tile, and writes the outputs of the sort. Smaller
/// keys come first; equal keys keep the order of their positions in the table.
/// @param before  [groups · blocks] for each group and tile, the slot of the group's first key in the tile (the number
///                of keys before this key in sorted order); null if there is only one tile
static __global__ void __launch_bounds__(TableTile::threads) table_slots_kernel(Table t, const int* before) {
  constexpr int warps = TableTile::warps, steps = TableTile::steps;
  constexpr unsigned all = 0xffffffffu;
  using Scan = cub::BlockScan<int, TableTile::threads>;
  __shared__ typename Scan::TempStorage scan;
  extern __shared__ int slot_of[];              // [positions]: slot (sorted position) of each key of the tile
  int* count = slot_of + TableTile::positions;  // [groups][warps]
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int begin = static_cast<int>(blockIdx.x) * t.tile, size = t.n - begin < t.tile ? t.n - begin : t.tile;
  for (int i = thread; i < t.groups * warps; i += TableTile::threads) count[i] = 0;
  __syncthreads();

  int key[steps], rank[steps];  // rank: number of equal keys before this key in its warp
  const int bits = 32 - __clz(t.groups - 1);
#pragma unroll
  for (int step = 0; step < steps; ++step) {
    const int at = warp * TableTile::warp_positions + step * 32 + lane;
    const bool exists = at < size;
    key[step] = exists ? static_cast<int>(t.keys[begin + at]) : 0;
    GATEFOLD_ASSERT(0 <= key[step] && key[step] < t.groups, "group_table: key out of range");
    unsigned same = __ballot_sync(all, exists);
    for (int bit = 0; bit < bits; ++bit) {
      const bool set = key[step] >> bit & 1;
      const unsigned having = __ballot_sync(all, set);
      same &= set ? having : ~having;
    }
    int* of_key = &count[key[step] * warps + warp];
    const int earlier = __popc(same & ((1u << lane) - 1)), so_far = *of_key;
    rank[step] = so_far + earlier;
    __syncwarp();
    if (exists && earlier == 0) *of_key = so_far + __popc(same);
    __syncwarp();
  }
  __syncthreads();

  // The groups are processed in rounds. In a round, each thread has one group. first_slot is the first slot of the
  // round's groups.
  int first_slot = 0;
  for (int round = 0; round < t.groups; round += TableTile::threads) {
    const int g = round + thread;
    int total = 0, slot = 0;
    for (int w = 0; w < warps && g < t.groups; ++w) total += count[g * warps + w];
    if (before) {
      if (g < t.groups) slot = before[static_cast<std::size_t>(g) * gridDim.x + blockIdx.x];
    } else {
      int of_round;
      Scan(scan).ExclusiveSum(total, slot, of_round);
      slot += first_slot;
      first_slot += of_round;
      __syncthreads();
    }
    if (g >= t.groups) continue;
    if (blockIdx.x == 0) t.offsets[g] = slot;
    for (int w = 0; w < warps; ++w) {
      const int here = count[g * warps + w];
      count[g * warps + w] = slot;
      slot += here;
    }
  }
  __syncthreads();

#pragma unroll
  for (int step = 0; step < steps; ++step) {
    const int at = warp * TableTile::warp_positions + step * 32 + lane;
    if (at >= size) break;
    const int slot = count[key[step] * warps + warp] + rank[step];
    slot_of[at] = slot;
    t.order[slot] = begin + at;
    t.rows[slot] = (begin + at) / t.each;
  }
  __syncthreads();
  for (int at = thread; at < size; at += TableTile::threads) {
    const int first = at - at % t.each, slot = slot_of[at];
    int place = first;
    for (int i = first; i < first + t.each; ++i) place += slot_of[i] < slot;
    t.row_slots[begin + place] = slot;
    if (at == first) t.row_offsets[(begin + at) / t.each] = begin + at;
  }
  if (blockIdx.x > 0 || thread > 0) return;
  t.offsets[t.groups] = t.n;
  t.row_offsets[t.n / t.each] = t.n;
}

/// Returns whether group_table supports n keys in rows of `each` keys, and `groups` groups.
inline bool fits_table(Index n, Index each, Index groups) {
  // The limit leaves a margin, because the indices that threads compute can exceed n.
  constexpr Index most = INT32_MAX - TableTile::threads;
  return 1 <= groups && groups <= TableTile::most_groups && 1 <= each && each <= TableTile::most_each && n <= most;
}

/// Sorts a table of keys by counting, and writes the slots of each group and of each row (backend.hpp, group_table).
/// @param n       number of keys
/// @param each    number of keys in a row
/// @param groups  number of groups; fits_table(n, each, groups) must be true
/// @cost   keys read once, or twice if there is more than one tile; n · each comparisons; with several tiles, one block
///         computes the running totals of groups · tiles counts
/// @order  slots are computed by counting keys; the result does not depend on the tiles
template <class Context>
void group_table(Context& ctx, Index n, Index each, const Index* keys, Index groups, Index* offsets, Index* order,
                 Index* rows, Index* row_offsets, Index* row_slots) {
  const Index tile = TableTile::positions / each * each, tiles = n > 0 ? blocks(n, tile) : 1;
  const Table table{keys,
                    static_cast<int>(n),
                    static_cast<int>(each),
                    static_cast<int>(groups),
                    static_cast<int>(tile),
                    offsets,
                    order,
                    rows,
                    row_offsets,
                    row_slots};
  const auto mark = ctx.mark();
  int* counts = nullptr;
  if (tiles > 1) {
    counts = ctx.template scratch<int>(groups * tiles).data();
    table_counts_kernel<<<grid(tiles), TableTile::threads, sizeof(int) * static_cast<std::size_t>(groups),
                          ctx.stream()>>>(table, counts);
    expect_launched("Cuda::group_table");
    table_sums_kernel<<<1, TableTile::threads, 0, ctx.stream()>>>(counts, groups * tiles);
    expect_launched("Cuda::group_table");
  }
  table_slots_kernel<<<grid(tiles), TableTile::threads, TableTile::bytes(groups), ctx.stream()>>>(table, counts);
  expect_launched("Cuda::group_table");
}

}  // namespace gatefold::detail_::device
