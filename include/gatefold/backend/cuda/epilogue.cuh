#pragma once

#include <type_traits>

#include "gatefold/backend/cuda/elements.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/core/types.hpp"

/// Applies epilogues (operations on complete sums of a product, for example bias and activation) to groups of up to
/// eight neighbouring columns (elements.cuh).
namespace gatefold::detail_::device {

/// True if an epilogue can be called with groups of eight values.
/// @tparam V  Elements<8>, once for each result matrix
template <class E, class... V>
inline constexpr bool takes_elements =
    std::is_invocable_r_v<Elements<8>, const E&, const ElementsAccess<8>&, Index, Index, Index, V...>;
/// An epilogue that processes groups of eight values of one or two result matrices. False if the epilogue declares
/// `scalar_only`.
template <class E, int Matrices>
concept ElementsEpilogue = !requires {
  requires E::scalar_only;
}
&&(Matrices == 1 ? takes_elements<E, Elements<8>> : takes_elements<E, Elements<8>, Elements<8>>);

/// Applies an epilogue to the sums of at.count neighbouring columns of slot s (one row of the result of an expert),
/// from column j on, and returns the results.
template <int Matrices, int Size, class E>
__device__ Elements<Size> finished_elements(const E& epilogue, const ElementsAccess<Size>& at, Index expert, Index s,
                                            Index j, const Elements<Size> (&sum)[Matrices]) {
  if constexpr (!ElementsEpilogue<E, Matrices>) {
    Elements<Size> result(0);
#pragma unroll
    for (int i = 0; i < Size; ++i)
      if (i < at.count)
        result.v[i] = finished<Matrices>(epilogue, expert, s, j + i, sum[0].v[i], sum[Matrices - 1].v[i]);
    return result;
  } else if constexpr (Matrices == 1) {
    return epilogue(at, expert, s, j, sum[0]);
  } else {
    return epilogue(at, expert, s, j, sum[0], sum[1]);
  }
}

/// Applies an epilogue to the sums of neighbouring columns of slot s (one row of the result), from column j on, and
/// stores the results. Values after the last column, up to the end of the row, become 0.
/// @param columns  number of columns of c
/// @param row      the row of c, with `stride` values
template <int Matrices, int Size, class C, class E>
__device__ void finish_row_part(const E& epilogue, Index expert, Index s, Index j, Index columns,
                                const Elements<Size> (&sum)[Matrices], C* row, Index stride) {
  const auto at = ElementsAccess<Size>::of_left(columns - j);
  at.store(row + j, finished_elements<Matrices>(epilogue, at, expert, s, j, sum));
  for (int k = at.count; k < Size && j + k < stride; ++k) row[j + k] = C{};
}

/// The number of neighbouring columns of a result that are added to one ColumnSum.
inline constexpr int kSumColumns = 32;
/// The element type of a result c that stores sums of columns instead of single values. In each row, an element is the
/// sum of the values of kSumColumns neighbouring columns.
struct ColumnSum {
  float value;
};
/// Returns the number of elements that a row of c needs for `columns` columns: one for each column, or one for each
/// kSumColumns columns if C is ColumnSum.
template <class C>
GATEFOLD_HD constexpr Index row_elements(Index columns) {
  return std::is_same_v<C, ColumnSum> ? divide_up(columns, kSumColumns) : columns;
}

/// Applies an epilogue to kSumColumns columns of slot s (one row of the result), and stores only the sum of the
/// results. Four neighbouring lanes together hold these columns: each lane holds eight columns, from its own column j
/// on. All lanes of a warp call it together.
/// @param exists  whether the slot and column j exist
/// @order  adds the eight columns of a lane in ascending order, then the sums of two neighbouring lanes, then the sums
///         of the two pairs of lanes
template <int Matrices, class E>
__device__ void finish_column_sum(const E& epilogue, bool exists, Index expert, Index s, Index j, Index columns,
                                  const Elements<8> (&sum)[Matrices], ColumnSum* row) {
  static_assert(kSumColumns == 4 * 8);
  float total = 0;
  if (exists) {
#pragma unroll
    // The eight columns are processed in two halves, because this needs fewer registers.
    for (int half = 0; half < 8; half += 4) {
      const Index left = columns - j - half;
      const auto at = ElementsAccess<4>::of_left(left < 0 ? 0 : left);
      Elements<4> part[Matrices];
#pragma unroll
      for (int m = 0; m < Matrices; ++m) part[m] = Elements<4>::each([&](int i) { return sum[m].v[half + i]; });
      const Elements<4> terms = finished_elements<Matrices>(epilogue, at, expert, s, j + half, part);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < at.count) total += terms.v[i];
    }
  }
  for (int distance = 1; distance < 4; distance *= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
  if (exists && threadIdx.x % 4 == 0) row[j / kSumColumns].value = total;
}

}  // namespace gatefold::detail_::device
