// Tensor maps: the 128 opaque bytes of a CUtensorMap, which cuTensorMapEncodeTiled writes and cp.async.bulk.tensor
// reads.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gatefold::cuda_emulator {

/// A tensor in global memory, and the box of it that one copy moves. Dimension 0 is the innermost.
///
/// The format of the bytes is only for the emulator. GPUs cannot read it, and the emulator cannot read maps of GPUs.
struct TensorMap {
  static constexpr std::uint64_t magic_word = 0x70616d5f726f736eull;
  static constexpr std::uint32_t most_dimensions = 5;

  std::uint64_t magic = 0;  // magic_word if a map was encoded
  std::uint64_t address = 0;
  std::uint64_t extent[most_dimensions] = {};  // in elements
  std::uint64_t stride[most_dimensions] = {};  // in bytes; in dimension 0, the size of an element
  std::uint16_t box[most_dimensions] = {};     // in elements
  std::uint8_t rank = 0;
  std::uint8_t swizzle_bytes = 16;  // the width of the swizzle; 16: no swizzle

  /// Returns the bytes of a row of the box (its innermost dimension). In shared memory, rows are contiguous.
  std::size_t row_bytes() const { return box[0] * stride[0]; }
  std::size_t rows() const {
    std::size_t count = 1;
    for (std::uint32_t d = 1; d < rank; ++d) count *= box[d];
    return count;
  }

  /// Returns the address to which the swizzle moves a byte of shared memory. It exchanges chunks of 16 bytes within its
  /// width, by XOR with the number of the line of 128 bytes:
  ///
  ///     128 bytes: bits 4-6 ^= bits 7-9,   64: bits 4-5 ^= bits 7-8,   32: bit 4 ^= bit 7
  std::uint64_t swizzled(std::uint64_t shared_address) const {
    const std::uint64_t chunks = swizzle_bytes / 16;
    return shared_address ^ (shared_address >> 7 & (chunks - 1)) << 4;
  }
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap) && std::is_trivially_copyable_v<TensorMap>);

/// The driver's cuTensorMapEncodeTiled, which cudaGetDriverEntryPointByVersion returns.
///
/// @returns CUDA_ERROR_INVALID_VALUE for arguments that cuda.h excludes
/// @throws Fault for arguments that the driver accepts and the emulator does not model
CUresult CUDAAPI encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                   const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                   const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                   CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                   CUtensorMapFloatOOBfill fill);
static_assert(std::is_same_v<decltype(&encode_tensor_map), decltype(&cuTensorMapEncodeTiled)>);

}  // namespace gatefold::cuda_emulator
