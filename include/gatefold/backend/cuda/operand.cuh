#pragma once

#include <cstdint>

#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// The factors (operands) of matrix products, as the kernels of this folder read them.
namespace gatefold::detail_::device {

/// A group of four neighbouring values. Its alignment allows reads of up to 16 bytes at once.
template <class W>
struct alignas(4 * sizeof(W) < 16 ? 4 * sizeof(W) : 16) Four {
  W v[4];
};
/// How a factor of a matrix product is stored. A line is a row of the first factor or a column of the second. A product
/// sums along the lines; the position k in a line is called the depth.
enum class Layout {
  along_depth,  // the values of a line are contiguous
  along_lines,  // the values of neighbouring lines at one depth are contiguous
  rounded       // like along_lines, with values in bfloat16
};

/// A factor of a matrix product, as a kernel reads it. A thread block reads only some lines of the factor (rows of the
/// first factor, columns of the second).
template <class T>
struct Operand {
  const char* data;  // values of type T, or Bfloat16 if the layout is rounded
  // `stride` is the number of bytes from one stored row to the next. A stored row is a line if the layout is
  // along_depth. Otherwise it has the values of all lines at one depth.
  Index stride;
  const Index* rows;  // row i of the factor is stored row rows[i]; if null, it is stored row i
  Layout layout;
  bool aligned;  // whether every group of four values begins at a multiple of its alignment

  /// Returns the operand without its first `count` rows.
  __device__ Operand skip(Index count) const {
    Operand rest = *this;
    if (rows)
      rest.rows += count;
    else
      rest.data += count * stride;
    return rest;
  }
  /// Makes this the matrix of expert e, if it was the matrix of expert 0 and the experts are `step` bytes apart.
  __device__ void to_expert(Index e, Index step) { data += e * step; }
};
template <class T, class W>
Operand<T> operand(Layout layout, const W* data, Index stride, const Index* rows = nullptr) {
  const bool aligned = stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(data) % alignof(Four<W>) == 0;
  return {reinterpret_cast<const char*>(data), stride * static_cast<Index>(sizeof(W)), rows, layout, aligned};
}

/// Applies an epilogue to one sum, `first`, or to two sums if a product has two result matrices. Returns the result.
/// The sums belong to column j of row s.
template <int Matrices, class T, class E>
__device__ T finished(const E& epilogue, Index expert, Index s, Index j, T first, T second) {
  if constexpr (Matrices == 1) {
    return epilogue(OneElement<T>{}, expert, s, j, first);
  } else {
    return epilogue(OneElement<T>{}, expert, s, j, first, second);
  }
}

/// The second factors of a product that computes one or two result matrices at once.
/// @tparam Of  the type of a factor: an Operand, or a QuantisedMatrix
template <class T, int Matrices, class Of = Operand<T>>
struct Each {
  Of of[Matrices];
};

}  // namespace gatefold::detail_::device
