#include "gatefold/backend/cpu/bfloat16.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/naive.hpp"

using namespace gatefold;

TEST_CASE("widen: converts bfloat16 to float") {
  for (const Index n : {0, 1, 15, 16, 17, 100}) {
    std::vector<Bfloat16> half;
    for (const float v : naive::random_vector<float>(n, 2)) half.push_back(Bfloat16::from(v));
    std::vector<float> to(static_cast<std::size_t>(n) + 1, 7.0f);
    cpu::widen(half.data(), n, to.data());
    for (std::size_t i = 0; i < half.size(); ++i) CHECK(to[i] == float(half[i]));
    CHECK(to.back() == 7);
  }
}

TEST_CASE("Register: loads rounded weights with their exact values") {
  using V = cpu::Register<float>;
  std::vector<Bfloat16> half;
  for (const float v : naive::random_vector<float>(V::size, 3)) half.push_back(Bfloat16::from(v));
  float lanes[V::size];
  cpu::load_halves(half.data()).store(lanes);
  for (std::size_t i = 0; i < half.size(); ++i) CHECK(lanes[i] == float(half[i]));
}

TEST_CASE("Register: rounds lanes like single values, with NaN and ties") {
  using V = cpu::Register<float>;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> all{0, -0.0f, inf, -inf, nan, 1, 1 + 0x1p-8f, 1 + 0x1.8p-7f, 1 + 0x1.000002p-8f, -3.0e38f};
  all.push_back(std::numeric_limits<float>::max());
  all.push_back(std::bit_cast<float>(0x7f800001u));  // a signalling NaN whose upper half alone would be infinity
  for (const float v : naive::random_vector<float>(100, 3)) all.push_back(v);
  for (const float v : all) {
    float lanes[V::size];
    cpu::rounded<Bfloat16>(V(v)).store(lanes);
    const float expected = Bfloat16::from(v);
    for (const float lane : lanes) CHECK((lane == expected || (lane != lane && expected != expected)));
    CHECK(std::signbit(lanes[0]) == std::signbit(expected));
    cpu::rounded<float>(V(v)).store(lanes);
    CHECK(std::bit_cast<std::uint32_t>(lanes[0]) == std::bit_cast<std::uint32_t>(v));
  }
}
