#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/bf16_product.cuh"
#include "gatefold/backend/cuda/elements.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/outer_product.cuh"
#include "gatefold/backend/cuda/plain_product.cuh"
#include "gatefold/backend/cuda/row_tile.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/cuda/tensor_core.cuh"
#include "gatefold/backend/cuda/tensor_map.cuh"
#include "gatefold/backend/cuda/warpgroup.cuh"
#include "gatefold/core/types.hpp"

/// The grouped products of bfloat16 on Hopper: blocks that stay, in which one warp has boxes of both operands copied to
/// a ring of tiles, while two warpgroups multiply what has come. The bits are those of bf16_product.cuh.
namespace gatefold::device {

/// A block computes 128 × 256 sums at a time: 256 columns of one matrix, or 128 of each of two.
struct HopperTile {
  static constexpr int rows = 128, columns = 256, depth = 64, stages = 4;
  static constexpr int groups = 2, group_rows = rows / groups, threads = (groups + 1) * 128;
  static constexpr int a_boxes = rows / kBoxRows, b_boxes = columns / kBoxRows;
  static constexpr int stage_bytes = (a_boxes + b_boxes) * kBoxBytes;
  // Sums on their way to the epilogue: eight rows of 64 columns at a time for each warp, in rows that meet other banks.
  static constexpr int run_columns = 64, run_pitch = run_columns + 8, run_values = 8 * run_pitch;
  static constexpr int ring = 0, staged = ring + stages * stage_bytes, barriers = staged + groups * 4 * run_values * 4;
  static constexpr int bytes = barriers + 2 * stages * 8 + 1024;  // the ring begins at a multiple of 1024
  static_assert(bytes <= 227 * 1024, "gatefold: more shared memory than a block has");
};

struct HopperMaps {
  CUtensorMap a, b[2];
};

/// What a block sums next.
struct HopperWork {
  int expert;        // −1: nothing more
  int first, rows;   // row 0 to the epilogue, rows from there on; both of c's part
  int column;        // where it begins in c
  int a_row, b_row;  // coordinates of the operands, less the depth
  int depth;         // of the sums
  int depth_row;     // slots are depth: the first of them
};

/// Where the n-th tile lies. By all lanes of a warp.
template <bool SlotsAreDepth, int Matrices>
struct HopperTiles {
  const Index* offsets;
  int experts, rows, columns, depth;  // slots are rows: rows is not read; slots are depth: depth is not
  bool accumulate;

  __device__ HopperWork work(int n) const {
    constexpr int columns_each = HopperTile::columns / Matrices;
    const int column_tiles = (columns + columns_each - 1) / columns_each, column = n % column_tiles * columns_each;
    if constexpr (SlotsAreDepth) {
      const int row_tiles = (rows + HopperTile::rows - 1) / HopperTile::rows, expert = n / (column_tiles * row_tiles);
      if (expert >= experts) return {-1};
      const int row = n / column_tiles % row_tiles * HopperTile::rows, slot = static_cast<int>(offsets[expert]);
      return {
          expert, expert * rows + row, rows - row, column, row, column, static_cast<int>(offsets[expert + 1]) - slot,
          slot};
    } else {
      const RowTile tile = find_row_tile(offsets, experts, HopperTile::rows, n / column_tiles);
      if (tile.expert < 0) return {-1};
      const int first = static_cast<int>(offsets[tile.expert] + tile.row);
      return {static_cast<int>(tile.expert),
              first,
              static_cast<int>(offsets[tile.expert + 1]) - first,
              column,
              first,
              column,
              depth,
              0};
    }
  }
};

/// The ring of a block, as one thread goes round it.
class HopperRing {
 public:
  __device__ explicit HopperRing(std::uint32_t shared) : shared_(shared) {}

  /// By one thread.
  __device__ static void init(std::uint32_t shared) {
    for (int s = 0; s < HopperTile::stages; ++s) {
      Barrier{shared + HopperTile::barriers + 8 * s}.init(1);
      Barrier{shared + HopperTile::barriers + 8 * (HopperTile::stages + s)}.init(HopperTile::groups * 4);
    }
    fence_barrier_init();
  }
  __device__ std::uint32_t tile() const { return shared_ + HopperTile::ring + stage_ * HopperTile::stage_bytes; }
  __device__ Barrier full() const { return {shared_ + HopperTile::barriers + 8 * stage_}; }
  __device__ Barrier empty() const { return empty(stage_); }
  __device__ Barrier empty(int stage) const {
    return {shared_ + HopperTile::barriers + 8 * (HopperTile::stages + stage)};
  }
  __device__ int stage() const { return stage_; }
  __device__ int phase() const { return phase_; }
  __device__ void next() {
    if (++stage_ < HopperTile::stages) return;
    stage_ = 0;
    phase_ ^= 1;
  }

