#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/bf16_product.cuh"
#include "gatefold/backend/cuda/device_code.cuh"
#include "gatefold/backend/cuda/epilogue.cuh"
#include "gatefold/backend/cuda/hopper_tiles.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/outer_product.cuh"
#include "gatefold/backend/cuda/plain_product.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/cuda/tensor_core.cuh"
#include "gatefold/backend/cuda/tensor_map.cuh"
#include "gatefold/backend/cuda/warp.cuh"
#include "gatefold/backend/cuda/warpgroup.cuh"
#include "gatefold/core/types.hpp"

/// Grouped products (one matrix product for each expert) of bfloat16 matrices on Hopper GPUs. Thread blocks stay
/// resident and compute one tile after the other. In each block, one warp starts copies of parts of both factors into a
/// ring buffer in shared memory, and two warpgroups multiply the parts that have arrived. The results have the same
/// bits as the results of bf16_product.cuh.
namespace gatefold::detail_::device {

struct HopperMaps {
  CUtensorMap a[2], b[2];
};

/// True if the epilogue E only adds the values of a float matrix that has the shape of the result c.
template <class E>
inline constexpr bool kAddsTo = false;
template <class B>
inline constexpr bool kAddsTo<functor::AddTo<float, B>> = true;

/// The code of a thread block of the Hopper kernel. It computes a grouped product: c[s] = epilogue(a[s] op(b_e)) for
/// each slot s (one row of work of expert e), or epilogue(Σ_t a_t[s] op(b_te)) for a sum of products. op(b) is b or its
/// transpose. If SlotsAreDepth is true, it sums over the slots instead: c = epilogue(Σ_s a[s]ᵀ b[s]) for each expert.
/// @tparam OfB  layout of b: along_depth for transposed weights, otherwise along_lines
/// @param stride  number of values in a row of c
/// @order  the order of the sums in bf16_product.cuh
template <bool SlotsAreDepth, Layout OfB, int Matrices, class C, class E>
class HopperProduct {
  using T = HopperTile;
  static constexpr Layout kA = SlotsAreDepth ? Layout::along_lines : Layout::along_depth;
  /// True if the results are floats, and the epilogue only adds other floats to the sums.
  static constexpr bool kAdds = std::is_same_v<C, float> && (std::is_same_v<E, AddOrStore<float>> || kAddsTo<E>);
  /// True if the epilogue stores the sums unchanged, or after adding other floats to them. Whole rows of a tile are
  /// then written directly from registers to c.
  static constexpr bool kAsTheyAre = Matrices == 1 && (std::is_same_v<E, functor::Store> || kAdds);

 public:
  const CUtensorMap* a;
  const CUtensorMap* b;
  HopperTiles<SlotsAreDepth, Matrices> tiles;
  C* c;
  Index stride;
  const E& epilogue;

  /// Starts the copies of both factors for all tiles of this thread block, one after the other, into the ring buffer in
  /// shared memory. One warp runs this function.
  __device__ void fill(std::uint32_t shared) const {
    HopperRing ring(shared);
    for (int n = static_cast<int>(blockIdx.x);; n += static_cast<int>(gridDim.x)) {
      const HopperWork work = tiles.work(n);
      if (work.expert < 0) return;
      for (int k = 0; k < work.depth; k += T::depth, ring.next()) {
        if (threadIdx.x % 32 != 0) continue;
        ring.empty().wait(ring.phase() ^ 1);
        ring.full().arrive_and_expect(T::stage_bytes);
        const int term = !SlotsAreDepth && k >= tiles.depth_each;
        const int at = k - term * tiles.depth_each + work.depth_row, expert = SlotsAreDepth ? 0 : work.expert;
        std::uint32_t to = ring.tile();
#pragma unroll
        for (int box = 0; box < T::a_boxes; ++box, to += kBoxBytes)
          copy<kA>(to, a + term, work.a_row + box * kBoxRows, at, 0, ring.full());
#pragma unroll
        for (int box = 0; box < T::b_boxes; ++box, to += kBoxBytes) {
          constexpr int each = T::b_boxes / Matrices;
          copy<OfB>(to, b + term + box / each, work.b_row + box % each * kBoxRows, at, expert, ring.full());
        }
      }
    }
  }

