// For the tests of wgmma: where the numbers of a matrix are in shared memory. The shapes and strides of each layout are
// from the tables of CUTLASS (cute/atom/mma_traits_sm90_gmma.hpp).
#pragma once

#include <cstdint>
#include <vector>

namespace gatefold::cuda_emulator {

/// A layout in shared memory. The swizzle is 0, 32, 64 or 128 bytes.
struct SharedLayout {
  int swizzle;
  bool k_major;
};
inline constexpr SharedLayout all_layouts[] = {{0, true},  {32, true},  {64, true},  {128, true},
                                               {0, false}, {32, false}, {64, false}, {128, false}};

inline std::uint64_t descriptor(SharedLayout layout, std::uint32_t start, std::uint32_t leading, std::uint32_t stride) {
  const std::uint64_t type = layout.swizzle == 128 ? 1 : layout.swizzle == 64 ? 2 : layout.swizzle == 32 ? 3 : 0;
  return std::uint64_t{start >> 4} | std::uint64_t{leading >> 4} << 16 | std::uint64_t{stride >> 4} << 32 | type << 62;
}

/// One dimension of a layout. Index i splits into i % shape[0], i / shape[0] % shape[1] and so on.
struct Mode {
  std::vector<std::uint32_t> shape, stride;
  std::uint32_t operator()(std::uint32_t i) const {
    std::uint32_t offset = 0;
    for (std::size_t j = 0; j < shape.size(); ++j) {
      const bool last = j + 1 == shape.size();
      offset += (last ? i : i % shape[j]) * stride[j];
      i /= shape[j];
    }
    return offset;
  }
};

/// Applies Swizzle<bits, 4, 3>: XORs the `bits` bits from bit 4 on with the bits 3 places higher.
inline std::uint32_t swizzled(std::uint32_t address, int bits) {
  const std::uint32_t mask = ((1u << bits) - 1) << 7;
  return address ^ ((address & mask) >> 3);
}

/// Returns the address of a number. The matrix begins at `start`.
inline std::uint32_t place(SharedLayout layout, std::uint32_t start, std::uint32_t leading_bytes,
                           std::uint32_t stride_bytes, int outer, int k) {
  constexpr std::uint32_t T = 8, many = 1024;
  const std::uint32_t LBO = leading_bytes / 2, SBO = stride_bytes / 2;
  Mode of_outer, of_k;
  int bits = 0;
  if (layout.k_major) {
    switch (layout.swizzle) {
      case 0:
        of_outer = {{8, many}, {1 * T, SBO}};
        of_k = {{T, 2}, {1, LBO}};
        break;
      case 32:
        of_outer = {{8, many}, {2 * T, SBO}};
        of_k = {{T, 2}, {1, T}};
        bits = 1;
        break;
      case 64:
        of_outer = {{8, many}, {4 * T, SBO}};
        of_k = {{T, 2}, {1, T}};
        bits = 2;
        break;
      default:
        of_outer = {{8, many}, {8 * T, SBO}};
        of_k = {{T, 2}, {1, T}};
        bits = 3;
        break;
    }
  } else {
    switch (layout.swizzle) {
      case 0:
        of_outer = {{T, 1, many}, {1, T, SBO}};
        of_k = {{8, many}, {1 * T, LBO}};
        break;
      case 32:
        of_outer = {{T, 2, many}, {1, T, LBO}};
        of_k = {{8, many}, {2 * T, SBO}};
        bits = 1;
        break;
      case 64:
        of_outer = {{T, 4, many}, {1, T, LBO}};
        of_k = {{8, many}, {4 * T, SBO}};
        bits = 2;
        break;
      default:
        of_outer = {{T, 8, many}, {1, T, LBO}};
        of_k = {{8, many}, {8 * T, SBO}};
        bits = 3;
        break;
    }
  }
  const std::uint32_t offset = of_outer(static_cast<std::uint32_t>(outer)) + of_k(static_cast<std::uint32_t>(k));
  return swizzled(start + 2 * offset, bits);
}

/// Offsets in bytes with which the parts of a matrix of `outer` rows or columns and 16 values of k are contiguous.
struct Offsets {
  std::uint32_t leading, stride, bytes;
};
inline Offsets compact(SharedLayout layout, int outer) {
  const auto count = static_cast<std::uint32_t>(outer);
  const std::uint32_t width = layout.swizzle == 0 ? 16 : static_cast<std::uint32_t>(layout.swizzle), atom = 8 * width;
  if (layout.k_major) {
    // Swizzled rows may hold more than 16 values of k. The matrix is then a part of these rows.
    return {width == 16 ? atom * (count / 8) : 16, atom, atom * (count / 8) * (width == 16 ? 2 : 1)};
  }
  const std::uint32_t atoms = (2 * count + width - 1) / width;
  return width == 16 ? Offsets{atom * atoms, atom, 2 * atom * atoms} : Offsets{2 * atom, atom, 2 * atom * atoms};
}

}  // namespace gatefold::cuda_emulator
