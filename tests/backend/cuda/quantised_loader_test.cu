// How the threads of a block write weights of 8 and 4 bits to shared memory as floats, tile by tile.
#include "gatefold/backend/cuda/quantised_loader.cuh"

#include <doctest/doctest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "support/device_array.cuh"
#include "support/grouped_product.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

constexpr int kLines = 32, kDepth = 16, kTiles = 3, kMovers = 64;
constexpr int kTileSize = kDepth * kLines;

/// Moves the lines from `first` on, with depth from `begin` on, into tiles [tile][depth][line].
static __global__ void move_tiles(QuantisedMatrix from, Index first, Index lines, Index depth, Index begin, float* to) {
  using Loader = LoaderOf<QuantisedMatrix, false, kLines, kDepth, kMovers>::Loader;
  __shared__ typename Loader::Shared shared;
  Loader loader;
  loader.begin(from, first, lines, depth, begin);
  for (int tile = 0; tile < kTiles; ++tile) {
    loader.load(shared);
    loader.store(shared);
    __syncthreads();
    for (int i = threadIdx.x; i < kTileSize; i += kMovers) to[tile * kTileSize + i] = shared[i / kLines][i % kLines];
    __syncthreads();
  }
}

/// Compares the values of all tiles. Lines past the last may have any value; 0 stands past the depth.
void check(Weights form, bool transposed, Index lines, Index depth) {
  CAPTURE(static_cast<int>(form));
  CAPTURE(transposed);
  CAPTURE(lines);
  CAPTURE(depth);
  const Index rows = transposed ? lines : depth, columns = transposed ? depth : lines;
  Cuda::Context ctx;
  auto values = test::random_vector<float>(rows * columns, 1);
  test::DeviceArray<float> from(ctx, values);
  PackedWeights packed;
  packed.add_quantised(ctx.stream(), from.data(), 1, rows, columns, form);
  QuantisedMatrix matrix = *packed.find_quantised(from.data());
  matrix.transposed = transposed;
  test::round_all(values, rows, columns, test::ToForm{form});
  for (Index first = 0; first < lines; first += kLines)
    for (const Index begin : {Index(0), Index(kDepth)}) {
      CAPTURE(first);
      CAPTURE(begin);
      const std::size_t size = kTiles * kTileSize;
      test::DeviceArray<float> to(ctx, std::vector<float>(size));
      move_tiles<<<1, kMovers, 0, ctx.stream()>>>(matrix, first, lines, depth, begin, to.data());
      expect_launched("move_tiles");
      const auto got = to.values();
      std::vector<float> expected(size);
      for (Index i = 0; i < static_cast<Index>(size); ++i) {
        const Index k = begin + i / kLines, line = first + i % kLines;
        float& want = expected[static_cast<std::size_t>(i)];
        if (line >= lines) {
          want = got[static_cast<std::size_t>(i)];
        } else if (k < depth) {
          want = values[static_cast<std::size_t>(transposed ? line * columns + k : k * columns + line)];
        }
      }
      CHECK(test::difference(expected, got, 1e-300) == "");  // all values are equal, but 0 can have another sign
    }
}

}  // namespace

TEST_CASE("cuda: QuantisedLoader: reads both orders, writes 0 past depth") {
  for (const Weights form : naive::quantised_forms)
    for (const bool transposed : {false, true})
      for (const auto& [lines, depth] : {std::pair<Index, Index>(32, 48), {64, 40}, {4, 4}, {35, 47}, {1, 1}, {7, 2}})
        check(form, transposed, lines, depth);
}
