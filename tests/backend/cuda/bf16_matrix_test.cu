// Rows of floats rounded to bfloat16, filled up to whole units with 0.
#include "gatefold/backend/cuda/bf16_matrix.cuh"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Checks that all rows are rounded, or with `range` only the rows [2, rows − 1).
void check(Index rows, Index columns, Index skip, bool range, int multiprocessors = 1) {
  CAPTURE(columns);
  CAPTURE(skip);
  Cuda::Context ctx;
  std::vector<float> x;  // numbers of eight bits, exact in bfloat16; every third has an added quarter of the last place
  for (Index i = 0; i < rows * columns; ++i) x.push_back(static_cast<float>(i % 128 + 128) + (i % 3 == 0 ? 0.25f : 0));
  DeviceArray<float> from(ctx, x, skip);
  DeviceArray<Index> offsets(ctx, {2, 3, rows - 1});
  const Index stride = detail_::device::bf16_stride(columns);
  DeviceArray<std::uint16_t> to(ctx, std::vector<std::uint16_t>(static_cast<std::size_t>(rows * stride), 77));
  detail_::device::round_rows(ctx.stream(), rows, columns, from.data(), reinterpret_cast<Bfloat16*>(to.data()),
                              detail_::device::RoundedRows{range ? offsets.data() : nullptr, 2, nullptr},
                              multiprocessors);
  const auto got = to.values();
  for (Index r = 0; r < rows; ++r)
    for (Index j = 0; j < stride; ++j) {
      const auto bits = got[static_cast<std::size_t>(r * stride + j)];
      if (range && (r < 2 || r >= rows - 1)) {
        CHECK(bits == 77);
      } else {
        // 128 + n is 1.n × 2⁷: exponent 134, its seven bits n
        const auto n = static_cast<std::uint16_t>((r * columns + j) % 128);
        CHECK(bits == (j < columns ? static_cast<std::uint16_t>(134 << 7 | n) : 0));
      }
    }
}

}  // namespace

TEST_CASE("cuda: round_rows: rounds rows, pads the last unit with 0") {
  for (const Index columns : {1, 8, 13, 16, 300})
    for (const Index skip : {0, 1})
      for (const bool range : {false, true}) check(6, columns, skip, range);
}

TEST_CASE("cuda: round_rows: uses the given stride, keeps memory between rows") {
  Cuda::Context ctx;
  const Index rows = 3, columns = 13, stride = 40;
  DeviceArray<float> from(ctx, std::vector<float>(static_cast<std::size_t>(rows * columns), 1.f));
  DeviceArray<std::uint16_t> to(ctx, std::vector<std::uint16_t>(static_cast<std::size_t>(rows * stride), 77));
  detail_::device::round_rows(ctx.stream(), rows, columns, from.data(), reinterpret_cast<Bfloat16*>(to.data()), stride);
  const auto got = to.values();
  for (Index r = 0; r < rows; ++r)
    for (Index j = 0; j < stride; ++j)
      CHECK(got[static_cast<std::size_t>(r * stride + j)] == (j < columns ? 0x3f80 : j < 16 ? 0 : 77));
}

TEST_CASE("cuda: round_rows: warps that share a row round every unit") {
  for (const Index columns : {511, 512, 513, 1000}) {
    CHECK((detail_::device::warps_of_row(6, detail_::device::bf16_stride(columns) / 8, 4) > 1) == (columns >= 505));
    check(6, columns, 0, false, 4);
    check(6, columns, 1, true, 4);
  }
}

TEST_CASE("cuda: round_rows: skips experts without slots") {
  Cuda::Context ctx;
  const Index each = 3, columns = 9, stride = detail_::device::bf16_stride(columns);
  const std::vector<Index> offsets = {4, 4, 6, 6, 7, 7};  // experts 1 and 3 have slots
  const Index experts = static_cast<Index>(offsets.size()) - 1;
  DeviceArray<float> from(ctx, std::vector<float>(static_cast<std::size_t>(experts * each * columns), 1.f));
  DeviceArray<Index> on_device(ctx, offsets);
  DeviceArray<std::uint16_t> to(ctx, std::vector<std::uint16_t>(static_cast<std::size_t>(experts * each * stride), 77));
  detail_::device::RoundedRows used;
  used.offsets = on_device.data();
  used.each = each;
  detail_::device::round_rows(ctx.stream(), experts * each, columns, from.data(),
                              reinterpret_cast<Bfloat16*>(to.data()), used);
  const auto got = to.values();
  for (Index row = 0; row < experts * each; ++row) {
    const Index expert = row / each;
    const bool has_slots = expert == 1 || expert == 3;
    for (Index j = 0; j < stride; ++j) {
      const std::uint16_t rounded = j < columns ? 0x3f80 : 0;  // the bits of 1
      CHECK(got[static_cast<std::size_t>(row * stride + j)] == (has_slots ? rounded : 77));
    }
  }
}

TEST_CASE("bf16_stride: rounds columns up to whole units") {
  CHECK(detail_::device::bf16_stride(0) == 0);
  CHECK(detail_::device::bf16_stride(1) == 8);
  CHECK(detail_::device::bf16_stride(8) == 8);
  CHECK(detail_::device::bf16_stride(9) == 16);
}
