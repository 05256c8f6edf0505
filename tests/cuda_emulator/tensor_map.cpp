#include "cuda_emulator/tensor_map.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/report.hpp"
#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

[[noreturn]] void not_modelled(const std::string& what) {
  throw Fault("cuTensorMapEncodeTiled: " + what + " is not modelled");
}

std::size_t bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return 4;
    default:
      not_modelled("data type " + std::to_string(type) + " (float16, bfloat16 and float32 are)");
  }
}

std::size_t bytes_of(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      return 16;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return 64;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return 128;
    default:
      not_modelled("swizzle " + std::to_string(swizzle) + " (of other chunks than 16 bytes)");
  }
}

/// Returns true if `value` is an enumerator. The first enumerator is 0.
template <class E>
bool is_one_of(E value, E last) {
  return value >= E{} && value <= last;
}

template <class T>
bool all(const T* values, std::size_t count, T least, T most) {
  return std::all_of(values, values + count, [&](T value) { return value >= least && value <= most; });
}

}  // namespace

CUresult CUDAAPI encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                   const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                   const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                   CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                   CUtensorMapFloatOOBfill fill) {
  const std::lock_guard lock(runtime_lock());
  // The error codes of the runtime equal those of the driver.
  if (const cudaError_t error = begin_call("cuTensorMapEncodeTiled")) return static_cast<CUresult>(error);
  if (options().compute_capability < 90) {
    throw Fault("cuTensorMapEncodeTiled: expected a device of compute capability 90 or newer, got " +
                std::to_string(options().compute_capability));
  }
  constexpr CUresult invalid = CUDA_ERROR_INVALID_VALUE;
  if (map == nullptr || extents == nullptr || box == nullptr || element_strides == nullptr ||
      (strides == nullptr && rank > 1) || rank < 1 || rank > TensorMap::most_dimensions ||
      !is_one_of(type, CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B) || !is_one_of(interleave, CU_TENSOR_MAP_INTERLEAVE_32B) ||
      !is_one_of(swizzle, CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B) ||
      !is_one_of(promotion, CU_TENSOR_MAP_L2_PROMOTION_L2_256B) ||
      !is_one_of(fill, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)) {
    return invalid;
  }
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) not_modelled("an interleaved layout");
  if (fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) not_modelled("a fill with NaN");
  const std::size_t element = bytes_of(type), width = bytes_of(swizzle);

  constexpr cuuint64_t longest = cuuint64_t{1} << 32, widest = (cuuint64_t{1} << 40) - 1;
  const auto multiple_of_16 = [](cuuint64_t bytes) { return bytes % 16 == 0; };
  const std::size_t row = *box * element;
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || !multiple_of_16(reinterpret_cast<std::uintptr_t>(address)) ||
      !all<cuuint64_t>(extents, rank, 1, longest) || !all<cuuint64_t>(strides, rank - 1, 0, widest) ||
      !std::all_of(strides, strides + (rank - 1), multiple_of_16) || !all<cuuint32_t>(box, rank, 1, 256) ||
      !all<cuuint32_t>(element_strides, rank, 1, 8) || !multiple_of_16(row) ||
      (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && row > width)) {
    return invalid;
  }
  // The first element stride is ignored, as the documentation says.
  if (!all<cuuint32_t>(element_strides + 1, rank - 1, 1, 1)) not_modelled("a stride of elements other than 1");
  // The documentation does not say whether rows that are narrower than the swizzle are adjacent or begin one width of
  // the swizzle apart.
  if (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && row < width) {
    not_modelled("a box of " + std::to_string(row) + " bytes in a row with a swizzle of " + std::to_string(width));
  }

  TensorMap encoded;
  encoded.magic = TensorMap::magic_word;
  encoded.address = reinterpret_cast<std::uint64_t>(address);
  encoded.rank = static_cast<std::uint8_t>(rank);
  encoded.swizzle_bytes = static_cast<std::uint8_t>(width);
  encoded.stride[0] = element;
  std::copy_n(extents, rank, encoded.extent);
  std::copy_n(strides, rank - 1, encoded.stride + 1);
  std::copy_n(box, rank, encoded.box);
  *map = {};
  std::memcpy(map, &encoded, sizeof encoded);
  return CUDA_SUCCESS;
}

}  // namespace gatefold::cuda_emulator
