#include "gatefold/io/block_scales.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace gatefold::io;

namespace {

/// Returns the code whose value is nearest to `value`; of two equally near codes, the even one. Codes from `sign` on
/// are negative.
int nearest(double value, int sign, float (*value_of)(std::uint8_t)) {
  int best = 0;
  for (int code = 0; code < sign; ++code) {
    const double size = value_of(static_cast<std::uint8_t>(code));
    if (std::isnan(size)) continue;
    const double now = std::abs(std::abs(value) - size),
                 before = std::abs(std::abs(value) - double(value_of(static_cast<std::uint8_t>(best))));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best + (std::signbit(value) ? sign : 0);
}
/// Returns values around all magnitudes of a format, between them and at their midpoints.
std::vector<double> probes(int sign, float (*value_of)(std::uint8_t)) {
  std::vector<double> all{0.0, -0.0, 1e-30, 460, 1e6, -1e6};
  for (int code = 0; code + 1 < sign; ++code) {
    const double a = value_of(static_cast<std::uint8_t>(code)), b = value_of(static_cast<std::uint8_t>(code + 1));
    if (std::isnan(b)) continue;
    for (const double t : {0.0, 0.3, 0.5 - 1e-12, 0.5, 0.5 + 1e-12, 0.7, 1.0}) {
      all.push_back(a + t * (b - a));
      all.push_back(-all.back());
    }
  }
  return all;
}
float as_it_is(float scale) { return scale; }

}  // namespace

TEST_CASE("e4m3: all 256 values follow sign, exponent and mantissa") {
  for (int bits = 0; bits < 256; ++bits) {
    const double sign = bits < 128 ? 1 : -1, mantissa = bits % 8, exponent = bits / 8 % 16;
    const double expected =
        sign * (exponent == 0 ? mantissa / 8 * std::exp2(-6) : (1 + mantissa / 8) * std::exp2(exponent - 7));
    const float got = block_scales::e4m3(static_cast<std::uint8_t>(bits));
    if (bits % 128 == 127)
      CHECK(std::isnan(got));
    else
      CHECK(double(got) == expected);
  }
}

TEST_CASE("e2m1: all 16 codes decode to the expected values") {
  const std::vector<float> sizes{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::uint8_t bits = 0; bits < 16; ++bits)
    CHECK(block_scales::e2m1(bits) == (bits < 8 ? 1 : -1) * sizes[bits % 8]);
}

TEST_CASE("e8m0: decodes powers of two; 255 is NaN") {
  CHECK(block_scales::e8m0(127) == 1);
  CHECK(block_scales::e8m0(130) == 8);
  CHECK(block_scales::e8m0(0) == std::ldexp(1.0f, -127));
  CHECK(block_scales::e8m0(254) == std::ldexp(1.0f, 127));
  CHECK(std::isnan(block_scales::e8m0(255)));
}

TEST_CASE("decode_fp8 (1): each 128×128 square has its own scale") {
  constexpr std::uint64_t rows = 129, columns = 257;
  const std::vector<std::byte> ones(2 * rows * columns, std::byte{0x38});  // 1.0
  const std::vector<float> scale{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  std::vector<float> to(ones.size());
  block_scales::decode_fp8(ones.data(), scale.data(), 0, 2 * rows, rows, columns, to.data());
  for (std::uint64_t m = 0; m < 2; ++m)
    for (std::uint64_t o : {0, 127, 128})
      for (std::uint64_t i : {0, 127, 128, 255, 256})
        CHECK(to[(m * rows + o) * columns + i] == scale[(m * 2 + o / 128) * 3 + i / 128]);

  // Rows from the middle, which begin with the second row of scales, have the same values.
  std::vector<float> some(30 * columns);
  block_scales::decode_fp8(ones.data(), scale.data() + 3, 128, 30, rows, columns, some.data());
  CHECK(std::equal(some.begin(), some.end(), to.begin() + 128 * columns));
}

TEST_CASE("decode_mxfp4 (2): the lower four bits come first") {
  std::vector<std::byte> blocks(32, std::byte{0});
  blocks[0] = std::byte{0x72};  // 1, 6
  blocks[31] = std::byte{0xf1};
  const std::vector<std::byte> scale{std::byte{128}, std::byte{126}};
  std::vector<float> to(64);
  block_scales::decode_mxfp4(blocks.data(), scale.data(), 2, to.data());
  CHECK(to[0] == 2);
  CHECK(to[1] == 12);
  CHECK(to[2] == 0);
  CHECK(to[62] == 0.25f);
  CHECK(to[63] == -3);
}

TEST_CASE("to_e4m3: rounds to the nearest number, ties to even") {
  for (const double value : probes(128, block_scales::e4m3)) {
    CAPTURE(value);
    CHECK(int(block_scales::to_e4m3(value)) == nearest(value, 128, block_scales::e4m3));
  }
  CHECK(int(block_scales::to_e4m3(std::nan("")) & 0x7f) == 0x7f);
  CHECK(int(block_scales::to_e4m3(-HUGE_VAL)) == 0xff);
}

TEST_CASE("to_e2m1: rounds to the nearest number, ties to even") {
  for (const double value : probes(8, block_scales::e2m1)) {
    CAPTURE(value);
    CHECK(int(block_scales::to_e2m1(value)) == nearest(value, 8, block_scales::e2m1));
  }
}

TEST_CASE("e8m0_for: returns the smallest power of two ≥ a/6") {
  for (const float a : {1e-45f, 1e-38f, 0.1f, 3.0f, std::nextafter(3.0f, 4.0f), 5.0f, 6.0f, 6.1f, 1e30f, 3e38f}) {
    CAPTURE(a);
    int least = 0;
    while (least < 254 && std::ldexp(1.0, least - 127) < a / 6.0) ++least;
    CHECK(int(block_scales::e8m0_for(a)) == least);
  }
}

TEST_CASE("encode_fp8: decoded values encode to the same bytes") {
  constexpr std::uint64_t rows = 129, columns = 257, matrices = 2;
  std::vector<std::byte> bytes(matrices * rows * columns);
  std::uint32_t random = 1;
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((random = random * 1664525 + 1013904223) >> 24);
  // Scales of all magnitudes, so that some products overflow or become subnormal. One scale is 0, one is negative, and
  // one is NaN.
  const std::vector<float> scale{1, 3e-4f, 1.17e-38f, 1e-42f, 3e38f, 0, -2, NAN, 5e-39f, 7, 1e20f, 0.1f};
  std::vector<float> values(bytes.size()), scale_now = scale;
  block_scales::decode_fp8(bytes.data(), scale.data(), 0, matrices * rows, rows, columns, values.data());
  std::vector<std::byte> now = bytes;
  block_scales::encode_fp8(values.data(), matrices, rows, columns, now.data(), scale_now.data(), as_it_is);
  CHECK(now == bytes);
  CHECK(std::equal(scale.begin(), scale.end(), scale_now.begin(), block_scales::is_same));
}

TEST_CASE("encode_fp8 (3): a changed square is encoded with nearest codes") {
  constexpr std::uint64_t rows = 130, columns = 129;
  std::vector<float> values(rows * columns);
  std::uint32_t random = 7;
  for (float& value : values) value = float(int((random = random * 1664525 + 1013904223) >> 8) - (1 << 23)) / 1e6f;
  values[5] = 9;             // the first square; all other values are below 8.4 in magnitude
  values[3] = NAN;           // does not change the scale
  values[4] = -HUGE_VALF;    // nor does infinity
  values[columns - 1] = -1;  // the only column of the second square
  for (const float before : {9.0f / 448, 9.0f / 447, 9.0f / 230, 9.0f / 449, 9.0f / 223, 1e-9f}) {
    CAPTURE(before);
    std::vector<float> scale(4, before);
    std::vector<std::byte> bytes(values.size());
    block_scales::encode_fp8(values.data(), 1, rows, columns, bytes.data(), scale.data(), as_it_is);
    const bool stays = 224.0 * before < 9 && 9 <= 448.0 * before;
    CHECK(scale[0] == (stays ? before : 9.0f / 448));
    std::size_t wrong = 0;
    for (std::uint64_t o = 0; o < rows; ++o)
      for (std::uint64_t i = 0; i < columns; ++i) {
        const float w = values[o * columns + i];
        if (!std::isfinite(w)) continue;
        const double quotient = double(w) / scale[o / 128 * 2 + i / 128];
        wrong += int(bytes[o * columns + i]) != nearest(quotient, 128, block_scales::e4m3);
      }
    CHECK(wrong == 0);
    CHECK((int(bytes[3]) & 0x7f) == 0x7f);
    CHECK(int(bytes[4]) == 0xff);
  }
  // Zeros need no scale. The last argument rounds a scale to the type that the file stores.
  std::vector<float> scale(4, 0), zeros(values.size(), 0.0f);
  std::vector<std::byte> bytes(values.size(), std::byte{1});
  block_scales::encode_fp8(zeros.data(), 1, rows, columns, bytes.data(), scale.data(), as_it_is);
  block_scales::encode_fp8(values.data(), 1, rows, columns, bytes.data(), scale.data(), [](float) { return 0.25f; });
  CHECK(scale[0] == 0.25f);
  CHECK(int(bytes[5]) == nearest(36, 128, block_scales::e4m3));
}

TEST_CASE("encode_mxfp4: decoded values encode to the same bytes") {
  std::vector<std::byte> blocks(256 * 16), scale(256);
  std::uint32_t random = 3;
  for (std::byte& byte : blocks) byte = static_cast<std::byte>((random = random * 1664525 + 1013904223) >> 24);
  for (int i = 0; i < 256; ++i) scale[std::size_t(i)] = static_cast<std::byte>(i);  // all scales, also NaN
  std::fill(blocks.begin(), blocks.begin() + 64, std::byte{0x91});                  // small codes: the scale has room
  std::vector<float> values(256 * 32);
  block_scales::decode_mxfp4(blocks.data(), scale.data(), 256, values.data());
  std::vector<std::byte> now = blocks, scale_now = scale;
  block_scales::encode_mxfp4(values.data(), 256, now.data(), scale_now.data());
  CHECK(now == blocks);
  CHECK(scale_now == scale);
}

TEST_CASE("encode_mxfp4 (4): changed blocks have new scales and nearest codes") {
  std::vector<float> values(4 * 32, 0.0f);
  std::uint32_t random = 5;
  for (std::size_t i = 0; i < 64; ++i)
    values[i] = float(int((random = random * 1664525 + 1013904223) >> 8) - (1 << 23)) / (i < 32 ? 1e9f : 3e5f);
  values[3] = -0.0f;
  values[96] = HUGE_VALF;
  std::vector<std::byte> blocks(4 * 16, std::byte{0x11}), scale(4, std::byte{130});
  block_scales::encode_mxfp4(values.data(), 4, blocks.data(), scale.data());
  for (std::size_t b = 0; b < 3; ++b) {
    float a = 0;
    for (std::size_t i = 0; i < 32; ++i) a = std::max(a, std::abs(values[32 * b + i]));
    const int exponent = a > 0 ? int(std::ceil(std::log2(a / 6.0))) : 0;
    CHECK(int(scale[b]) == exponent + 127);
    for (std::size_t i = 0; i < 32; ++i) {
      CAPTURE(i);
      const int code = int(blocks[16 * b + i / 2]) >> (i % 2 * 4) & 15;
      CHECK(code == nearest(std::ldexp(double(values[32 * b + i]), -exponent), 8, block_scales::e2m1));
    }
  }
  CHECK(int(scale[3]) == 255);
}
