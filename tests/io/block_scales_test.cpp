#include "gatefold/io/block_scales.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace gatefold::io;

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

TEST_CASE("e2m1: all 16 values") {
  const std::vector<float> sizes{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::uint8_t bits = 0; bits < 16; ++bits)
    CHECK(block_scales::e2m1(bits) == (bits < 8 ? 1 : -1) * sizes[bits % 8]);
}

TEST_CASE("e8m0: powers of two; 255 is NaN") {
  CHECK(block_scales::e8m0(127) == 1);
  CHECK(block_scales::e8m0(130) == 8);
  CHECK(block_scales::e8m0(0) == std::ldexp(1.0f, -127));
  CHECK(block_scales::e8m0(254) == std::ldexp(1.0f, 127));
  CHECK(std::isnan(block_scales::e8m0(255)));
}

TEST_CASE("decode_fp8 (1): each square of 128 x 128 has its scale") {
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
