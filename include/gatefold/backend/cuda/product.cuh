#pragma once

#include <type_traits>

#include "gatefold/backend/cuda/handles.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/quantised_loader.cuh"
#include "gatefold/backend/cuda/quantised_matrix.cuh"
#include "gatefold/backend/cuda/row_tile.cuh"
#include "gatefold/backend/cuda/schedule.cuh"
#include "gatefold/backend/cuda/skinny.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/cuda/tile.cuh"
#include "gatefold/backend/cuda/tile_loader.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// Grouped products (one matrix product for each expert) of float and double. The kernels read from device memory which
/// rows belong to each expert, so that the host never waits for the routing. They gather rows while they read them, and
/// pass complete sums to an epilogue.
namespace gatefold::detail_::device {

/// The shared memory of a thread block. While the block multiplies, this memory holds a ring buffer with tiles of both
/// factors. Afterwards, it holds sums that the threads pass to the epilogue.
template <class Shape, int Matrices, class T>
struct alignas(16) Staging {
  struct Operands {
    T a[Shape::depth][Shape::rows + kPadding];
    T b[Matrices][Shape::depth][Shape::columns + kPadding];
  };
  static constexpr int fitting = 49152 / static_cast<int>(sizeof(Operands)), stages = fitting < 4 ? fitting : 4;
  static_assert(stages >= 2,
                "gatefold: stages must be at least 2, because one tile is read while the next one is loaded");
  // The sums of a tile pass through shared memory in several passes. In each pass, a thread writes pass_parts of its
  // patches (4 × 4 sums), all in the same rows.
  static constexpr int pass_parts = Shape::column_parts < 2 ? 1 : 2;
  static constexpr int pass_rows = Shape::rows / Shape::row_parts;
  static constexpr int pass_columns = Shape::columns / Shape::column_parts * pass_parts;
  union {
    Operands ring[stages];
    T sums[Matrices][pass_rows][pass_columns];
  };
  /// Returns the index of the sum of column x in a row of `sums`. Groups of four columns are permuted depending on the
  /// row, so that the writes of a warp use all memory banks.
  __device__ static int column(int row, int x) {
    constexpr int fours = pass_columns / 4;
    return ((x / 4) ^ (row / 4 * 4 % fours)) * 4 + x % 4;
  }
};

/// The position of a thread block's tile in the result c, in shared memory for all threads of the block.
struct Place {
  Index expert, first;  // first: the row number that the epilogue gets for the expert's first row
  Index rows, columns;  // number of rows and columns of the expert's part of the result c
  Index row, column;    // first row and column of the tile within the expert's part of c
  TilePart part;
};

/// The sums of one thread. The sums of all threads of a block are one tile of the products op(a) op(b_m). op is the
/// identity or the transpose; there are one or two second factors b_m.
/// @tparam Stays  whether the block computes further tiles after this one. The loop that applies the epilogue is then
///                not unrolled, because it would have too few registers
template <class Shape, int Matrices, bool Stays, class T>
class Tile {
  using Shared = Staging<Shape, Matrices, T>;
  static constexpr int patch = Shape::patch, D = Shape::depth, stages = Shared::stages;
  static constexpr int row_step = patch * Shape::lane_rows,
                       column_step = patch * Shape::lane_columns;  // distance between a thread's patches of 4 × 4 sums
  static constexpr int my_rows = Shape::row_parts * patch, my_columns = Shape::column_parts * patch;

