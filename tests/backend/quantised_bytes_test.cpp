#include "gatefold/backend/quantised_bytes.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <limits>

using namespace gatefold;

TEST_CASE("QuantisedBytes: two numbers of four bits share a byte") {
  const QuantisedBytes eight{Weights::int8, 2, 33, 5}, four{Weights::mxfp4, 2, 33, 5};
  CHECK(eight.numbers() == 2 * 33 * 5);
  CHECK(four.numbers() == 2 * 17 * 5);
  CHECK(eight.scales() == 2 * 2 * 5);
  CHECK(four.scales() == 2 * 2 * 5);
  CHECK(eight.number_at(1, 32, 3) == (33 + 32) * 5 + 3);
  CHECK(four.number_at(1, 32, 3) == (17 + 16) * 5 + 3);
  CHECK(four.scale_at(1, 32, 3) == (2 + 1) * 5 + 3);
  CHECK(eight.shift(3) == 0);
  CHECK(four.shift(3) == 4);
  CHECK(four.shift(4) == 0);
}

TEST_CASE("QuantisedBytes: wrong_number() finds -128 for int8") {
  const QuantisedBytes bytes{Weights::int8, 1, 2, 2};
  const std::array<std::byte, 4> numbers{std::byte{1}, std::byte{0x7f}, std::byte{0x80}, std::byte{0x81}};
  CHECK(bytes.wrong_number(numbers.data()) == 2);
  CHECK(QuantisedBytes{Weights::int4, 1, 2, 4}.wrong_number(numbers.data()) == -1);
}

TEST_CASE("QuantisedBytes: wrong_scale() finds infinity and NaN") {
  const QuantisedBytes bytes{Weights::int4, 1, 40, 2};
  std::array<Bfloat16, 4> scales{};
  scales[0] = Bfloat16::from(-0x1p127F);
  scales[1] = Bfloat16::from(0x1p-133F);
  CHECK(bytes.wrong_scale(scales.data()) == -1);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float wrong : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    scales[3] = Bfloat16::from(wrong);
    CHECK(bytes.wrong_scale(scales.data()) == 3);
  }
}
