#pragma once

#include <cstdint>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/groups.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

/// Matrices for tensor cores: floats rounded to bfloat16, in rows that begin at multiples of 16 bytes.
namespace gatefold::detail_::device {

/// The number of bfloat16 values in a unit of 16 bytes. Kernels copy whole units.
inline constexpr Index kBf16Unit = 8;
/// Returns `columns` rounded up to a multiple of 8, so that a row of bfloat16 values fills whole units of 16 bytes.
GATEFOLD_HD constexpr Index bf16_stride(Index columns) { return divide_up(columns, kBf16Unit) * kBf16Unit; }

/// A matrix of bfloat16 values whose rows begin at multiples of 16 bytes. The values between the last column and the
/// next multiple of 16 bytes are 0.
struct Bf16Matrix {
  const Bfloat16* data = nullptr;
  Index stride = 0;             // number of values from one row to the next
  const Index* rows = nullptr;  // row i of the matrix is row rows[i] of `data`; if null, it is row i

  /// Returns the matrix without its first `count` rows.
  __device__ Bf16Matrix skip(Index count) const {
    return rows ? Bf16Matrix{data, stride, rows + count} : Bf16Matrix{data + count * stride, stride, nullptr};
  }
};

/// Selects the rows of a result that are rounded to bfloat16, by their numbers in the result. Without `range` and
/// `offsets`, these are all rows. With `range`, they are the rows from range[0] to range[last] − 1. With `offsets`, the
/// result has `each` rows for every expert, and only the rows of experts with work (offsets[e] < offsets[e + 1]) are
/// rounded.
struct RoundedRows {
  const Index* range = nullptr;
  Index last = 0;
  const Index* rows = nullptr;  // row i of the result is row rows[i] of the matrix; null: row i
  const Index* offsets = nullptr;
  Index each = 1;

  __device__ bool has(Index row) const {
    if (offsets) return offsets[row / each] < offsets[row / each + 1];
    return !range || (range[0] <= row && row < range[last]);
  }
};

/// Rounds one row of a matrix to bfloat16. Row i of `to` gets the values of row i of `from`, or of row which.rows[i] if
/// there are row numbers.
/// @tparam T  the type of the values of `from`: float, or Bfloat16 to copy them into rows of whole 16-byte units
template <class T>
struct RoundRow {
  static constexpr int columns_at_once = kBf16Unit;
  const T* from;
  Index columns;
  Bfloat16* to;
  Index stride;
  bool whole;  // whether rows of `from` are aligned and consist of whole units of 8 values
  RoundedRows which;

  template <class Lanes>
  __device__ void operator()(const Lanes& lanes, Index row) const {
    if (!which.has(row)) return;
    const T* const of_from = from + (which.rows ? which.rows[row] : row) * columns;
    Bfloat16* const of_to = to + row * stride;
    struct alignas(16) Unit {
      Bfloat16 v[kBf16Unit];
    };
    lanes.share(bf16_stride(columns) / kBf16Unit, [&](Index which_unit) {
      const Index j = which_unit * kBf16Unit;
      Unit unit;
      if (whole) {
        constexpr int each = 16 / sizeof(T);
        struct alignas(16) Part {
          T v[each];
        };
#pragma unroll
        for (int part = 0; part < kBf16Unit; part += each) {
          const Part values = *reinterpret_cast<const Part*>(of_from + j + part);
#pragma unroll
          for (int i = 0; i < each; ++i) unit.v[part + i] = Bfloat16::from(values.v[i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kBf16Unit; ++i) unit.v[i] = Bfloat16::from(j + i < columns ? float(of_from[j + i]) : 0.f);
      }
      *reinterpret_cast<Unit*>(of_to + j) = unit;
    });
  }
  GATEFOLD_HD Index independent_columns() const { return bf16_stride(columns); }
};

/// Rounds rows of `from` [·, columns] to bfloat16. `which` selects the rows of the result, and the row of `from` that
/// each of them reads. Row i of the result begins at to + i · stride.
/// @param rows  number of rows of the result
/// @param multiprocessors  the number of multiprocessors that the launch should keep busy
template <class T>
void round_rows(cudaStream_t stream, Index rows, Index columns, const T* from, Bfloat16* to, Index stride,
                const RoundedRows& which = {}, int multiprocessors = 1) {
  const bool whole = columns % kBf16Unit == 0 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
  if (columns > 0) for_rows(stream, rows, RoundRow<T>{from, columns, to, stride, whole, which}, multiprocessors);
}
/// Rounds rows of `from` [·, columns] to bfloat16, in `to` [rows, bf16_stride(columns)]. `which` selects the rows of
/// `to`, and the row of `from` that each of them reads.
template <class T>
void round_rows(cudaStream_t stream, Index rows, Index columns, const T* from, Bfloat16* to,
                const RoundedRows& which = {}, int multiprocessors = 1) {
  round_rows(stream, rows, columns, from, to, bf16_stride(columns), which, multiprocessors);
}

/// A bfloat16 copy of rows of a float matrix, which several products can use. A product that would read the matrix
/// `from` with the row numbers `rows` reads `rounded` instead. The rows of `rounded` are in slot order (sorted by
/// expert), unless it has row numbers.
struct SharedRows {
  const void* from;
  Index columns;
  const Index* rows;
  Bf16Matrix rounded;
  const SharedRows* before;  // linked list of the other copies; null: no further copy

  const Bf16Matrix* find(const void* a, Index of_columns, const Index* of_rows) const {
    for (const SharedRows* s = this; s; s = s->before)
      if (s->from == a && s->columns == of_columns && s->rows == of_rows) return &s->rounded;
    return nullptr;
  }
};

}  // namespace gatefold::detail_::device