 public:
  /// Adds products to the sums, for the steps [begin, end) of place.part. In one step, every sum gets Shape::depth
  /// products.
  /// @order  one chain of fused multiply-adds in ascending order of the depth (the position in the sum). It is the same
  ///         for every shape, so that an element depends only on its own row and column
  template <class Of>
  __device__ void sum(Shared& shared, const Place& place, const Operand<T>& a, const Each<T, Matrices, Of>& b,
                      Index depth) {
    const int begin = place.part.begin, steps = place.part.end - begin;
    TileLoader<T, Shape::whole, Shape::rows, D, Shape::threads> a_mover;
    typename LoaderOf<Of, Shape::whole, Shape::columns, D, Shape::threads>::Loader b_mover[Matrices];
    a_mover.begin(a, place.row, place.rows, depth, Index(begin) * D);
    for (int m = 0; m < Matrices; ++m) b_mover[m].begin(b.of[m], place.column, place.columns, depth, Index(begin) * D);
    const auto load = [&](int stage) {
      a_mover.load(shared.ring[stage].a);
      for (int m = 0; m < Matrices; ++m) b_mover[m].load(shared.ring[stage].b[m]);
    };
    const auto store = [&](int stage) {
      a_mover.store(shared.ring[stage].a);
      for (int m = 0; m < Matrices; ++m) b_mover[m].store(shared.ring[stage].b[m]);
    };
    for (int stage = 0; stage < stages - 1; ++stage) {
      if (stage < steps) {
        load(stage);
        store(stage);
      }
      __pipeline_commit();
    }
    const bool busy = place.row + warp_row() < place.rows && place.column + warp_column() < place.columns;
    int stage = 0, free = stages - 1;
    for (int left = steps; left > 0; --left) {
      __pipeline_wait_prior(stages - 2);
      __syncthreads();
      if (left >= stages) load(free);
      __pipeline_commit();
      if (busy) multiply(shared.ring[stage]);
      if (left >= stages) store(free);
      free = stage;
      stage = stage + 1 < stages ? stage + 1 : 0;
    }
    __pipeline_wait_prior(0);
    // Waits until all threads have read the ring buffer in shared memory, because finish() overwrites it.
    __syncthreads();
  }

  /// Applies an epilogue (for example bias and activation) to the sums, and stores the results in c. The sums pass
  /// through shared memory, so that neighbouring threads write neighbouring values and the compiler generates the
  /// epilogue's code only once.
  template <class E>
  __device__ void finish(Shared& shared, const Place& place, T* c, const E& epilogue) const {
    constexpr int parts = Shared::pass_parts, pass_warp = parts * column_step;  // number of a warp's columns in a pass
    int thread = static_cast<int>(threadIdx.x);
    // Hides the value of `thread` from the compiler. Otherwise, the compiler would compute values from it early, and
    // keep them in registers that the sums need.
    asm volatile("" : "+r"(thread));
    const int to_row = thread / 32 / Shape::warps_across * row_step + thread % 32 / Shape::lane_columns * patch;
    const int to_column = thread / 32 % Shape::warps_across * pass_warp + thread % Shape::lane_columns * patch;
#pragma unroll
    for (int down = 0; down < Shape::row_parts; ++down)
#pragma unroll
      for (int across = 0; across < Shape::column_parts; across += parts) {
#pragma unroll
        for (int m = 0; m < Matrices; ++m)
#pragma unroll
          for (int i = 0; i < patch; ++i)
#pragma unroll
            for (int j = 0; j < parts * patch; ++j)
              shared.sums[m][to_row + i][Shared::column(to_row + i, to_column + j / patch * column_step) + j % patch] =
                  sum_[m][down * patch + i][across * patch + j];
        __syncthreads();
#pragma unroll(Stays ? 1 : 4)
        for (int at = thread; at < Shared::pass_rows * Shared::pass_columns; at += Shape::threads) {
          const int y = at / Shared::pass_columns, x = at % Shared::pass_columns;
          const Index r = place.row + y / row_step * Shape::warp_rows + down * row_step + y % row_step;
          const Index j = place.column + x / pass_warp * Shape::warp_columns + across * column_step + x % pass_warp;
          if (r >= place.rows || j >= place.columns) continue;
          const T* v = &shared.sums[0][y][Shared::column(y, x)];
          c[r * place.columns + j] = finished<Matrices>(epilogue, place.expert, place.first + r, j, *v,
                                                        v[(Matrices - 1) * Shared::pass_rows * Shared::pass_columns]);
        }
        __syncthreads();
      }
  }

