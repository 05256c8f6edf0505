#include "gatefold/backend/cpu/bfloat16.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/naive.hpp"

using namespace gatefold;

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
