#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A matrix that is a factor of a product, as lines: the lines of A are its rows, the lines of B its columns. A line
/// runs along the depth, the dimension over which the product sums. k is a position in a line.
///
///     element (line, k) = lines_are_rows ? data[row(line), k] : data[row(k), line]                            (1)
template <class T>
struct Operand {
  const T* data = nullptr;
  Index stride = 0;  // elements between rows in memory
  bool lines_are_rows = true;
  const Index* rows = nullptr;  // if not null, row r of the operand is row rows[r] of data

  const T* at(Index row, Index column) const { return data + (rows ? rows[row] : row) * stride + column; }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
