// Which expert and which of its rows a block computes. The device finds this by counting, for any number of experts.
#include "gatefold/backend/cuda/row_tile.cuh"

#include <doctest/doctest.h>

#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

static __global__ void count_all(const Index* offsets, Index experts, Index rows, detail_::device::RowRange range,
                                 Index* counted) {
  counted[threadIdx.x] = detail_::device::count_row_tiles(offsets, experts, rows, range);
}

static __global__ void find_all(const Index* offsets, Index experts, Index rows, detail_::device::RowRange range,
                                Index* found) {
  const detail_::device::RowTile tile = detail_::device::find_row_tile(offsets, experts, rows, blockIdx.x, range);
  Index* mine = found + 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  mine[0] = tile.expert;
  mine[1] = tile.row;
}

/// Checks every thread of two warps for each tile, and for three tiles that do not exist.
void check(const std::vector<Index>& counts, Index rows, Index first = 0, const detail_::device::RowRange& range = {}) {
  CAPTURE(counts.size());
  CAPTURE(rows);
  constexpr unsigned threads = 64;
  std::vector<Index> offsets{first}, expected;
  const auto expect_tile = [&](Index expert, Index row) {
    for (unsigned t = 0; t < threads; ++t) expected.insert(expected.end(), {expert, row});
  };
  for (std::size_t e = 0; e < counts.size(); ++e) {
    offsets.push_back(offsets.back() + counts[e]);
    if (counts[e] <= range.above || counts[e] > range.up_to) continue;
    for (Index row = 0; row < counts[e]; row += rows) expect_tile(static_cast<Index>(e), row);
  }
  for (int none = 0; none < 3; ++none) expect_tile(-1, 0);

  Cuda::Context ctx;
  DeviceArray<Index> device_offsets(ctx, offsets), found(ctx, std::vector<Index>(expected.size(), -5));
  find_all<<<static_cast<unsigned>(expected.size() / 2 / threads), threads, 0, ctx.stream()>>>(
      device_offsets.data(), static_cast<Index>(counts.size()), rows, range, found.data());
  detail_::device::expect_launched("find_all");
  CHECK(difference(expected, found.values()) == "");

  DeviceArray<Index> counted(ctx, std::vector<Index>(threads, -5));
  count_all<<<1, threads, 0, ctx.stream()>>>(device_offsets.data(), static_cast<Index>(counts.size()), rows, range,
                                             counted.data());
  detail_::device::expect_launched("count_all");
  const auto tiles = static_cast<Index>(expected.size() / 2 / threads) - 3;
  CHECK(difference(std::vector<Index>(threads, tiles), counted.values()) == "");
}

}  // namespace

TEST_CASE("cuda: row tiles: are counted expert by expert") {
  check({5}, 16);
  check({16}, 16);
  check({17, 1, 32, 33}, 16);
  check({0, 3, 0, 0, 40, 0}, 16);
  check({300, 0, 1}, 128, 1000);
  check({}, 16);
  check({0, 0}, 16);
}

TEST_CASE("cuda: row tiles: can have more experts than lanes") {
  for (const std::size_t experts : {31u, 32u, 33u, 64u, 65u, 100u}) {
    std::vector<Index> counts;
    for (std::size_t e = 0; e < experts; ++e) counts.push_back(static_cast<Index>(e % 7 * (e % 3) * 6));
    check(counts, 16);
    check(std::vector<Index>(experts, 1), 16);
    counts.assign(experts, 0);
    counts.back() = 20;
    check(counts, 16);
  }
}

TEST_CASE("cuda: row tiles: a range of row counts selects experts") {
  const std::vector<Index> counts{0, 32, 33, 1, 100, 31, 0, 34};
  check(counts, 16, 0, {0, 32});
  check(counts, 16, 0, {32});
  check(counts, 64, 5, {32});
  check({1, 2, 3}, 16, 0, {32});
  check({40, 50}, 16, 0, {0, 32});
}
