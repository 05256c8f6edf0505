#pragma once

#include <climits>
#include <type_traits>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// The plain product, by cuBLAS.
namespace gatefold::device {

/// c = epilogue(c, …), where the product is not ours
template <class T, class E>
struct Finish {
  T* c;
  Index columns;
  E epilogue;
  __device__ void operator()(Index i) const {
    c[i] = epilogue(OneElement<T>{}, Index(0), i / columns, i % columns, c[i]);
  }
};

/// c (+)= op(a) op(b), row by row. cuBLAS counts by columns, so it is asked for cᵀ (+)= op(b)ᵀ op(a)ᵀ.
/// @param m, n, k  c is m × n, the sums have k products
/// @order  cuBLAS's own, the same for the same sizes on the same device; no TF32
template <class T>
void gemm(cublasHandle_t blas, Index m, Index n, Index k, const T* a, bool ta, Index a_stride, const T* b, bool tb,
          Index b_stride, bool accumulate, T* c) {
  for (const Index extent : {m, n, k})
    expect(extent <= INT_MAX, "Cuda::gemm", "extent", Joined{"at most ", INT_MAX}, extent);
  constexpr cudaDataType_t type = std::is_same_v<T, double> ? CUDA_R_64F : CUDA_R_32F;
  const T one = 1, beta = accumulate ? 1 : 0;
  expect_success(cublasGemmEx(blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, static_cast<int>(n),
                              static_cast<int>(m), static_cast<int>(k), &one, b, type, static_cast<int>(b_stride), a, type,
                              static_cast<int>(a_stride), &beta, c, type, static_cast<int>(n),
                              std::is_same_v<T, double> ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "cublasGemmEx");
}

}  // namespace gatefold::device
