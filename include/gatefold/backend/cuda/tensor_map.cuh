#pragma once

#include <cuda.h>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// Tensor maps: descriptors of matrices in global memory. Hopper's tensor memory accelerator uses them to copy boxes
/// (parts of a matrix) to shared memory.
namespace gatefold::detail_::device {

/// The size of a box, the part of a matrix that one instruction copies, in rows, columns and bytes. A row of 64
/// bfloat16 values has 128 bytes, the width within which the swizzle permutes values in shared memory (Bf16Place).
inline constexpr int kBoxRows = 64, kBoxColumns = 64, kBoxBytes = kBoxRows * kBoxColumns * 2;

/// Returns the driver's function cuTensorMapEncodeTiled. The runtime looks it up, so that programs need not link the
/// driver library.
/// @throws DeviceError if the driver does not have it
inline decltype(&cuTensorMapEncodeTiled) encode_tiled() {
  static const auto function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    expect_success(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
    if (found != cudaDriverEntryPointSuccess || !address)
      throw DeviceError("cuTensorMapEncodeTiled: the driver does not provide this function");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(address);
  }();
  return function;
}

/// Returns a tensor map, a descriptor for Hopper's copy instructions, of `matrices` matrices with `rows` rows each. The
/// coordinates of a box (the part of a matrix that is copied) are (column, row, matrix). Elements outside of the
/// matrices read as 0.
/// @param data     first value of the first matrix; its rows have a whole number of units (bf16_matrix.cuh)
/// @param columns  number of values in a row
/// @param stride   number of values from one row to the next
/// @param step     number of values from one matrix to the next
/// @throws DeviceError if the driver refuses the arguments
inline CUtensorMap tensor_map(const Bfloat16* data, Index columns, Index stride, Index rows, Index matrices,
                              Index step) {
  const auto number = [](Index n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t extents[3] = {number(columns), number(rows), number(matrices)};
  const cuuint64_t strides[2] = {number(stride) * sizeof(Bfloat16), number(step) * sizeof(Bfloat16)};
  const cuuint32_t box[3] = {kBoxColumns, kBoxRows, 1}, steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<Bfloat16*>(data), extents, strides, box,
                     steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw DeviceError("cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(status)));
  return map;
}
/// Returns a tensor map, a descriptor for Hopper's copy instructions, of one matrix. `columns` is rounded up to a
/// multiple of 8 values.
inline CUtensorMap tensor_map(const Bf16Matrix& a, Index columns, Index rows) {
  return tensor_map(a.data, bf16_stride(columns), a.stride, rows, 1, rows * a.stride);
}

}  // namespace gatefold::detail_::device