  /// Multiplies the parts of both factors that have arrived in shared memory, applies the epilogue to complete sums,
  /// and stores the results. Each of the two multiplying warpgroups runs this function.
  __device__ void multiply(std::uint32_t shared, float* staged, int group) const {
    HopperRing ring(shared);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sum[128];
    set_zero(sum);
    int n = static_cast<int>(blockIdx.x);
    HopperWork work = tiles.work(n), next;
    for (; work.expert >= 0; work = next) {
      if (addend()) prefetch_tile(work, group);
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
      // Finds the next tile here, while the tensor cores still compute the last products of the current tile.
      next = tiles.work(n += static_cast<int>(gridDim.x));
      wait_for_sums(sum);
      if (before >= 0 && lane == 0) ring.empty(before).arrive();
      if (SlotsAreDepth && work.depth == 0) {
        if (addend()) continue;
        set_zero(sum);
      }
      if constexpr (kAsTheyAre)
        if (store_whole_rows(work, sum, group)) continue;
      finish_through_shared(work, sum, staged, group);
    }
  }

 private:
  /// Returns the matrix whose values the epilogue adds to the sums, or null if it adds no values.
  __device__ const float* addend() const {
    if constexpr (!kAdds) {
      return nullptr;
    } else if constexpr (kAddsTo<E>) {
      return epilogue.addend.data();
    } else {
      return epilogue.before;
    }
  }
  /// Prefetches into the L2 cache the values that the epilogue will add to the sums of this warpgroup's rows.
  __device__ void prefetch_tile(const HopperWork& work, int group) const {
    constexpr int line = 128 / sizeof(float), lines = T::columns / line;
    for (int i = static_cast<int>(threadIdx.x) % 128; i < T::group_rows * lines; i += 128) {
      const int row = group * T::group_rows + i / lines, column = work.column + i % lines * line;
      if (row < work.rows && column < tiles.columns)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(addend() + (work.first + row) * stride + column));
    }
  }
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
  /// The distance in shared memory, in bytes, from one block of 64 lines (rows of a or columns of b) to the next. It is
  /// needed if neighbouring lines are contiguous (along_lines). With the other layout, the products ignore the value.
  template <Layout L>
  static constexpr std::uint32_t block_bytes = L == Layout::along_lines ? kBoxBytes : 16;
  /// Returns the distance in shared memory from position 0 to position d of a tile's depth, in units of 16 bytes. A
  /// matrix descriptor has its addresses in these units. Adding the distance to a descriptor makes the products begin
  /// at position d.
  template <Layout L>
  __device__ static constexpr int deeper(int d) {
    return (L == Layout::along_depth ? d * 2 : d * 128) / 16;
  }
  /// Overwrites a tile in shared memory with zeros from position `left` of its depth on, because the rows copied there
  /// belong to slots of other experts or to no slot. Both warpgroups call it together.
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

