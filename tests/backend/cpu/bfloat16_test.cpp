#include "gatefold/backend/cpu/bfloat16.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/naive.hpp"

using namespace gatefold;
using cpu::Bfloat16;

TEST_CASE("bfloat16: nearest value of 8 bits, ties to even, infinities and NaN") {
  CHECK(float(Bfloat16::from(1.0f)) == 1.0f);
  CHECK(float(Bfloat16::from(-2.5f)) == -2.5f);
  CHECK(float(Bfloat16::from(1.0f + std::ldexp(1.0f, -8))) == 1.0f);                             // a tie, to even
  CHECK(float(Bfloat16::from(1.0f + 3 * std::ldexp(1.0f, -8))) == 1.0f + std::ldexp(1.0f, -6));  // a tie, to even
  CHECK(float(Bfloat16::from(1.0f + std::ldexp(1.001f, -8))) == 1.0f + std::ldexp(1.0f, -7));
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(float(Bfloat16::from(infinity)) == infinity);
  CHECK(float(Bfloat16::from(std::numeric_limits<float>::max())) == infinity);
  CHECK(std::isnan(float(Bfloat16::from(std::numeric_limits<float>::quiet_NaN()))));
  // Of NaN whose bits rounding would carry away: into the sign, or none left but those of infinity.
  for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff800001u})
    CHECK(std::isnan(float(Bfloat16::from(std::bit_cast<float>(bits)))));
  for (const float v : naive::random_vector<float>(1000, 1))
    CHECK(std::abs(float(Bfloat16::from(v)) - v) <= std::ldexp(std::abs(v), -8));
}

TEST_CASE("widen") {
  for (const Index n : {0, 1, 15, 16, 17, 100}) {
    std::vector<Bfloat16> half;
    for (const float v : naive::random_vector<float>(n, 2)) half.push_back(Bfloat16::from(v));
    std::vector<float> to(static_cast<std::size_t>(n) + 1, 7.0f);
    cpu::widen(half.data(), n, to.data());
    for (std::size_t i = 0; i < half.size(); ++i) CHECK(to[i] == float(half[i]));
    CHECK(to.back() == 7);
  }
}

TEST_CASE("a register of rounded weights is that of the weights themselves") {
  using V = cpu::Register<float>;
  std::vector<Bfloat16> half;
  for (const float v : naive::random_vector<float>(V::size, 3)) half.push_back(Bfloat16::from(v));
  float lanes[V::size];
  cpu::load_weights(half.data()).store(lanes);
  for (std::size_t i = 0; i < half.size(); ++i) CHECK(lanes[i] == float(half[i]));
}
