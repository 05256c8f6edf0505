// The places in shared memory at which wgmma reads a matrix: the layouts of the PTX ISA, "Asynchronous Warpgroup Level
// Matrix Shared Memory Layout", for numbers of 16 bits.
//
// Shared memory holds bricks of 8 x 8 numbers, 8 rows of 16 bytes each. `outer` is the row of A or the column of B. If
// k is the major dimension, a row of a brick has 8 numbers with the same `outer`; otherwise, 8 numbers with the same k.
#pragma once

#include <cstdint>

namespace gatefold::cuda_emulator {

struct MatrixDescriptor {
  static constexpr int brick = 8;

  std::uint32_t start = 0;  // in bytes, as are the offsets
  std::uint32_t leading_offset = 0, stride_offset = 0;
  std::uint32_t base_offset = 0;
  std::uint32_t width = 1;  // number of adjacent bricks that are swizzled together: 1, 2, 4, 8 for 16 ... 128 bytes
  bool k_major = true;

  MatrixDescriptor(std::uint64_t bits, bool k_major);

  /// Returns the address of a number in shared memory.
  std::uint32_t address(std::uint32_t outer, std::uint32_t k) const;
};

}  // namespace gatefold::cuda_emulator
