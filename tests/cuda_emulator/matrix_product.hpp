// Matrix products as cuBLAS defines them, with checks of all that it would trust its caller with.
#pragma once

#include <cublas_v2.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gatefold::cuda_emulator {

/// A column-major matrix in device memory.
struct Matrix {
  const void* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0;
  std::int64_t leading = 0;  // elements from one column to the next

  std::size_t element_bytes() const { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }
  std::size_t bytes() const;
};

/// C ← α op(A) op(B) + β C, where op(A) is m × k and op(B) is k × n. C is not read where β = 0.
struct MatrixProduct {
  cublasOperation_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  std::int64_t m = 0, n = 0, k = 0;
  double alpha = 1, beta = 0;
  Matrix a = {}, b = {}, c = {};  // rows and columns as stored
  std::string name = {};          // of the call, for messages
};

/// The statuses cuBLAS returns: negative sizes, leading dimensions that are too small, an unknown operation.
cublasStatus_t check(const MatrixProduct& product);

/// Computes the products of one call with plain loops; sums are double for double and float for all others.
///
/// @param device  in whose memory the matrices must lie
/// @throws Fault where a matrix is not wholly in that memory or not aligned to its elements, and where a C overlaps
/// any other matrix of the call
void compute(const std::vector<MatrixProduct>& batch, int device);

}  // namespace gatefold::cuda_emulator
