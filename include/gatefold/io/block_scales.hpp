#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

/// Numbers of eight and four bits with a scale for each block, as published models store weights. They are read as
/// floats:
///
///     FP8 (DeepSeek-V3)  w[o,i] = e4m3(byte[o,i]) · scale[o / 128, i / 128]                             (1)
///     MXFP4 (gpt-oss)    w[j]   = e2m1(nibble j) · 2^(scale[j / 32] − 127)                              (2)
///
/// Source: Micikevicius et al. 2022, arXiv:2209.05433 (e4m3); OCP Microscaling Formats 1.0 (e2m1, e8m0, blocks of 32);
/// transformers' integrations for fp8 (weight_scale_inv) and mxfp4 (_blocks, _scales). All products are exact in float
/// unless they overflow or underflow, except (1) with scales of more than 20 bits, which are rounded to nearest.
namespace gatefold::io::block_scales {

inline constexpr std::uint64_t kSquare = 128;  // rows and columns of a block of (1)
inline constexpr std::uint64_t kRow = 32;      // values of a block of (2)

/// Returns the value of eight bits with 1 bit of sign, 4 of exponent (bias 7) and 3 of mantissa. There is no infinity;
/// 0x7f and 0xff are NaN.
inline float e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return bits & 128 ? -size : size;
}
/// Returns the value of four bits with 1 bit of sign, 2 of exponent (bias 1) and 1 of mantissa.
inline float e2m1(std::uint8_t bits) {
  constexpr float sizes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  return bits & 8 ? -sizes[bits & 7] : sizes[bits & 7];
}
/// Returns 2^(bits − 127), or NaN for 255.
inline float e8m0(std::uint8_t bits) {
  return bits == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, static_cast<int>(bits) - 127);
}

/// Returns the row of scales of (1) that belongs to a row of matrices of `rows` rows. Both numbers are counted over all
/// matrices.
inline std::uint64_t scale_row(std::uint64_t row, std::uint64_t rows) {
  return row / rows * ((rows + kSquare - 1) / kSquare) + row % rows / kSquare;
}
/// Computes (1) for rows of matrices [rows, columns]. Rows are counted over all matrices, which follow each other.
/// @param from   [count, columns], row number `first` and those after it
/// @param scale  [rows of scales, ⌈columns / 128⌉], from row number scale_row(first, rows) on
inline void decode_fp8(const std::byte* from, const float* scale, std::uint64_t first, std::uint64_t count,
                       std::uint64_t rows, std::uint64_t columns, float* to) {
  float values[256];
  for (int bits = 0; bits < 256; ++bits) values[bits] = e4m3(static_cast<std::uint8_t>(bits));
  const std::uint64_t across = (columns + kSquare - 1) / kSquare;
  for (std::uint64_t row = first; row < first + count; ++row, from += columns, to += columns) {
    const float* const by = scale + (scale_row(row, rows) - scale_row(first, rows)) * across;
    for (std::uint64_t i = 0; i < columns; ++i) to[i] = values[static_cast<std::uint8_t>(from[i])] * by[i / kSquare];
  }
}
/// Computes (2) for `blocks` blocks of 32 values. The lower four bits of a byte come first.
/// @param from   [blocks, 16]
/// @param scale  [blocks]
inline void decode_mxfp4(const std::byte* from, const std::byte* scale, std::uint64_t blocks, float* to) {
  for (std::uint64_t b = 0; b < blocks; ++b) {
    const float by = e8m0(static_cast<std::uint8_t>(scale[b]));
    for (std::uint64_t i = 0; i < kRow / 2; ++i, ++from, to += 2) {
      const auto pair = static_cast<std::uint8_t>(*from);
      to[0] = e2m1(pair & 15) * by;
      to[1] = e2m1(pair >> 4) * by;
    }
  }
}

}  // namespace gatefold::io::block_scales
