// For the tests of the emulator: makes tensor maps with the function of the driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace gatefold::cuda_emulator {

/// The arguments of cuTensorMapEncodeTiled.
struct Encoding {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  std::optional<cuuint32_t> rank = {};  // empty: the number of extents
  std::uintptr_t address = 0x10000;
  std::vector<cuuint64_t> extents, strides;
  std::vector<cuuint32_t> box;
  std::vector<cuuint32_t> element_strides = {1, 1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
};

inline CUresult encode(const Encoding& e, CUtensorMap& map) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status{};
  REQUIRE(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &status) ==
          cudaSuccess);
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &map, e.type, e.rank.value_or(static_cast<cuuint32_t>(e.extents.size())), reinterpret_cast<void*>(e.address),
      e.extents.data(), e.strides.data(), e.box.data(), e.element_strides.data(), e.interleave, e.swizzle, e.promotion,
      e.fill);
}

}  // namespace gatefold::cuda_emulator
