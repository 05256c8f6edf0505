#pragma once

#include <cstdint>

#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// The operands of the kernels of products.
namespace gatefold::detail_::device {

/// A group of four neighbouring values. They are read at once if their address allows it.
template <class W>
struct alignas(4 * sizeof(W) < 16 ? 4 * sizeof(W) : 16) Four {
  W v[4];
};
/// The layout in memory of a matrix of lines. The lines of a are its rows, the lines of b its columns. A product sums
/// along the depth, which is the position k in a line.
enum class Layout {
  along_depth,  // the depth is contiguous
  along_lines,  // lines are contiguous
  rounded       // along_lines, in bfloat16
};

/// A matrix that is a factor of a product. A tile reads some of its lines.
template <class T>
struct Operand {
  const char* data;   // values of type T, or Bfloat16 if the layout is rounded
  Index stride;       // along_depth: bytes from line to line; otherwise bytes from depth k to depth k + 1
  const Index* rows;  // number of the stored row of line i, or of depth k (along_lines); null: i or k itself
  Layout layout;
  bool aligned;  // whether every group of four begins at a multiple of its alignment

  /// Returns the operand without its first `count` rows.
  __device__ Operand skip(Index count) const {
    Operand rest = *this;
    if (rows)
      rest.rows += count;
    else
      rest.data += count * stride;
    return rest;
  }
};
template <class T, class W>
Operand<T> operand(Layout layout, const W* data, Index stride, const Index* rows = nullptr) {
  const bool aligned = stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(data) % alignof(Four<W>) == 0;
  return {reinterpret_cast<const char*>(data), stride * static_cast<Index>(sizeof(W)), rows, layout, aligned};
}

/// Returns the result of an epilogue for one sum, `first`, or for two sums.
template <int Matrices, class T, class E>
__device__ T finished(const E& epilogue, Index expert, Index s, Index j, T first, T second) {
  if constexpr (Matrices == 1) {
    return epilogue(OneElement<T>{}, expert, s, j, first);
  } else {
    return epilogue(OneElement<T>{}, expert, s, j, first, second);
  }
}

/// One operand for each matrix of a product.
template <class T, int Matrices>
struct Each {
  Operand<T> of[Matrices];
};

}  // namespace gatefold::detail_::device
