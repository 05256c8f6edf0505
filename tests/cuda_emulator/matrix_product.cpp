// Computes matrix products by plain loops, and checks all memory that they access.
#include "cuda_emulator/matrix_product.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

// The strides between the rows and between the columns of op(X) in the memory of X.
struct Strides {
  std::int64_t row, column;
};
Strides strides(const Matrix& matrix, cublasOperation_t operation) {
  return operation == CUBLAS_OP_N ? Strides{1, matrix.leading} : Strides{matrix.leading, 1};
}

// Calls `visit` with a pointer of the element type.
template <class Visit>
void with_elements(const Matrix& matrix, const Visit& visit) {
  switch (matrix.type) {
    case CUDA_R_64F:
      return visit(static_cast<const double*>(matrix.data));
    case CUDA_R_32F:
      return visit(static_cast<const float*>(matrix.data));
    case CUDA_R_16F:
      return visit(static_cast<const __half*>(matrix.data));
    default:
      return visit(static_cast<const __nv_bfloat16*>(matrix.data));
  }
}

// Returns op(X) as rows × columns in row-major order, converted to the type of the sums.
template <class Sum>
std::vector<Sum> unpacked(const Matrix& matrix, Strides stride, std::int64_t rows, std::int64_t columns) {
  std::vector<Sum> result(static_cast<std::size_t>(rows * columns));
  with_elements(matrix, [&](const auto* elements) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        result[static_cast<std::size_t>(i * columns + j)] =
            static_cast<Sum>(elements[i * stride.row + j * stride.column]);
      }
    }
  });
  return result;
}

template <class Sum>
void compute_in(const MatrixProduct& product) {
  const auto [a_row, a_column] = strides(product.a, product.transposed_a);
  const auto [b_row, b_column] = strides(product.b, product.transposed_b);
  const auto a = unpacked<Sum>(product.a, {a_row, a_column}, product.m, product.k);
  const auto b = unpacked<Sum>(product.b, {b_column, b_row}, product.n, product.k);
  const auto alpha = static_cast<Sum>(product.alpha), beta = static_cast<Sum>(product.beta);
  with_elements(product.c, [&]<class T>(const T* elements) {
    for (std::int64_t j = 0; j < product.n; ++j) {
      for (std::int64_t i = 0; i < product.m; ++i) {
        T& c = const_cast<T*>(elements)[j * product.c.leading + i];
        const Sum sum = std::inner_product(a.begin() + i * product.k, a.begin() + (i + 1) * product.k,
                                           b.begin() + j * product.k, Sum{0});
        c = static_cast<T>(alpha * sum + (beta == 0 ? Sum{0} : beta * static_cast<Sum>(c)));
      }
    }
  });
}

[[noreturn]] void refuse(const MatrixProduct& product, const std::string& what) {
  throw Fault(product.name + ": " + what);
}

std::string sizes(const Matrix& matrix) {
  return std::to_string(matrix.rows) + " x " + std::to_string(matrix.columns) + " with leading dimension " +
         std::to_string(matrix.leading);
}

void check_memory(const MatrixProduct& product, const Matrix& matrix, const char* name, int device) {
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.data);
  const std::string described = std::string(name) + " (" + sizes(matrix) + ", " + std::to_string(matrix.bytes()) +
                                " bytes at " + hexadecimal(address) + ")";
  if (address % matrix.element_bytes() != 0) refuse(product, described + " is not aligned to its elements");
  const Memory& memory = Memory::device();
  if (memory.contains(matrix.data, matrix.bytes(), device)) return;
  if (memory.contains(matrix.data, matrix.bytes())) {
    refuse(product, described + " is on device " + std::to_string(memory.device_of(matrix.data)) +
                        ", the product on device " + std::to_string(device));
  }
  if (!memory.contains(matrix.data, 1)) refuse(product, described + " is not in device memory");
  refuse(product, described + " reaches beyond the end of its allocation");
}

// A column of a matrix: a range of addresses.
struct Column {
  std::uintptr_t begin, end;
  const char* matrix;
  std::size_t problem;
  bool written() const { return *matrix == 'C'; }
};

void append_columns(const Matrix& matrix, const char* name, std::size_t problem, std::vector<Column>& columns) {
  const auto begin = reinterpret_cast<std::uintptr_t>(matrix.data);
  const std::size_t bytes = matrix.element_bytes();
  for (std::int64_t j = 0; j < matrix.columns && matrix.rows > 0; ++j) {
    const std::uintptr_t at = begin + static_cast<std::size_t>(j * matrix.leading) * bytes;
    columns.push_back({at, at + static_cast<std::size_t>(matrix.rows) * bytes, name, problem});
  }
}

// The products of a batch have no order. A product must not write memory that the same or a different product reads or
// writes.
void check_overlap(const std::vector<MatrixProduct>& batch) {
  std::vector<Column> columns;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    append_columns(batch[i].c, "C", i, columns);
    if (batch[i].k == 0) continue;
    append_columns(batch[i].a, "A", i, columns);
    append_columns(batch[i].b, "B", i, columns);
  }
  std::sort(columns.begin(), columns.end(), [](const Column& l, const Column& r) { return l.begin < r.begin; });
  const Column *read = nullptr, *written = nullptr;  // the columns with the largest end so far
  for (const Column& column : columns) {
    for (const Column* other : {written, column.written() ? read : nullptr}) {
      if (!other || other->end <= column.begin) continue;
      const auto name = [](const Column& c) {
        return std::string(c.matrix) + " of problem " + std::to_string(c.problem);
      };
      refuse(batch.front(), name(*other) + " overlaps " + name(column) + " at " + hexadecimal(column.begin));
    }
    const Column*& farthest = column.written() ? written : read;
    if (!farthest || farthest->end < column.end) farthest = &column;
  }
}

}  // namespace

std::size_t Matrix::bytes() const {
  if (rows == 0 || columns == 0) return 0;
  return static_cast<std::size_t>(leading * (columns - 1) + rows) * element_bytes();
}

cublasStatus_t check(const MatrixProduct& product) {
  const auto known = [](cublasOperation_t operation) {
    return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T || operation == CUBLAS_OP_C;
  };
  const auto fits = [](const Matrix& matrix) { return matrix.leading >= std::max<std::int64_t>(1, matrix.rows); };
  const bool valid = known(product.transposed_a) && known(product.transposed_b) && product.m >= 0 && product.n >= 0 &&
                     product.k >= 0 && fits(product.a) && fits(product.b) && fits(product.c);
  return valid ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

void compute(const std::vector<MatrixProduct>& batch, int device) {
  std::vector<MatrixProduct> work;
  for (const MatrixProduct& product : batch) {
    if (product.m == 0 || product.n == 0) continue;
    check_memory(product, product.c, "C", device);
    if (product.k > 0) {
      check_memory(product, product.a, "A", device);
      check_memory(product, product.b, "B", device);
    }
    work.push_back(product);
  }
  check_overlap(work);
  for (const MatrixProduct& product : work) {
    product.c.type == CUDA_R_64F ? compute_in<double>(product) : compute_in<float>(product);
  }
}

}  // namespace gatefold::cuda_emulator