  static constexpr int size = Matrices * Shape::rows * Shape::columns;
  __device__ void save(T* to) {
    each([&](int i, T& v) { to[i * Shape::threads + static_cast<int>(threadIdx.x)] = v; });
  }
  __device__ void load(const T* from) {
    each([&](int i, T& v) { v = from[i * Shape::threads + static_cast<int>(threadIdx.x)]; });
  }

 private:
  /// Returns the first row of this warp's part of the tile.
  __device__ static int warp_row() {
    return static_cast<int>(threadIdx.x) / 32 / Shape::warps_across * Shape::warp_rows;
  }
  /// Returns the first column of this warp's part of the tile.
  __device__ static int warp_column() {
    return static_cast<int>(threadIdx.x) / 32 % Shape::warps_across * Shape::warp_columns;
  }
  __device__ void multiply(const typename Shared::Operands& from) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = warp_row() + lane / Shape::lane_columns * patch,
              column = warp_column() + lane % Shape::lane_columns * patch;
#pragma unroll
    for (int d = 0; d < D; ++d) {
      T a[my_rows];
#pragma unroll
      for (int i = 0; i < my_rows; ++i) a[i] = from.a[d][row + i / patch * row_step + i % patch];
#pragma unroll
      for (int m = 0; m < Matrices; ++m) {
        T b[my_columns];
#pragma unroll
        for (int j = 0; j < my_columns; ++j) b[j] = from.b[m][d][column + j / patch * column_step + j % patch];
#pragma unroll
        for (int i = 0; i < my_rows; ++i)
#pragma unroll
          for (int j = 0; j < my_columns; ++j) sum_[m][i][j] = fma(a[i], b[j], sum_[m][i][j]);
      }
    }
  }
  /// Calls f(i, sum) for each sum of this thread; i is the number of the sum, from 0 on.
  template <class F>
  __device__ void each(const F& f) {
#pragma unroll
    for (int m = 0; m < Matrices; ++m)
#pragma unroll
      for (int i = 0; i < my_rows; ++i)
#pragma unroll
        for (int j = 0; j < my_columns; ++j) f((m * my_rows + i) * my_columns + j, sum_[m][i][j]);
  }

  T sum_[Matrices][my_rows][my_columns] = {};
};

/// The memory by which a thread block passes the unfinished sums of a tile to the next block, if two blocks share the
/// tile.
template <class T>
struct HandOver {
  T* sums;     // [blocks][Tile::size]
  int* ready;  // [blocks]: 1 if the block's sums are ready and not yet taken by the next block, else 0

  /// Stores this block's unfinished sums of a tile for the next block, and signals that they are ready. All threads of
  /// the block call it.
  template <class Tile>
  __device__ void give(Tile& tile) const {
    tile.save(sums + Index(blockIdx.x) * Tile::size);
    __syncthreads();
    if (threadIdx.x > 0) return;
    __threadfence();
    atomicExch(&ready[blockIdx.x], 1);
  }
  /// Waits until the previous block has stored its unfinished sums of a tile, and loads them. All threads of the block
  /// call it.
  template <class Tile>
  __device__ void take(Tile& tile) const {
    if (threadIdx.x == 0) {
      while (atomicCAS(&ready[blockIdx.x - 1], 1, 0) == 0) {
      }
      __threadfence();
    }
    __syncthreads();
    tile.load(sums + Index(blockIdx.x - 1) * Tile::size);
  }
};

