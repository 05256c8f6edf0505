#include "cuda_emulator/matrix_descriptor.hpp"

namespace gatefold::cuda_emulator {

MatrixDescriptor::MatrixDescriptor(std::uint64_t bits, bool k_is_major) : k_major(k_is_major) {
  const auto address = [&](int first) { return static_cast<std::uint32_t>(bits >> first & 0x3fff) << 4; };
  constexpr std::uint32_t widths[] = {1, 8, 4, 2};
  start = address(0);
  leading_offset = address(16);
  stride_offset = address(32);
  base_offset = static_cast<std::uint32_t>(bits >> 49 & 7);
  width = widths[bits >> 62];
}

std::uint32_t MatrixDescriptor::address(std::uint32_t outer, std::uint32_t k) const {
  constexpr std::uint32_t row_bytes = 16, number_bytes = 2;
  const std::uint32_t along = k_major ? k : outer, across = k_major ? outer : k;
  const std::uint32_t along_brick = along / brick, across_brick = across / brick;
  std::uint32_t place = start + along % brick * number_bytes + across % brick * row_bytes * width;
  if (width > 1) {
    // Bricks are adjacent within the width of the swizzle.
    place += along_brick % width * row_bytes + along_brick / width * leading_offset + across_brick * stride_offset;
  } else if (k_major) {
    place += along_brick * leading_offset + across_brick * stride_offset;
  } else {
    place += along_brick * stride_offset + across_brick * leading_offset;
  }
  // Applies the swizzle: in row r of a pattern with rows of 128 bytes, the number of each part of 16 bytes is XORed
  // with r modulo width.
  return place ^ ((place >> 7 & (width - 1)) << 4);
}

}  // namespace gatefold::cuda_emulator