 private:
  std::uint32_t shared_;
  int stage_ = 0, phase_ = 0;
};

/// c[s] = epilogue(a[s] op(b_e), …), or, where slots are depth, of expert e c = epilogue(Σ_s a[s]ᵀ b[s]).
/// @tparam OfB  how b lies: slots are rows: along_lines, or along_depth for transposed weights
/// @param stride  of a row of c
/// @order  as bf16_product.cuh
template <bool SlotsAreDepth, Layout OfB, int Matrices, class C, class E>
class HopperProduct {
  using T = HopperTile;
  static constexpr Layout kA = SlotsAreDepth ? Layout::along_lines : Layout::along_depth;
  /// Floats that are stored or added as they are go from where they are summed: four lanes write 32 bytes of a row.
  static constexpr bool kDirect =
      std::is_same_v<C, float> && (std::is_same_v<E, fn::Store> || std::is_same_v<E, AddOrStore<float>>);

 public:
  const CUtensorMap* a;
  const CUtensorMap* b;
  HopperTiles<SlotsAreDepth, Matrices> tiles;
  C* c;
  Index stride;
  const E& epilogue;

  /// By one warp: have all tiles copied.
  __device__ void fill(std::uint32_t shared) const {
    HopperRing ring(shared);
    for (int n = static_cast<int>(blockIdx.x);; n += static_cast<int>(gridDim.x)) {
      const HopperWork work = tiles.work(n);
      if (work.expert < 0) return;
      for (int k = 0; k < work.depth; k += T::depth, ring.next()) {
        if (threadIdx.x % 32 != 0) continue;
        ring.empty().wait(ring.phase() ^ 1);
        ring.full().arrive_and_expect(T::stage_bytes);
        const int at = k + work.depth_row, expert = SlotsAreDepth ? 0 : work.expert;
        std::uint32_t to = ring.tile();
#pragma unroll
        for (int box = 0; box < T::a_boxes; ++box, to += kBoxBytes)
          copy<kA>(to, a, work.a_row + box * kBoxRows, at, 0, ring.full());
#pragma unroll
        for (int box = 0; box < T::b_boxes; ++box, to += kBoxBytes) {
          constexpr int each = T::b_boxes / Matrices;
          copy<OfB>(to, b + box / each, work.b_row + box % each * kBoxRows, at, expert, ring.full());
        }
      }
    }
  }

  /// By a warpgroup: multiply what has come, and finish.
  __device__ void multiply(std::uint32_t shared, float* staged, int group) const {
    HopperRing ring(shared);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sum[128];
    set_zero(sum);
    int n = static_cast<int>(blockIdx.x);
    HopperWork work = tiles.work(n), next;
    for (; work.expert >= 0; work = next) {
      int before = -1;
      for (int k = 0; k < work.depth; k += T::depth) {
        ring.full().wait(ring.phase());
        if constexpr (SlotsAreDepth)
          if (work.depth - k < T::depth) clear(ring.tile(), work.depth - k);
        const std::uint32_t of_a = ring.tile() + group * kBoxBytes, of_b = ring.tile() + T::a_boxes * kBoxBytes;
        const std::uint64_t from_a = matrix_descriptor(of_a, block_bytes<kA>),
                            from_b = matrix_descriptor(of_b, block_bytes<OfB>);
        begin_products();
#pragma unroll
        for (int d = 0; d < T::depth; d += 16)
          add_product<kA == Layout::along_lines, OfB == Layout::along_lines>(sum, from_a + deeper<kA>(d),
                                                                             from_b + deeper<OfB>(d), k + d > 0);
        commit_products();
        if (before >= 0) {
          wait_products<1>();
          if (lane == 0) ring.empty(before).arrive();
        }
        before = ring.stage();
        ring.next();
      }
      next = tiles.work(n += static_cast<int>(gridDim.x));  // while the last products are summed
      wait_for_sums(sum);
      if (before >= 0 && lane == 0) ring.empty(before).arrive();
      if (SlotsAreDepth && work.depth == 0 && tiles.accumulate) continue;
      if constexpr (kDirect) {
        finish_directly(work, sum, group);
      } else {
        finish(work, sum, staged, group);
      }
    }
  }

