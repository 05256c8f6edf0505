// How the threads of a block copy bfloat16 tiles to shared memory: which value stands where, and that the other places
// hold 0.
#include "gatefold/backend/cuda/bf16_loader.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <type_traits>
#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

constexpr int kTiles = 2;

/// Copies the tiles of the lines from `first` on to `to`, one after the other, in the layout of shared memory.
template <Layout L, bool Gathers, int Lines, int Threads>
static __global__ void copy_tiles(Bf16Matrix from, Index first, Index lines, Index depth, Bfloat16* to) {
  constexpr int size = Lines * Bf16Place::depth;
  __shared__ __align__(128) unsigned char tile[size * 2];
  Bf16Loader<L, Gathers, Lines, Threads> loader;
  loader.begin(from, first, lines, depth);
  for (int t = 0; t < kTiles; ++t) {
    loader.load(tile);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int i = threadIdx.x; i < size; i += Threads) to[t * size + i] = reinterpret_cast<Bfloat16*>(tile)[i];
    __syncthreads();
  }
}

template <Layout L, bool Gathers, int Lines, int Threads>
void check(Index lines, Index depth) {
  constexpr int size = Lines * Bf16Place::depth;
  CAPTURE(Lines);
  CAPTURE(lines);
  CAPTURE(depth);
  Cuda::Context ctx;
  const bool along_depth = L == Layout::along_depth;
  const Index rows = along_depth ? lines : depth, stride = bf16_stride(along_depth ? depth : lines), items = rows + 5;
  std::vector<Bfloat16> values;
  for (Index i = 0; i < items * stride; ++i) values.push_back(Bfloat16::from(static_cast<float>(i % 251 + 1)));
  const auto picked = test::random_integers(rows, 0, items, 1);
  test::DeviceArray<Bfloat16> from(ctx, values), to(ctx, std::vector<Bfloat16>(kTiles * size));
  test::DeviceArray<Index> picked_on_device(ctx, picked);
  for (Index first = 0; first < lines; first += Lines) {
    copy_tiles<L, Gathers, Lines, Threads>
        <<<1, Threads, 0, ctx.stream()>>>(Bf16Matrix{from.data(), stride, Gathers ? picked_on_device.data() : nullptr},
                                          first, lines, along_depth ? stride : depth, to.data());
    expect_launched("copy_tiles");
    const auto got = to.values();
    int wrong = 0;
    for (int t = 0; t < kTiles; ++t)
      for (int line = 0; line < Lines; ++line)
        for (int k = 0; k < Bf16Place::depth; ++k) {
          const Index place = along_depth ? first + line : t * 64 + k, along = along_depth ? t * 64 + k : first + line;
          float expected = 0;
          if (place < rows && along < stride)
            expected = values[static_cast<std::size_t>(
                (Gathers ? picked[static_cast<std::size_t>(place)] : place) * stride + along)];
          // With along_lines, a row of shared memory holds 64 lines at one depth. If a tile has 32 lines, the row holds
          // 32 lines at depth k and 32 lines at depth k + 32.
          const int row = along_depth ? line : Lines == 32 ? k % 32 : line / 64 * 64 + k;
          const int column = along_depth ? k : Lines == 32 ? line + k / 32 * 32 : line % 64;
          const int at = t * size + Bf16Place::at(row, column / 8) / 2 + column % 8;
          wrong += expected != static_cast<float>(got[static_cast<std::size_t>(at)]);
        }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("cuda: bfloat16 tile loader: copies values, pads with 0") {
  const auto check_all = []<int Lines, int Threads>(std::integral_constant<int, Lines>,
                                                    std::integral_constant<int, Threads>) {
    for (const Index lines : {1, 31, 32, 63, 64, 70, 129})
      for (const Index depth : {1, 8, 32, 33, 64, 71, 128}) {
        check<Layout::along_depth, false, Lines, Threads>(lines, depth);
        check<Layout::along_depth, true, Lines, Threads>(lines, depth);
        check<Layout::along_lines, false, Lines, Threads>(lines, depth);
        check<Layout::along_lines, true, Lines, Threads>(lines, depth);
      }
  };
  check_all(std::integral_constant<int, 32>{}, std::integral_constant<int, 64>{});
  check_all(std::integral_constant<int, 64>{}, std::integral_constant<int, 128>{});
  check_all(std::integral_constant<int, 128>{}, std::integral_constant<int, 128>{});
}

TEST_CASE("Bf16Place: eight rows or eight units use all banks") {
  // 16 bytes take four of the 32 banks. So eight of them together take all banks if their places modulo 128 bytes
  // differ.
  for (int i = 0; i < 16; i += 8)
    for (int unit = 0; unit < 8; ++unit) {
      std::set<int> of_rows, of_units;
      for (int j = 0; j < 8; ++j) {
        of_rows.insert(Bf16Place::at(i + j, unit) % 128);
        of_units.insert(Bf16Place::at(i, j) % 128);
      }
      CHECK(of_rows.size() == 8);
      CHECK(of_units.size() == 8);
    }
}