  /// Stores the sums of a warp's 16 rows directly from registers, plus the values of addend(), and returns true. It
  /// stores nothing and returns false unless all of these rows and all columns of the tile exist and are aligned. The
  /// loop has no branches, because each warp scheduler of the multiprocessor has only two multiplying warps, which are
  /// too few to hide much latency.
  __device__ bool store_whole_rows(const HopperWork& work, float (&sum)[128], int group) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % 128 / 32;
    const int row = group * T::group_rows + warp * 16;
    const auto address = reinterpret_cast<std::uintptr_t>(c) | reinterpret_cast<std::uintptr_t>(addend());
    const bool aligned = stride % 8 == 0 && address % 16 == 0;
    if (!__all_sync(0xffffffffu, row + 16 <= work.rows && work.column + T::columns <= tiles.columns && aligned))
      return false;
    C* const to = c + (work.first + row + lane / 4) * stride + work.column;
    constexpr int at_once = std::is_same_v<C, float> ? 8 : 4;  // groups of eight columns that are stored at a time
#pragma unroll
    for (int block = 0; block < T::columns / 8; block += at_once)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        C* const from = to + 8 * half * stride + 8 * block;
        const auto pair = [&](int i) {
          const int at = 4 * (block + i) + 2 * half;
          return float2{sum[at], sum[at + 1]};
        };
        if constexpr (std::is_same_v<C, float>) {
          store_pairs<at_once>(from + lane % 4 * 2, pair);
        } else {
          store_pairs(from + lane % 4 * 8, pair);
        }
      }
    return true;
  }
  /// Stores `Count` pairs of floats in a row of c. Four neighbouring lanes together write 32 contiguous bytes at a
  /// time.
  template <int Count, class F>
  __device__ void store_pairs(float* to, const F& pair) const {
    // All values are loaded before the first one is stored, because the compiler does not move loads before stores.
    float2 v[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      v[i] = pair(i);
      if constexpr (kAdds) {
        const float2 before = addend() ? *reinterpret_cast<const float2*>(addend() + (to - c) + 8 * i) : float2{0, 0};
        v[i] = {before.x + v[i].x, before.y + v[i].y};
      }
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) *reinterpret_cast<float2*>(to + 8 * i) = v[i];
  }
  /// Rounds pairs of floats to bfloat16 and stores them in a row of c. Four neighbouring lanes first exchange values.
  /// Each lane then writes 16 contiguous bytes, and the four lanes together write 64 contiguous bytes.
  template <class F>
  __device__ static void store_pairs(Bfloat16* to, const F& pair) {
    std::uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] = Bfloat16::from(pair(i).x).bits | std::uint32_t(Bfloat16::from(pair(i).y).bits) << 16;
    transpose_of_four(v);
    *reinterpret_cast<uint4*>(to) = {v[0], v[1], v[2], v[3]};
  }
  /// Applies the epilogue to the sums of a warp's 16 rows, and stores the results. The sums pass through shared memory,
  /// eight rows of 64 columns at a time, so that a lane gets eight neighbouring sums and the compiler generates the
  /// epilogue's code only once.
  __device__ void finish_through_shared(const HopperWork& work, const float (&sum)[128], float* staged,
                                        int group) const {
    constexpr int run_size = 8, each = T::run_columns / Matrices, lanes = each / run_size, at_once = 32 / lanes;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % 128 / 32;
    float* const mine = staged + (group * 4 + warp) * T::run_values;
#pragma unroll 1
    for (int run = 0; run < 8; ++run) {
      __syncwarp();
      stage(run, sum, mine + lane / 4 * T::run_pitch + lane % 4 * 2);
      __syncwarp();
      const int half = run % 2, row = group * T::group_rows + warp * 16 + half * 8;
      const int j = work.column + run / 2 * each + lane % lanes * run_size;
      constexpr bool sums_columns = std::is_same_v<C, ColumnSum>;
      if (!sums_columns && j >= stride) continue;
      Elements<run_size> sums[8 / at_once][Matrices];
#pragma unroll
      for (int i = 0; i < 8 / at_once; ++i)
#pragma unroll
        for (int m = 0; m < Matrices; ++m)
          sums[i][m] = ElementsAccess<run_size>{}.load(static_cast<const float*>(__builtin_assume_aligned(
              mine + (lane / lanes + i * at_once) * T::run_pitch + m * each + lane % lanes * run_size, 16)));
#pragma unroll
      for (int i = 0; i < 8 / at_once; ++i) {
        const int y = row + lane / lanes + i * at_once;
        const bool exists = y < work.rows && j < stride;
        if (!sums_columns && !exists) break;
        const Index s = work.first + y;
        C* const of_row = c + s * row_elements<C>(stride);
        if constexpr (sums_columns) {
          static_assert(lanes % 4 == 0);
          finish_column_sum<Matrices>(epilogue, exists, work.expert, s, j, tiles.columns, sums[i], of_row);
        } else {
          finish_row_part<Matrices>(epilogue, work.expert, s, j, tiles.columns, sums[i], of_row, stride);
        }
      }
    }
  }
  /// Writes part number `run` of a warp's sums from registers to shared memory. stage_run takes the number as a
  /// template argument, because the compiler must know at compile time which registers to read.
  __device__ static void stage(int run, const float (&sum)[128], float* to) {
    [&]<int... R>(std::integer_sequence<int, R...>) { (..., (run == R ? stage_run<R>(sum, to) : void())); }
    (std::make_integer_sequence<int, 8>{});
  }
  template <int Run>
  __device__ static void stage_run(const float (&sum)[128], float* to) {
    constexpr int each = T::run_columns / Matrices, blocks = each / 8;
#pragma unroll
    for (int m = 0; m < Matrices; ++m)
#pragma unroll
      for (int j = 0; j < blocks; ++j) {
        const int at = 4 * (m * (32 / Matrices) + Run / 2 * blocks + j) + Run % 2 * 2;
        *reinterpret_cast<float2*>(to + m * each + 8 * j) = {sum[at], sum[at + 1]};
      }
  }
};