 private:
  __device__ static void set_zero(float (&sum)[128]) {
#pragma unroll
    for (int i = 0; i < 128; ++i) sum[i] = 0;
  }
  template <Layout L>
  __device__ static void copy(std::uint32_t to, const CUtensorMap* map, int line, int depth, int matrix, Barrier full) {
    if constexpr (L == Layout::along_depth) {
      copy_box(to, map, depth, line, matrix, full);
    } else {
      copy_box(to, map, line, depth, matrix, full);
    }
  }
  /// From 64 lines to the next, where they are contiguous.
  template <Layout L>
  static constexpr std::uint32_t block_bytes = L == Layout::along_lines ? kBoxBytes : 16;
  /// What a descriptor gains for the depth d of a tile, in 16 bytes.
  template <Layout L>
  __device__ static constexpr int deeper(int d) {
    return (L == Layout::along_depth ? d * 2 : d * 128) / 16;
  }
  /// Zeros from depth `left` of a tile on, for other experts' slots are there, or nobody's. By both warpgroups.
  __device__ static void clear(std::uint32_t tile, int left) {
    const int units = (T::depth - left) * 8;
    for (int box = 0; box < T::a_boxes + T::b_boxes; ++box)
      for (int i = static_cast<int>(threadIdx.x); i < units; i += T::groups * 128)
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(tile + box * kBoxBytes + left * 128 + i * 16),
                     "r"(0)
                     : "memory");
    fence_before_products();
    asm volatile("bar.sync 1, %0;" ::"n"(T::groups * 128) : "memory");
  }

  __device__ void finish_directly(const HopperWork& work, const float (&sum)[128], int group) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % 128 / 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = group * T::group_rows + warp * 16 + half * 8 + lane / 4;
      if (row >= work.rows) continue;
      const Index s = work.first + row;
#pragma unroll
      for (int block = 0; block < T::columns / 8; ++block) {
        const int j = work.column + 8 * block + lane % 4 * 2;
        if (j >= tiles.columns) continue;
        Elements<2> pair[1];
        pair[0].v[0] = work.depth > 0 ? sum[4 * block + 2 * half] : 0.f;
        pair[0].v[1] = work.depth > 0 ? sum[4 * block + 2 * half + 1] : 0.f;
        finish_row_part<1>(epilogue, work.expert, s, j, tiles.columns, pair, c + s * stride, stride);
      }
    }
  }
  /// Store what the epilogue makes of a warp's 16 rows: eight rows of 64 columns at a time through shared memory, so
  /// that a lane has eight neighbours and the epilogue is compiled once.
  __device__ void finish(const HopperWork& work, const float (&sum)[128], float* staged, int group) const {
    constexpr int run_size = 8, each = T::run_columns / Matrices, lanes = each / run_size, at_once = 32 / lanes;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % 128 / 32;
    float* const mine = staged + (group * 4 + warp) * T::run_values;
#pragma unroll 1
    for (int run = 0; run < 8; ++run) {
      __syncwarp();
      stage(run, work.depth > 0, sum, mine + lane / 4 * T::run_pitch + lane % 4 * 2);
      __syncwarp();
      const int half = run % 2, row = group * T::group_rows + warp * 16 + half * 8;
      const int j = work.column + run / 2 * each + lane % lanes * run_size;
#pragma unroll 2
      for (int y = lane / lanes; y < 8; y += at_once) {
        if (row + y >= work.rows || j >= stride) continue;
        Elements<run_size> sums[Matrices];
#pragma unroll
        for (int m = 0; m < Matrices; ++m)
          sums[m] = ElementsAccess<run_size>{}.load(mine + y * T::run_pitch + m * each + lane % lanes * run_size);
        const Index s = work.first + row + y;
        finish_row_part<Matrices>(epilogue, work.expert, s, j, tiles.columns, sums, c + s * stride, stride);
      }
    }
  }
  /// Run `run` of the sums: which of a thread's registers those are the compiler must know.
  __device__ static void stage(int run, bool any, const float (&sum)[128], float* to) {
    [&]<int... R>(std::integer_sequence<int, R...>) { (..., (run == R ? stage_run<R>(any, sum, to) : void())); }
    (std::make_integer_sequence<int, 8>{});
  }
  template <int Run>
  __device__ static void stage_run(bool any, const float (&sum)[128], float* to) {
    constexpr int each = T::run_columns / Matrices, blocks = each / 8;
#pragma unroll
    for (int m = 0; m < Matrices; ++m)
#pragma unroll
      for (int j = 0; j < blocks; ++j) {
        const int at = 4 * (m * (32 / Matrices) + Run / 2 * blocks + j) + Run % 2 * 2;
        *reinterpret_cast<float2*>(to + m * each + 8 * j) = {any ? sum[at] : 0.f, any ? sum[at + 1] : 0.f};
      }
  }
};

