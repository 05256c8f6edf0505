#pragma once

#include <cstdint>

#include "gatefold/backend/cuda/device_code.cuh"

/// The instructions of tensor cores that multiply bfloat16 (PTX ISA, "Warp Level Matrix Multiply-Accumulate
/// Instructions"), from compute capability 8.0 on. All lanes of a warp must call them together.
namespace gatefold::detail_::device {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Waits until at most the last `left` groups of asynchronous copies are pending. It is used instead of
/// __pipeline_wait_prior, because that function allows at most 8.
template <int left>
__device__ void wait_for_copies() {
#if GATEFOLD_TENSOR_CORES
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

/// Loads four matrices of 8 × 8 values (m = 0 to 3) from shared memory. Lanes 8 m to 8 m + 7 of the warp pass the
/// addresses of the rows of matrix m, 16 bytes each. From each matrix, a lane gets the values of row lane / 4 in
/// columns 2·(lane % 4) and 2·(lane % 4) + 1.
/// @tparam Transpose  whether each stored matrix is transposed while it is loaded; rows and columns above then count in
///         the transposed matrix
template <bool Transpose>
__device__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t row) {
#if GATEFOLD_TENSOR_CORES
  if constexpr (Transpose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row));
  }
#endif
}

/// Computes sum += a b on a tensor core, for a matrix a of 16 × 16 and a matrix b of 16 × 8 values. Each lane of the
/// warp has four sums: row lane / 4 in columns 2 (lane % 4) and 2 (lane % 4) + 1, and the same columns 8 rows below.
__device__ inline void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#if GATEFOLD_TENSOR_CORES
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

}  // namespace gatefold::detail_::device