/// The kernel that runs HopperProduct. If it is compiled for another architecture than sm_90a, its launch bound is so
/// small that every launch fails with an error (device_code.cuh).
template <bool SlotsAreDepth, Layout OfB, int Matrices, class C, class E>
static __global__ void __launch_bounds__(GATEFOLD_SM_90A ? HopperTile::threads : kNoCode, 1)
    hopper_kernel(const __grid_constant__ HopperMaps maps, HopperTiles<SlotsAreDepth, Matrices> tiles, C* c,
                  Index stride, const __grid_constant__ E epilogue) {
#if GATEFOLD_SM_90A
  extern __shared__ unsigned char hopper_memory[];
  unsigned char* const begin = hopper_memory + (1024 - shared_address(hopper_memory) % 1024) % 1024;
  const std::uint32_t shared = shared_address(begin);
  if (threadIdx.x == 0) HopperRing::init(shared);
  __syncthreads();
  const HopperProduct<SlotsAreDepth, OfB, Matrices, C, E> product{maps.a, maps.b, tiles, c, stride, epilogue};
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == HopperTile::groups) {
    // The number of registers that the hardware gives to the block. The warpgroups must not request more, because
    // set_registers<224, true> would then wait forever.
    constexpr int given = 65536 / HopperTile::threads / 8 * 8 * HopperTile::threads;
    static_assert(128 * 56 + 128 * HopperTile::groups * 224 <= given);
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

/// Launches the Hopper kernel for a grouped product: c[s] = epilogue(a[s] op(b_e)) for each slot s (one row of work of
/// expert e); op(b) is b or its transpose. The result is the same as with bf16_slots_are_rows, but the rows of a must
/// be in slot order (sorted by expert).
template <Layout OfB, int Terms, int Count, class C, class Context, class E>
void hopper_slots_are_rows(Context& ctx, const EachBf16<Terms>& a, const EachBf16<Count>& b, Index b_step,
                           const Index* offsets, Index experts, Index slots, Index columns, Index depth, C* c,
                           Index stride, const E& epilogue) {
  constexpr int Matrices = matrices_of<Terms, Count>;
  if (experts == 0 || slots == 0 || columns == 0) return;
  for (const auto& [name, extent] :
       {std::pair{"experts", experts}, {"slots", slots}, {"columns", columns}, {"depth", depth}})
    expect_int("Cuda::grouped_gemm", name, extent);
  HopperMaps maps{};
  if (depth > 0) {
    for (int t = 0; t < Terms; ++t) maps.a[t] = tensor_map(a.of[t], depth, slots);
    const bool along_depth = OfB == Layout::along_depth;
    for (int m = 0; m < Count; ++m)
      maps.b[m] = tensor_map(b.of[m].data, bf16_stride(along_depth ? depth : columns), b.of[m].stride,
                             along_depth ? columns : depth, experts, b_step);
  }
  const Index some = experts < slots ? experts : slots;
  const Index depth_each = blocks(depth, HopperTile::depth) * HopperTile::depth;
  launch_hopper<false, OfB, Matrices>(
      ctx, maps,
      HopperTiles<false, Matrices>{offsets, int(experts), 0, int(columns), int(Terms == 1 ? depth : Terms * depth_each),
                                   int(depth_each)},
      (slots / HopperTile::rows + some) * blocks(columns, HopperTile::columns / Matrices), c, stride, epilogue);
  expect_launched("Cuda::grouped_gemm");
}

/// Launches the Hopper kernel for gradients of weights: dw[e] is the sum of a[s]ᵀ b[s] over the slots s (rows of work)
/// of expert e. If `accumulate` is true, the sum is added to dw[e]. The result is the same as with
/// bf16_slots_are_depth, but the rows of a and b must be in slot order (sorted by expert).
template <class Context>
void hopper_slots_are_depth(Context& ctx, const Bf16Matrix& a, const Bf16Matrix& b, const Index* offsets, Index experts,
                            Index slots, Index rows, Index columns, bool accumulate, float* dw) {
  if (experts == 0 || rows == 0 || columns == 0) return;
  for (const auto& [name, extent] :
       {std::pair{"experts * rows", experts * rows}, {"slots", slots}, {"columns", columns}})
    expect_int("Cuda::grouped_outer", name, extent);
  HopperMaps maps{};
  if (slots > 0) {
    maps.a[0] = tensor_map(a, rows, slots);
    maps.b[0] = tensor_map(b, columns, slots);
  }
  launch_hopper<true, Layout::along_lines, 1>(
      ctx, maps, HopperTiles<true, 1>{offsets, int(experts), int(rows), int(columns)},
      experts * blocks(rows, HopperTile::rows) * blocks(columns, HopperTile::columns), dw, columns,
      AddOrStore<float>{accumulate ? dw : nullptr, columns});
  expect_launched("Cuda::grouped_outer");
}

}  // namespace gatefold::detail_::device
