#pragma once

#include <cstdint>

#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"

/// Matrices as the kernels of products see them.
namespace gatefold::detail_::device {

/// Four neighbours, read at once where their address allows it.
template <class W>
struct alignas(4 * sizeof(W) < 16 ? 4 * sizeof(W) : 16) Four {
  W v[4];
};
/// How a matrix of lines (rows of a, columns of b) lies in memory; the sum runs along its depth.
enum class Layout {
  along_depth,  // depth is contiguous
  along_lines,  // lines are
  rounded       // along_lines, in bfloat16
};

/// A matrix of which a tile takes some lines.
template <class T>
struct Operand {
  const char* data;   // T, or Bfloat16
  Index stride;       // bytes from line to line (along_depth), or from depth to depth
  const Index* rows;  // which stored row is line i, or depth k (along_lines); null: itself
  Layout layout;
  bool aligned;  // whether every four begins at a multiple of its alignment

  /// Without the first `count` stored rows.
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

/// What an epilogue makes of one sum, or of two.
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
