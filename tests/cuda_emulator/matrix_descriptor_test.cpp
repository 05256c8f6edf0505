// Tests the layouts of matrices in shared memory against the tables of CUTLASS (cute/atom/mma_traits_sm90_gmma.hpp).
// The tables have shapes and strides of the canonical layouts, in numbers of 16 bits (8 numbers are 16 bytes).
#include "cuda_emulator/matrix_descriptor.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "cuda_emulator/warpgroup_example.hpp"

using namespace gatefold::cuda_emulator;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

TEST_CASE("MatrixDescriptor: decodes its fields") {
  // A descriptor holds only bits 4 to 17 of addresses and offsets.
  const MatrixDescriptor matrix(u64{0x2abc} | u64{0x1234} << 16 | u64{0x0ff1} << 32 | u64{5} << 49 | u64{2} << 62,
                                true);
  CHECK(matrix.start == 0x2abc0);
  CHECK(matrix.leading_offset == 0x12340);
  CHECK(matrix.stride_offset == 0x0ff10);
  CHECK(matrix.base_offset == 5);
  CHECK(matrix.width == 4);
  CHECK(MatrixDescriptor(u64{0} << 62, true).width == 1);
  CHECK(MatrixDescriptor(u64{1} << 62, true).width == 8);
  CHECK(MatrixDescriptor(u64{3} << 62, true).width == 2);
}

TEST_CASE("MatrixDescriptor: addresses equal the canonical layout") {
  for (const SharedLayout layout : all_layouts) {
    const MatrixDescriptor matrix(descriptor(layout, 2048, 1024 + 32, 512 + 16), layout.k_major);
    for (int outer = 0; outer < 256; ++outer) {
      for (int k = 0; k < 16; ++k) {
        const u32 expected = place(layout, 2048, 1024 + 32, 512 + 16, outer, k);
        if (matrix.address(static_cast<u32>(outer), static_cast<u32>(k)) != expected) {
          CAPTURE(layout.swizzle);
          CAPTURE(layout.k_major);
          CAPTURE(outer);
          CAPTURE(k);
          CHECK(matrix.address(static_cast<u32>(outer), static_cast<u32>(k)) == expected);
        }
      }
    }
  }
}

TEST_CASE("swizzle of 128 bytes: moves chunk to chunk XOR row") {
  const MatrixDescriptor k_major(u64{1} << 62 | u64{1024 / 16} << 32, true);
  CHECK(k_major.address(0, 0) == 0);
  CHECK(k_major.address(0, 9) == 18);
  CHECK(k_major.address(1, 0) == 128 + 16);
  CHECK(k_major.address(3, 8) == 3 * 128 + (1 ^ 3) * 16);
  CHECK(k_major.address(13, 15) == 1024 + 5 * 128 + (1 ^ 5) * 16 + 14);
  // The next 16 values of k begin 32 bytes later.
  const MatrixDescriptor next(u64{1} << 62 | u64{1024 / 16} << 32 | 32 / 16, true);
  CHECK(next.address(3, 8) == 3 * 128 + (3 ^ 3) * 16);
  const MatrixDescriptor mn_major(u64{1} << 62 | u64{1024 / 16} << 32 | u64{4096 / 16} << 16, false);
  CHECK(mn_major.address(5, 0) == 10);
  CHECK(mn_major.address(16, 3) == 3 * 128 + (2 ^ 3) * 16);
  CHECK(mn_major.address(64 + 8, 8 + 2) == 4096 + 1024 + 2 * 128 + (1 ^ 2) * 16);
}

TEST_CASE("MatrixDescriptor: compact offsets use no place twice") {
  for (const SharedLayout layout : all_layouts) {
    const Offsets offsets = compact(layout, 128);
    const MatrixDescriptor matrix(descriptor(layout, 0, offsets.leading, offsets.stride), layout.k_major);
    std::vector<int> count(2 * 128 * 64, 0);
    for (u32 outer = 0; outer < 128; ++outer)
      for (u32 k = 0; k < 16; ++k) ++count[matrix.address(outer, k)];
    for (const int times : count) CHECK(times <= 1);
  }
}
