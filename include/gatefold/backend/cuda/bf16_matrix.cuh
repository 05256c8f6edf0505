#pragma once

#include <cstdint>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/groups.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

/// Matrices as tensor cores read them: floats rounded to bfloat16, in rows that begin at multiples of 16 bytes.
namespace gatefold::device {

/// Values of bfloat16 that are copied at once.
inline constexpr Index kBf16Unit = 8;
/// What `columns` values take in a row of whole units.
GATEFOLD_HD constexpr Index bf16_stride(Index columns) { return (columns + kBf16Unit - 1) / kBf16Unit * kBf16Unit; }

/// Rows of bfloat16, whole units of them: 0 stands behind the last column.
struct Bf16Matrix {
  const Bfloat16* data = nullptr;
  Index stride = 0;             // of a row, in values
  const Index* rows = nullptr;  // which stored row is row i; null: itself

  /// Without the first `count` rows.
  __device__ Bf16Matrix skip(Index count) const {
    return rows ? Bf16Matrix{data, stride, rows + count} : Bf16Matrix{data + count * stride, stride, nullptr};
  }
};

/// Which rows are rounded: all, or those from range[0] to range[last] alone; and from which stored ones.
struct RoundedRows {
  const Index* range = nullptr;
  Index last = 0;
  const Index* rows = nullptr;  // null: each from itself
};

/// to[i] = from[row(i)], rounded.
struct RoundRow {
  const float* from;
  Index columns;
  Bfloat16* to;
  bool whole;  // whether a row's units of floats are whole and aligned
  RoundedRows which;

  template <class Lanes>
  __device__ void operator()(const Lanes& lanes, Index row) const {
    if (which.range && (row < which.range[0] || row >= which.range[which.last])) return;
    const float* const of_from = from + (which.rows ? which.rows[row] : row) * columns;
    Bfloat16* const of_to = to + row * bf16_stride(columns);
    struct alignas(16) Floats {
      float v[4];
    };
    struct alignas(16) Unit {
      Bfloat16 v[kBf16Unit];
    };
    for (Index j = lanes.lane * kBf16Unit; j < columns; j += lanes.size * kBf16Unit) {
      Unit unit;
      if (whole) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Floats four = *reinterpret_cast<const Floats*>(of_from + j + 4 * half);
#pragma unroll
          for (int i = 0; i < 4; ++i) unit.v[4 * half + i] = Bfloat16::from(four.v[i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kBf16Unit; ++i) unit.v[i] = Bfloat16::from(j + i < columns ? of_from[j + i] : 0.f);
      }
      *reinterpret_cast<Unit*>(of_to + j) = unit;
    }
  }
};

/// `rows` rows of floats, rounded into `to`, [rows, bf16_stride(columns)].
inline void round_rows(cudaStream_t stream, Index rows, Index columns, const float* from, Bfloat16* to,
                       const RoundedRows& which = {}) {
  const bool whole = columns % kBf16Unit == 0 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
  if (columns > 0) for_rows(stream, rows, RoundRow{from, columns, to, whole, which});
}

}  // namespace gatefold::device
