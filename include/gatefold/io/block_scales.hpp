#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

/// Decodes and encodes weights of eight and four bits with a scale for each block, as in files of published models. The
/// values w of the weights are:
///
///     FP8 (DeepSeek-V3)  w[o,i] = e4m3(byte[o,i]) · scale[o / 128, i / 128]                             (1)
///     MXFP4 (gpt-oss)    w[j]   = e2m1(nibble j) · 2^(scale[j / 32] − 127)                              (2)
///
/// Source: Micikevicius et al. 2022, arXiv:2209.05433 (e4m3); OCP Microscaling Formats 1.0 (e2m1, e8m0, blocks of 32);
/// transformers' integrations for fp8 (weight_scale_inv) and mxfp4 (_blocks, _scales). When the library reads a file,
/// all products are exact in float unless they overflow or underflow. The exception is a product (1) whose scale has
/// more than 20 significant bits: it is rounded to nearest.
///
/// When the library writes a file, the new encoding of a tensor replaces an earlier one. A block whose values have not
/// changed keeps its bytes and its scale. In any other block, a is the largest finite magnitude, and each value w
/// becomes the code nearest to w / scale, ties to even:
///
///     FP8    the earlier scale if 224 · scale < a ≤ 448 · scale; otherwise a / 448, or 1 if a = 0      (3)
///     MXFP4  the smallest power of two, from 2⁻¹²⁷ to 2¹²⁷, that is at least a / 6, or 1 if a = 0      (4)
///
/// 448 and 6 are the largest numbers of e4m3 and e2m1. Larger quotients become these numbers. NaN and infinity become
/// NaN; in MXFP4 all values of the block become NaN, because only the scale of a block can be NaN.
namespace gatefold::io::block_scales {

inline constexpr std::uint64_t kSquare = 128;  // rows and columns of a block with one scale in (1)
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

/// Returns the number of the row of scales in (1) that belongs to row number `row`. Each matrix has `rows` rows. Rows
/// are numbered consecutively over all matrices, and so are rows of scales.
inline std::uint64_t scale_row(std::uint64_t row, std::uint64_t rows) {
  return row / rows * ((rows + kSquare - 1) / kSquare) + row % rows / kSquare;
}
/// Decodes rows first, …, first + count − 1 of matrices [rows, columns] by (1). The matrices follow each other in
/// memory, and rows are numbered consecutively over all matrices.
/// @param from   [count, columns] the bytes of these rows
/// @param scale  [rows of scales, ⌈columns / 128⌉] the scales, beginning with row number scale_row(first, rows)
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
/// Decodes `blocks` blocks of 32 values by (2). The lower four bits of a byte come first.
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

/// Rounds `value` to a format with `mantissa` stored bits of mantissa, whose smallest normal number is 2^lowest. Ties
/// go to even. Returns the bits of the result without the sign. Magnitudes above `largest` become `largest`.
inline std::uint8_t rounded(double value, int mantissa, int lowest, double largest) {
  const double size = std::min(std::abs(value), largest);
  const int exponent = std::max(size > 0 ? std::ilogb(size) : lowest, lowest);
  const auto units = static_cast<int>(std::rint(std::ldexp(size, mantissa - exponent)));
  return static_cast<std::uint8_t>(((exponent - lowest) << mantissa) + units);
}
/// Returns the e4m3 number nearest to `value`, ties to even, at most 448 in magnitude. NaN and infinity become NaN.
inline std::uint8_t to_e4m3(double value) {
  const int sign = std::signbit(value) ? 128 : 0;
  return static_cast<std::uint8_t>(sign | (std::isfinite(value) ? rounded(value, 3, -6, 448) : 0x7f));
}
/// Returns the e2m1 number nearest to `value`, ties to even, at most 6 in magnitude.
/// @pre `value` is finite
inline std::uint8_t to_e2m1(double value) {
  return static_cast<std::uint8_t>((std::signbit(value) ? 8 : 0) | rounded(value, 1, 0, 6));
}
/// Returns the bits of the smallest e8m0 number, a power of two from 2⁻¹²⁷ on, that is at least a / 6.
/// @pre `a` is positive and finite
inline std::uint8_t e8m0_for(float a) {
  int exponent = 0;
  const float fraction = std::frexp(a, &exponent);  // a = fraction · 2^exponent, and 6 = 0.75 · 2³
  return static_cast<std::uint8_t>(std::clamp(exponent - (fraction <= 0.75F ? 3 : 2), -127, 127) + 127);
}
/// Returns whether two floats have the same bits, or both are NaN.
inline bool is_same(float a, float b) {
  return (a != a && b != b) || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// Encodes matrices [rows, columns] of floats by (1) and (3).
/// @param bytes         [matrices, rows, columns] in, out: in, an earlier encoding; out, the new encoding
/// @param scale         [matrices, ⌈rows / 128⌉, ⌈columns / 128⌉] in, out: the scales of the encoding
/// @param stored_scale  a function that rounds a scale to the type of the scales in the file and returns it as a float
void encode_fp8(const float* from, std::uint64_t matrices, std::uint64_t rows, std::uint64_t columns, std::byte* bytes,
                float* scale, const auto& stored_scale) {
  for (std::uint64_t m = 0; m < matrices; ++m, from += rows * columns, bytes += rows * columns)
    for (std::uint64_t o = 0; o < rows; o += kSquare)
      for (std::uint64_t i = 0; i < columns; i += kSquare, ++scale) {
        const auto each = [&](const auto& f) {
          for (std::uint64_t row = o; row < std::min(o + kSquare, rows); ++row)
            for (std::uint64_t column = i; column < std::min(i + kSquare, columns); ++column)
              f(from[row * columns + column], bytes[row * columns + column]);
        };
        bool changed = false;
        float a = 0;
        each([&](float w, std::byte byte) {
          changed = changed || !is_same(e4m3(static_cast<std::uint8_t>(byte)) * *scale, w);
          if (std::isfinite(w)) a = std::max(a, std::abs(w));
        });
        if (!changed) continue;
        const double old = double(*scale), largest = double(a);
        if (!(224 * old < largest && largest <= 448 * old))
          *scale = stored_scale(a > 0 ? std::max(a / 448, std::numeric_limits<float>::denorm_min()) : 1.0F);
        each([&](float w, std::byte& byte) { byte = static_cast<std::byte>(to_e4m3(double(w) / double(*scale))); });
      }
}
/// Encodes blocks of 32 floats by (2) and (4).
/// @param to     [blocks, 16] in, out: in, an earlier encoding; out, the new encoding
/// @param scale  [blocks] in, out: the scales of the encoding
inline void encode_mxfp4(const float* from, std::uint64_t blocks, std::byte* to, std::byte* scale) {
  float before[kRow];
  for (std::uint64_t b = 0; b < blocks; ++b, from += kRow, to += kRow / 2, ++scale) {
    decode_mxfp4(to, scale, 1, before);
    if (std::equal(before, before + kRow, from, is_same)) continue;
    float a = 0;
    bool finite = true;
    for (std::uint64_t i = 0; i < kRow; ++i) {
      finite = finite && std::isfinite(from[i]);
      a = std::max(a, std::abs(from[i]));
    }
    const std::uint8_t bits = !finite ? 255 : a > 0 ? e8m0_for(a) : 127;
    *scale = static_cast<std::byte>(bits);
    const auto code = [&](float w) { return finite ? to_e2m1(double(w) / double(e8m0(bits))) : 0; };
    for (std::uint64_t i = 0; i < kRow; i += 2)
      to[i / 2] = static_cast<std::byte>(code(from[i]) | code(from[i + 1]) << 4);
  }
}

}  // namespace gatefold::io::block_scales
