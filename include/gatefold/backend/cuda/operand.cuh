#pragma once

#include <cstdint>

#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// The operands of the kernels of products.
namespace gatefold::detail_::device {

/// A group of four neighbouring values, read at once if its address allows it.
template <class W>
struct alignas(4 * sizeof(W) < 16 ? 4 * sizeof(W) : 16) Four {
  W v[4];
};
/// The layout of a matrix of lines (rows of a, columns of b) in memory. The sums run along its depth.
enum class Layout {
  along_depth,  // the depth is contiguous
  along_lines,  // lines are contiguous
  rounded       // along_lines, in bfloat16
};

/// A matrix, of which a tile reads some lines.
template <class T>
struct Operand {
  const char* data;   // T, or Bfloat16
  Index stride;       // along_depth: bytes from line to line; otherwise bytes from depth k to depth k + 1
  const Index* rows;  // stored row of line i, or of depth k (along_lines); null: i or k itself
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

/// Returns the result of an epilogue for one sum, or for two.
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