/// Computes a grouped product: c[s] = epilogue(a[row(s)] op(b_e)) for each slot s (one row of work of expert e). row(s)
/// is the row of `a` that the slot reads; op(b) is b or its transpose.
/// @tparam Stay  whether thread blocks stay resident and compute several tiles, which a Schedule assigns. If false,
///               there is one block for each tile, and a thread has more registers for its sums. The last blocks may
///               then not fill the device, which costs little if there are many tiles (kManyRounds)
/// @param b_step  bytes of b from one expert to the next
/// @param above  only experts with more than this number of rows are computed
template <class Shape, bool Stay, int Matrices, class T, class Of, class E>
static __global__ void __launch_bounds__(Shape::threads, promised_blocks<Shape, Matrices, Stay>())
    slots_are_rows_kernel(Operand<T> a, Each<T, Matrices, Of> b, Index b_step, const Index* offsets, Index experts,
                          Index above, Index columns, Index depth, T* c, HandOver<T> between, E epilogue) {
  __shared__ Staging<Shape, Matrices, T> shared;
  __shared__ Place place;
  const int steps = depth > Shape::depth ? static_cast<int>(divide_up(depth, Shape::depth)) : 1;
  // The layout of a is always along_depth. After the assignment, the compiler can use this fact.
  a.layout = Layout::along_depth;
  if constexpr (std::is_same_v<Of, Operand<T>>)
    for (Of& matrix : b.of) matrix.rows = nullptr;
  for (int n = 0;; ++n) {
    if (threadIdx.x < 32) {
      const Index column_tiles = divide_up(columns, Shape::columns);
      TilePart part{blockIdx.x, 0, steps};
      if constexpr (Stay) {
        const Index tiles = count_row_tiles(offsets, experts, Shape::rows, RowRange{above}) * column_tiles;
        part = Schedule(tiles, steps, gridDim.x).part(blockIdx.x, n);
      }
      const RowTile rows = find_row_tile(offsets, experts, Shape::rows, part.tile / column_tiles, RowRange{above});
      if (threadIdx.x == 0 && part.tile >= 0 && rows.expert >= 0) {
        const Index first = offsets[rows.expert];
        place = {rows.expert, first,    offsets[rows.expert + 1] - first,
                 columns,     rows.row, part.tile % column_tiles * Shape::columns};
      }
      if (threadIdx.x == 0) place.part = rows.expert < 0 ? TilePart{} : part;
    }
    __syncthreads();
    if (place.part.tile < 0) return;
    Tile<Shape, Matrices, Stay, T> tile;
    if constexpr (Stay)
      if (place.part.begin > 0) between.take(tile);
    Each<T, Matrices, Of> of_expert = b;
    for (Of& matrix : of_expert.of) matrix.to_expert(place.expert, b_step);
    tile.sum(shared, place, a.skip(place.first), of_expert, depth);
    if (Stay && place.part.end < steps) {
      between.give(tile);
    } else {
      tile.finish(shared, place, c + place.first * columns, epilogue);
    }
    if constexpr (!Stay) return;
    __syncthreads();
  }
}

