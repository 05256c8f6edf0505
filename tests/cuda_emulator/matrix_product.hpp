// Matrix products as cuBLAS defines them, with checks that cuBLAS leaves to its caller.
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
  std::int64_t leading = 0;  // number of elements from one column to the next

  std::size_t element_bytes() const { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }
  std::size_t bytes() const;
};

/// C ← α op(A) op(B) + β C, with op(A) of m × k and op(B) of k × n. If β = 0, C is not read.
struct MatrixProduct {
  cublasOperation_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  std::int64_t m = 0, n = 0, k = 0;
  double alpha = 1, beta = 0;
  Matrix a = {}, b = {}, c = {};  // rows and columns as stored
  std::string name = {};          // name of the call, for messages
};

/// Returns the status of cuBLAS for wrong arguments: negative sizes, leading dimensions that are too small, an unknown
/// operation.
cublasStatus_t check(const MatrixProduct& product);

/// Computes the products of one call with plain loops. Sums are double for double matrices, and float for all others.
///
/// @param device  the device in whose memory the matrices must be
/// @throws Fault if a matrix is not wholly in that memory or not aligned to its elements, or if a C overlaps a
///         different matrix of the call
void compute(const std::vector<MatrixProduct>& batch, int device);

}  // namespace gatefold::cuda_emulator
