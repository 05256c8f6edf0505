// Which tiles the blocks of Hopper's kernel take, and in which order a thread uses the stages of its ring.
#include "gatefold/backend/cuda/hopper_tiles.cuh"

#include <doctest/doctest.h>

#include <tuple>
#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

/// Writes work(0), work(1), … as eight numbers each.
template <bool SlotsAreDepth, int Matrices>
static __global__ void list(HopperTiles<SlotsAreDepth, Matrices> tiles, int count, int* to) {
  for (int n = 0; n < count; ++n) {
    const HopperWork w = tiles.work(n);
    const int values[8] = {w.expert, w.first, w.rows, w.column, w.a_row, w.b_row, w.depth, w.depth_row};
    if (threadIdx.x < 8) to[8 * n + threadIdx.x] = values[threadIdx.x];
  }
}
template <bool SlotsAreDepth, int Matrices>
std::vector<int> listed(const std::vector<Index>& offsets, int rows, int columns, int depth, int count) {
  Cuda::Context ctx;
  test::DeviceArray<Index> on_device(ctx, offsets);
  test::DeviceArray<int> to(ctx, std::vector<int>(static_cast<std::size_t>(8 * count)));
  list<<<1, 32, 0, ctx.stream()>>>(
      HopperTiles<SlotsAreDepth, Matrices>{on_device.data(), int(offsets.size()) - 1, rows, columns, depth}, count,
      to.data());
  expect_launched("list");
  return to.values();
}

/// Writes stage and phase of the ring for the first `count` tiles.
static __global__ void go_round(int count, int* to) {
  HopperRing ring(0);
  for (int n = 0; n < count; ++n, ring.next()) {
    to[2 * n] = ring.stage();
    to[2 * n + 1] = ring.phase();
  }
}

}  // namespace

TEST_CASE("cuda: Hopper tiles of slots: follow expert, row, column order") {
  const std::vector<Index> offsets{5, 5, 135, 140};  // experts with 0, 130 and 5 slots
  const int columns = 300, depth = 72;
  std::vector<int> expected;
  for (const auto& [expert, first, rows] : {std::tuple(1, 5, 130), std::tuple(1, 133, 2), std::tuple(2, 135, 5)})
    for (const int column : {0, 256})
      expected.insert(expected.end(), {expert, first, rows, column, first, column, depth, 0});
  auto got = listed<false, 1>(offsets, 0, columns, depth, 7);
  CHECK(got[6 * 8] == -1);
  got.resize(6 * 8);
  CHECK(got == expected);
  CHECK(listed<false, 2>(offsets, 0, columns, depth, 10)[9 * 8] == -1);  // a tile has 128 columns of each matrix
  CHECK(listed<false, 2>(offsets, 0, columns, depth, 10)[8 * 8] == 2);
}

TEST_CASE("cuda: Hopper tiles: sums over slots include experts without slots") {
  const std::vector<Index> offsets{5, 5, 135};
  const int rows = 130, columns = 20;
  std::vector<int> expected;
  for (const auto& [expert, slot, count] : {std::tuple(0, 5, 0), std::tuple(1, 5, 130)})
    for (const int row : {0, 128})
      expected.insert(expected.end(), {expert, expert * rows + row, rows - row, 0, row, 0, count, slot});
  auto got = listed<true, 1>(offsets, rows, columns, 0, 5);
  CHECK(got[4 * 8] == -1);
  got.resize(4 * 8);
  CHECK(got == expected);
}

TEST_CASE("cuda: ring: the phase flips after the last stage") {
  Cuda::Context ctx;
  test::DeviceArray<int> to(ctx, std::vector<int>(20));
  go_round<<<1, 1, 0, ctx.stream()>>>(10, to.data());
  expect_launched("go_round");
  std::vector<int> expected;
  for (int n = 0; n < 10; ++n) expected.insert(expected.end(), {n % HopperTile::stages, n / HopperTile::stages % 2});
  CHECK(to.values() == expected);
}