template <bool SlotsAreDepth, Layout OfB, int Matrices, class C, class E>
static __global__ void __launch_bounds__(HopperTile::threads, 1)
    hopper_kernel(const __grid_constant__ HopperMaps maps, HopperTiles<SlotsAreDepth, Matrices> tiles, C* c,
                  Index stride, const __grid_constant__ E epilogue) {
#if GATEFOLD_SM_90A
  extern __shared__ unsigned char hopper_memory[];
  unsigned char* const begin = hopper_memory + (1024 - shared_address(hopper_memory) % 1024) % 1024;
  const std::uint32_t shared = shared_address(begin);
  if (threadIdx.x == 0) HopperRing::init(shared);
  __syncthreads();
  const HopperProduct<SlotsAreDepth, OfB, Matrices, C, E> product{&maps.a, maps.b, tiles, c, stride, epilogue};
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == HopperTile::groups) {
    set_registers<56, false>();
    if (threadIdx.x % 128 < 32) product.fill(shared);
  } else {
    set_registers<224, true>();
    product.multiply(shared, reinterpret_cast<float*>(begin + HopperTile::staged), group);
  }
#endif
}

template <bool SlotsAreDepth, Layout OfB, int Matrices, class Context, class C, class E>
void launch_hopper(Context& ctx, const HopperMaps& maps, const HopperTiles<SlotsAreDepth, Matrices>& tiles, Index count,
                   C* c, Index stride, const E& epilogue) {
  const Index at_once = count < ctx.multiprocessors() ? count : ctx.multiprocessors();
  launch_with_ring(ctx.product_stream(), hopper_kernel<SlotsAreDepth, OfB, Matrices, C, E>, at_once,
                   HopperTile::threads, HopperTile::bytes, maps, tiles, c, stride, epilogue);
}

/// c[s] = epilogue(a[s] op(b_e), …), as bf16_slots_are_rows, of rows in slot order.
template <Layout OfB, int Matrices, class C, class Context, class E>
void hopper_slots_are_rows(Context& ctx, const Bf16Matrix& a, const EachBf16<Matrices>& b, Index b_step,
                           const Index* offsets, Index experts, Index slots, Index columns, Index depth, C* c,
                           Index stride, const E& epilogue) {
  if (experts == 0 || slots == 0 || columns == 0) return;
  for (const Index extent : {experts, slots, columns, depth}) expect_int("Cuda::grouped_gemm", extent);
  HopperMaps maps{};
  if (depth > 0) {
    maps.a = tensor_map(a.data, a.stride, slots, 1, slots * a.stride);
    for (int m = 0; m < Matrices; ++m)
      maps.b[m] =
          tensor_map(b.of[m].data, b.of[m].stride, OfB == Layout::along_depth ? columns : depth, experts, b_step);
  }
  const Index some = experts < slots ? experts : slots;
  launch_hopper<false, OfB, Matrices>(
      ctx, maps, HopperTiles<false, Matrices>{offsets, int(experts), 0, int(columns), int(depth), false},
      (slots / HopperTile::rows + some) * blocks(columns, HopperTile::columns / Matrices), c, stride, epilogue);
  expect_launched("Cuda::grouped_gemm");
}

/// dw[e] (+)= Σ_s a[s]ᵀ b[s], as bf16_slots_are_depth, of rows in slot order.
template <class Context>
void hopper_slots_are_depth(Context& ctx, const Bf16Matrix& a, const Bf16Matrix& b, const Index* offsets, Index experts,
                            Index slots, Index rows, Index columns, bool accumulate, float* dw) {
  if (experts == 0 || rows == 0 || columns == 0) return;
  for (const Index extent : {experts * rows, slots, columns}) expect_int("Cuda::grouped_outer", extent);
  HopperMaps maps{};
  if (slots > 0) {
    maps.a = tensor_map(a.data, a.stride, slots, 1, slots * a.stride);
    maps.b[0] = tensor_map(b.data, b.stride, slots, 1, slots * b.stride);
  }
  launch_hopper<true, Layout::along_lines, 1>(
      ctx, maps, HopperTiles<true, 1>{offsets, int(experts), int(rows), int(columns), 0, accumulate},
      experts * blocks(rows, HopperTile::rows) * blocks(columns, HopperTile::columns), dw, columns,
      AddOrStore<float>{accumulate ? dw : nullptr, columns});
  expect_launched("Cuda::grouped_outer");
}

}  // namespace gatefold::device
