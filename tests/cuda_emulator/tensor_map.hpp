// Tensor maps: what cuTensorMapEncodeTiled leaves in the 128 opaque bytes of a CUtensorMap, and cp.async.bulk.tensor
// reads there.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gatefold::cuda_emulator {

/// A tensor in global memory, and the box of it that one copy moves. Dimension 0 is the innermost.
///
/// The bytes are the emulator's own: no GPU reads them, as the emulator reads none of a GPU's.
struct TensorMap {
  static constexpr std::uint64_t magic_word = 0x70616d5f726f736eull;
  static constexpr std::uint32_t most_dimensions = 5;

  std::uint64_t magic = 0;  // magic_word where a map was encoded
  std::uint64_t address = 0;
  std::uint64_t extent[most_dimensions] = {};  // in elements
  std::uint64_t stride[most_dimensions] = {};  // in bytes; in dimension 0 those of an element
  std::uint16_t box[most_dimensions] = {};     // in elements
  std::uint8_t rank = 0;
  std::uint8_t swizzle_bytes = 16;  // the width of the swizzle; 16: none

  /// The innermost dimension of the box; in shared memory its rows follow one another.
  std::size_t row_bytes() const { return box[0] * stride[0]; }
  std::size_t rows() const {
    std::size_t count = 1;
    for (std::uint32_t d = 1; d < rank; ++d) count *= box[d];
    return count;
  }

  /// Where the swizzle moves a byte of shared memory: among the chunks of 16 bytes within its width, by the number of
  /// the line of 128 bytes.
  ///
  ///     128 bytes: bits 4-6 ^= bits 7-9,   64: bits 4-5 ^= bits 7-8,   32: bit 4 ^= bit 7
  std::uint64_t swizzled(std::uint64_t shared_address) const {
    const std::uint64_t chunks = swizzle_bytes / 16;
    return shared_address ^ (shared_address >> 7 & (chunks - 1)) << 4;
  }
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap) && std::is_trivially_copyable_v<TensorMap>);

/// The driver's cuTensorMapEncodeTiled, as cudaGetDriverEntryPointByVersion hands it out.
///
/// @returns CUDA_ERROR_INVALID_VALUE for what cuda.h excludes
/// @throws Fault for what the driver takes and the emulator does not model
CUresult CUDAAPI encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                   const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                   const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                   CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                   CUtensorMapFloatOOBfill fill);
static_assert(std::is_same_v<decltype(&encode_tensor_map), decltype(&cuTensorMapEncodeTiled)>);

}  // namespace gatefold::cuda_emulator
