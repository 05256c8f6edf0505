// How the threads of a block copy lines of an operand to shared memory, tile by tile.
#include "gatefold/backend/cuda/tile_loader.cuh"

#include <doctest/doctest.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

constexpr int kLines = 32, kDepth = 16, kTiles = 3;
constexpr int kEven = 128, kUneven = 96;  // numbers of threads: each moves one group of four values, or some move two
constexpr int kTileSize = kDepth * kLines;

/// Copies the lines from `first` on, with depth from `begin` on, into tiles [tile][depth][line].
template <bool Whole, int Movers, class T>
static __global__ void move_tiles(Operand<T> from, Index first, Index lines, Index depth, Index begin, T* to) {
  using Moves = TileLoader<T, Whole, kLines, kDepth, Movers>;
  __shared__ __align__(16) typename Moves::Shared shared;
  Moves loader;
  loader.begin(from, first, lines, depth, begin);
  for (int tile = 0; tile < kTiles; ++tile) {
    loader.load(shared);
    __pipeline_commit();
    loader.store(shared);
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int i = threadIdx.x; i < kTileSize; i += Movers) to[tile * kTileSize + i] = shared[i / kLines][i % kLines];
    __syncthreads();
  }
}

struct MoverCase {
  Layout layout;
  Index lines, depth;
  bool gather = false;
};

/// Compares the elements one by one. Lines past the last may hold anything; 0 stands past the depth.
template <bool Whole, class T, int Movers = kEven>
void check(const MoverCase& c) {
  CAPTURE(static_cast<int>(c.layout));
  CAPTURE(c.lines);
  CAPTURE(c.depth);
  CAPTURE(c.gather);
  const bool along_depth = c.layout == Layout::along_depth;
  const Index stored = along_depth ? c.lines : c.depth, width = along_depth ? c.depth : c.lines, items = stored + 5;
  Cuda::Context ctx;
  std::vector<T> values;
  for (Index i = 0; i < items * width; ++i) values.push_back(static_cast<T>(i % 251 + 1));  // exact in bfloat16
  const auto rows = test::random_integers(stored, 0, items, 1);
  test::DeviceArray<T> from(ctx, values);
  test::DeviceArray<Index> device_rows(ctx, rows);
  const Index* gathered = c.gather ? device_rows.data() : nullptr;
  PackedWeights packed;
  if constexpr (std::is_same_v<T, float>) packed.add(ctx.stream(), from.data(), items, width);
  const Operand<T> given = c.layout == Layout::rounded
                               ? operand<T>(c.layout, packed.find(from.data(), width), bf16_stride(width))
                               : operand<T>(c.layout, from.data(), width, gathered);
  for (Index first = 0; first < c.lines; first += kLines) {
    const Index begin = first == 0 ? 0 : kDepth;
    CAPTURE(first);
    const std::size_t size = kTiles * kTileSize;
    test::DeviceArray<T> to(ctx, std::vector<T>(size));
    move_tiles<Whole, Movers><<<1, Movers, 0, ctx.stream()>>>(given, first, c.lines, c.depth, begin, to.data());
    expect_launched("move_tiles");
    auto got = to.values();
    std::vector<T> expected(size);
    for (Index i = 0; i < static_cast<Index>(size); ++i) {
      const Index k = begin + i / kLines, line = first + i % kLines;
      T& want = expected[static_cast<std::size_t>(i)];
      if (line >= c.lines) {
        want = got[static_cast<std::size_t>(i)];
      } else if (k < c.depth) {
        const Index at = along_depth ? line : k, row = c.gather ? rows[static_cast<std::size_t>(at)] : at;
        want = values[static_cast<std::size_t>(row * width + (along_depth ? k : line))];
      }
    }
    CHECK(test::difference(expected, got) == "");
  }
}

template <class T>
void check_layouts() {
  for (const Layout layout : {Layout::along_depth, Layout::along_lines}) {
    for (const bool gather : {false, true}) {
      for (const auto& [lines, depth] : {std::pair(32, 48), std::pair(64, 40), std::pair(4, 4), std::pair(36, 20)}) {
        check<true, T>({layout, lines, depth, gather});
        check<false, T>({layout, lines, depth, gather});
      }
      for (const auto& [lines, depth] : {std::pair(1, 1), std::pair(33, 17), std::pair(35, 47), std::pair(7, 2)})
        check<false, T>({layout, lines, depth, gather});
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: tile loader: reads any layout, writes 0 past depth", T, double, float) { check_layouts<T>(); }

TEST_CASE("cuda: tile loader: threads may copy different amounts") {
  for (const Layout layout : {Layout::along_depth, Layout::along_lines})
    for (const bool gather : {false, true}) {
      check<true, float, kUneven>({layout, 36, 20, gather});
      check<false, double, kUneven>({layout, 33, 47, gather});
    }
  check<true, float, kUneven>({Layout::rounded, 36, 20});
}

TEST_CASE("cuda: tile loader: copies lines of rounded weights") {
  check<true, float>({Layout::rounded, 36, 20});
  check<true, float>({Layout::rounded, 64, 48});
  check<false, float>({Layout::rounded, 33, 17});
}
