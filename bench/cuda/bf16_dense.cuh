#pragma once

#include "support.cuh"

/// Dense bfloat16 products by cuBLAS. The benchmarks compare gatefold's bfloat16 products with them.
namespace bench {

/// Computes c [m, n] = a [m, k] b [k, n] with cuBLAS. All matrices are bfloat16 and row-major; sums are float.
inline void dense(CudaBf16::Context& ctx, Index m, Index n, Index k, const Tensor<Bfloat16, 2, CudaBf16>& a,
                  const Tensor<Bfloat16, 2, CudaBf16>& b, Tensor<Bfloat16, 2, CudaBf16>& c) {
  const float one = 1, zero = 0;
  const auto extent = [](Index i) { return static_cast<int>(i); };
  detail_::device::expect_success(
      cublasGemmEx(ctx.blas(), CUBLAS_OP_N, CUBLAS_OP_N, extent(n), extent(m), extent(k), &one, b.data(), CUDA_R_16BF,
                   extent(n), a.data(), CUDA_R_16BF, extent(k), &zero, c.data(), CUDA_R_16BF, extent(n),
                   CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

/// Returns a matrix of random numbers in [-1, 1), rounded to bfloat16. Its rows are bf16_stride(columns) values apart.
inline Tensor<Bfloat16, 2, CudaBf16> rounded(CudaBf16::Context& ctx, std::uint64_t seed, Index rows, Index columns) {
  const auto x = uniform_tensor<float>(ctx, Seed{seed}, 1, rows, columns);
  Tensor<Bfloat16, 2, CudaBf16> to(rows, detail_::device::bf16_stride(columns));
  detail_::device::round_rows(ctx.stream(), rows, columns, x.data(), to.data());
  ctx.synchronize();
  return to;
}

}  // namespace bench
