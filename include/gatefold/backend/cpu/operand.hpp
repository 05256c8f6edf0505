#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// One factor of a matrix product A B, described by its *lines*. A line is a row of A or a column of B, because each
/// element of the product is the dot product of a row of A and a column of B. k is a position in a line.
///
///     element (line, k) = lines_are_rows ? data[row(line), k] : data[row(k), line]                            (1)
template <class T>
struct Operand {
  const T* data = nullptr;
  Index stride = 0;  // distance between rows in memory, in elements
  bool lines_are_rows = true;
  // Row indices of a gather: row r of the operand is row rows[r] of data. Null if rows are not gathered.
  const Index* rows = nullptr;

  const T* at(Index row, Index column) const { return data + (rows ? rows[row] : row) * stride + column; }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
