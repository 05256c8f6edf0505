#pragma once

#include <climits>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// The product of two matrices, by cuBLAS.
namespace gatefold::detail_::device {

/// Applies an epilogue (for example bias and activation) to the elements of c in place. This second pass is needed
/// because cuBLAS does not run epilogues.
template <class T, class E>
struct ApplyEpilogue {
  T* c;
  Index columns;
  E epilogue;
  __device__ void operator()(Index i) const {
    c[i] = epilogue(OneElement<T>{}, Index(0), i / columns, i % columns, c[i]);
  }
};

template <class T>
inline constexpr cudaDataType_t blas_type = std::is_same_v<T, double> ? CUDA_R_64F : CUDA_R_32F;
/// Returns the precision of the products that cuBLAS computes for type T: double, float, or TF32 for float if
/// Options::tf32 is set.
template <class T, class Context>
cublasComputeType_t blas_compute(const Context& ctx) {
  if (std::is_same_v<T, double>) return CUBLAS_COMPUTE_64F;
  return ctx.options().tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}
/// Checks that an extent (size of a dimension) fits an int. cuBLAS takes sizes as int, and the kernels of this folder
/// use int for positions along the inner dimension of a product.
/// @throws ArgumentError if the extent is larger than INT_MAX
inline void expect_int(const char* where, const char* name, Index extent) {
  expect(extent <= INT_MAX, where, name, Joined{"at most ", INT_MAX}, extent);
}

/// Computes c = op(a) op(b) for row-major matrices with cuBLAS. op transposes a if `ta` is true, and b if `tb` is true.
/// If `accumulate` is true, the product is added to c. Because cuBLAS is column-major, it computes the transposed
/// product cᵀ = op(b)ᵀ op(a)ᵀ.
/// @param m, n, k  c has m rows and n columns; each sum has k products
/// @order  chosen by cuBLAS; the order is the same for equal sizes on the same device. cuBLAS rounds factors to TF32
///         only with Options::tf32
template <class T, class Context>
void gemm(Context& ctx, Index m, Index n, Index k, const T* a, bool ta, Index a_stride, const T* b, bool tb,
          Index b_stride, bool accumulate, T* c) {
  for (const auto& [name, extent] : {std::pair{"m", m}, {"n", n}, {"k", k}}) expect_int("Cuda::gemm", name, extent);
  const T one = 1, beta = accumulate ? 1 : 0;
  expect_success(cublasGemmEx(ctx.blas(), tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                              static_cast<int>(n), static_cast<int>(m), static_cast<int>(k), &one, b, blas_type<T>,
                              static_cast<int>(b_stride), a, blas_type<T>, static_cast<int>(a_stride), &beta, c,
                              blas_type<T>, static_cast<int>(n), blas_compute<T>(ctx), CUBLAS_GEMM_DEFAULT),
                 "cublasGemmEx");
}

}  // namespace gatefold::detail_::device