/// Computes a grouped product (one matrix product for each expert) with up to two kernels: one for the experts of up to
/// kSkinnyRows rows, and one for all other experts. Each kernel skips the experts of the other kernel, because the
/// number of rows of an expert is known only on the device. A kernel that cannot have work is not launched. If the
/// layout, sizes or alignment of the factors do not suit skinny_kernel, the second kernel computes all experts.
/// @param slots  upper bound of the number of slots
template <int Matrices, class T, class Context, class E>
void slots_are_rows(Context& ctx, const Operand<T>& a, const Each<T, Matrices>& b, Index b_step, const Index* offsets,
                    Index experts, Index slots, Index columns, Index depth, T* c, const E& epilogue) {
  if (experts == 0 || slots == 0 || columns == 0) return;
  const Index some = experts < slots ? experts : slots;  // upper bound of the number of experts with rows
  const auto row_tiles = [&](Index rows) { return slots / rows + some; };  // upper bound
  bool whole = columns % 4 == 0 && depth % 4 == 0 && a.aligned;
  for (const Operand<T>& matrix : b.of) whole = whole && matrix.aligned;
  const bool strips = whole && b.of[0].layout != Layout::along_depth;
  if (strips) {
    const auto run_strips = [&]<class Shape>(Shape) {
      const Index of_few = some * blocks(kSkinnyRows, Shape::rows), tiles = row_tiles(Shape::rows);
      skinny_kernel<Shape, Matrices>
          <<<grid(blocks(columns, Shape::columns) * (of_few < tiles ? of_few : tiles)), Shape::threads, 0,
             ctx.stream()>>>(a, b, b_step, offsets, experts, columns, depth, c, epilogue);
      expect_launched("Cuda::grouped_gemm");
    };
    if (blocks(columns, WideStrip::columns) * some < WideStrip::blocks * ctx.multiprocessors()) {
      run_strips(NarrowStrip{});
    } else {
      run_strips(WideStrip{});
    }
    if (slots <= kSkinnyRows) return;
  }
  const Index above = strips ? kSkinnyRows : 0;
  const auto run = [&]<class Shape, bool Stay>(Shape, std::bool_constant<Stay>) {
    static_assert(Shape::blocks <= Flags::each, "gatefold: every resident block needs a flag");
    const auto kernel = slots_are_rows_kernel<Shape, Stay, Matrices, T, Operand<T>, E>;
    const Index tiles = row_tiles(Shape::rows) * blocks(columns, Shape::columns);
    Index count = tiles;
    // Only as many blocks are launched as run at the same time, because they stay resident.
    if constexpr (Stay) {
      const int fitting = ctx.fitting_blocks(kernel, Shape::threads);
      const Index at_once = Index(fitting < Shape::blocks ? fitting : Shape::blocks) * ctx.multiprocessors();
      if (0 < at_once && at_once < tiles) count = at_once;
    }
    const auto mark = ctx.mark();
    HandOver<T> between{};
    if (tiles > count)
      between = {ctx.template scratch<T>(count, Tile<Shape, Matrices, Stay, T>::size).data(), ctx.flags()};
    kernel<<<grid(count), Shape::threads, 0, ctx.stream()>>>(a, b, b_step, offsets, experts, above, columns, depth, c,
                                                             between, epilogue);
  };
  using Many = typename ManyTiles<T, Matrices>::Shape;
  const auto fills = [&]<class Shape>(Shape) {
    return fills_device<Shape>(slots / Shape::rows * blocks(columns, Shape::columns), ctx.multiprocessors());
  };
  if (whole && fills(Many{})) {
    const Index at_once = blocks_at_once<Many>(ctx.multiprocessors());
    if (slots / Many::rows * blocks(columns, Many::columns) < kManyRounds * at_once) {
      run(Many{}, std::true_type{});
    } else {
      run(Many{}, std::false_type{});
    }
  } else if (whole && fills(typename SomeTiles<T, Matrices>::Shape{})) {
    run(typename SomeTiles<T, Matrices>::Shape{}, std::true_type{});
  } else {
    run(typename FewTiles<T, Matrices>::Shape{}, std::true_type{});
  }
  expect_launched("Cuda::grouped_gemm");
}

/// Computes a grouped product with weights of 8 or 4 bits, which the kernel converts to floats while it reads them.
/// There is one thread block for each tile. All products use the same small tiles, so that only one more kernel is
/// compiled for each product.
/// @param b      the matrices of expert 0
/// @param slots  upper bound of the number of slots
template <int Matrices, class Context, class E>
void quantised_slots_are_rows(Context& ctx, const Operand<float>& a, const Each<float, Matrices, QuantisedMatrix>& b,
                              const Index* offsets, Index experts, Index slots, Index columns, Index depth, float* c,
                              const E& epilogue) {
  if (experts == 0 || slots == 0 || columns == 0) return;
  using Shape = QuantisedTiles;
  const Index some = experts < slots ? experts : slots;  // upper bound of the number of experts with rows
  slots_are_rows_kernel<Shape, false, Matrices><<<grid((slots / Shape::rows + some) * blocks(columns, Shape::columns)),
                                                  Shape::threads, 0, ctx.product_stream()>>>(
      a, b, Index(0), offsets, experts, Index(0), columns, depth, c, HandOver<float>{}, epilogue);
  expect_launched("Cuda::grouped_gemm");
}

}  // namespace gatefold::detail_::device
