#pragma once

#include <cstddef>
#include <cstdint>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/weight_rounding.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold::detail_::device {

/// Four neighbouring weights of a row as they are stored: their numbers q and scales s.
struct QuantisedFour {
  struct alignas(8) Scales {
    Bfloat16 v[4];
  };
  // Weight i has the bits 8 i to 8 i + 7, or in forms of 4 bits the bits 8 i + shift to 8 i + shift + 3.
  std::uint32_t numbers;
  Scales scales;
  int shift;

  __device__ float value(WeightRounding rounding, int i) const {
    return rounding.value(rounding.stored(numbers >> (8 * i + shift)), float(scales.v[i]));
  }
};

/// Weights of 8 or 4 bits [experts, depth, columns] in device memory (core/weights.hpp), in this order:
///
///     numbers  int8: [experts, depth, stride], a byte q for each weight
///              int4, mxfp4: [experts, ⌈depth / 2⌉, stride], a byte for two weights of a column: row 2 i in its lower
///              half, row 2 i + 1 in its upper half
///     scales   [experts, ⌈depth / 32⌉, stride] bfloat16
///
/// `stride` is `columns` rounded up to a multiple of 4, so that kernels read four neighbouring weights at once. The
/// padding has numbers and scales of 0.
struct QuantisedMatrix {
  WeightRounding rounding{};
  Index depth = 0, stride = 0;
  std::uint8_t* numbers = nullptr;
  Bfloat16* scales = nullptr;
  bool transposed = false;  // whether a product sums over the columns of the weights instead of their rows

  GATEFOLD_HD Index number_rows() const { return rounding.halves() ? divide_up(depth, Index(2)) : depth; }
  GATEFOLD_HD Index scale_rows() const { return divide_up(depth, Index(WeightRounding::size)); }

  /// Returns the number of bytes of the matrices of `experts` experts. The scales begin at `scales_at`.
  std::size_t bytes(Index experts) const {
    return scales_at(experts) + static_cast<std::size_t>(experts * scale_rows() * stride) * sizeof(Bfloat16);
  }
  std::size_t scales_at(Index experts) const {
    return static_cast<std::size_t>(divide_up(experts * number_rows() * stride, Index(8)) * 8);
  }
  /// Makes this the matrix of expert e, if it was the matrix of expert 0.
  GATEFOLD_HD void to_expert(Index e, Index = 0) {
    numbers += e * number_rows() * stride;
    scales += e * scale_rows() * stride;
  }
  /// Returns weights `column` to `column` + 3 of a row. `column` is a multiple of 4 below `stride`.
  __device__ QuantisedFour four(Index row, Index column) const {
    const bool halves = rounding.halves();
    const std::uint8_t* const from = numbers + (halves ? row / 2 : row) * stride + column;
    const Bfloat16* const of_group = scales + row / WeightRounding::size * stride + column;
    return {*reinterpret_cast<const std::uint32_t*>(from), *reinterpret_cast<const QuantisedFour::Scales*>(of_group),
            halves && row % 2 == 1 ? 4 : 0};
  }
};

/// Rounds one group of weights [.., depth, columns], eq. (1) to (3) of core/weights.hpp, and writes its numbers and its
/// scale. The groups are numbered in the order of the scales. Columns past the last one get zeros.
struct QuantiseGroup {
  const float* from;
  Index columns;
  QuantisedMatrix to;

  GATEFOLD_HD void operator()(Index i) const {
    const Index column = i % to.stride, group = i / to.stride % to.scale_rows(), e = i / to.stride / to.scale_rows();
    const Index first = group * WeightRounding::size, left = column < columns ? to.depth - first : 0;
    const float* const weights = from + (e * to.depth + first) * columns + column;
    const auto weight = [&](int k) { return k < left ? weights[k * columns] : 0.0F; };
    float most = 0;
    for (int k = 0; k < WeightRounding::size; ++k)
      if (WeightRounding::is_larger(weight(k), most)) most = weight(k);
    const float scale = to.rounding.scale(most);
    to.scales[i] = Bfloat16::from(scale);

    const bool halves = to.rounding.halves();
    const int in_byte = halves ? 2 : 1;  // number of weights
    std::uint8_t* number = to.numbers + (e * to.number_rows() + first / in_byte) * to.stride + column;
    for (int k = 0; k < WeightRounding::size && first + k < to.depth; k += in_byte, number += to.stride) {
      int byte = to.rounding.number(weight(k), scale);
      if (halves) byte = (byte & 15) | to.rounding.number(weight(k + 1), scale) << 4;
      *number = static_cast<std::uint8_t>(byte & 255);
    }
  }
};

/// Rounds one row of quantised weights to bfloat16, as RoundRow (bf16_matrix.cuh) does for floats.
struct RoundQuantisedRow {
  static constexpr int columns_at_once = kBf16Unit;
  QuantisedMatrix from;  // of expert 0
  Index columns;
  Bfloat16* to;  // [.., bf16_stride(columns)]
  RoundedRows which;

  template <class Lanes>
  __device__ void operator()(const Lanes& lanes, Index row) const {
    if (!which.has(row)) return;
    QuantisedMatrix of_expert = from;
    of_expert.to_expert(row / from.depth);
    Bfloat16* const of_to = to + row * bf16_stride(columns);
    lanes.share(bf16_stride(columns) / kBf16Unit, [&](Index unit) {
      for (Index j = unit * kBf16Unit; j < (unit + 1) * kBf16Unit; j += 4) {
        QuantisedFour four{};
        if (j < from.stride) four = of_expert.four(row % from.depth, j);
        for (int i = 0; i < 4; ++i) of_to[j + i] = Bfloat16::from(four.value(from.rounding, i));
      }
    });
  }
  GATEFOLD_HD Index independent_columns() const { return bf16_stride(columns); }
};
/// Rounds the rows of quantised weights that `which` selects to bfloat16, in `to` [rows, bf16_stride(columns)].
inline void round_rows(cudaStream_t stream, Index rows, Index columns, const QuantisedMatrix& from, Bfloat16* to,
                       const RoundedRows& which) {
  for_rows(stream, rows, RoundQuantisedRow{from, columns, to, which});
}

/// Rounds the weights `from` [experts, to.depth, columns] on a stream.
inline void quantise(cudaStream_t stream, Index experts, Index columns, const float* from, const QuantisedMatrix& to) {
  for_each(stream, experts * to.scale_rows() * to.stride, QuantiseGroup{from, columns, to});
}

}  // namespace gatefold::detail_::device
