#include "gatefold/backend/cpu/integer_dot.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <random>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;
using cpu::Ints;

namespace {

constexpr int lanes = static_cast<int>(sizeof(Ints) / 4), bytes = 4 * lanes;

/// Calls check(sums, weights, items) for 2000 random cases. In the first 100, all weights and items are extreme.
template <class F>
void each_case(int low, int high, const F& check) {
  std::mt19937 random(1);
  const auto draw = [&](int from, int to, bool extreme) {
    if (extreme) return random() % 2 ? from : to;
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  for (int i = 0; i < 2000; ++i) {
    std::int32_t s[lanes];
    std::int8_t w[bytes], x[4];
    for (auto& v : s) v = draw(-1000000, 1000000, false);
    for (auto& v : w) v = static_cast<std::int8_t>(draw(low, high, i < 100));
    for (auto& v : x) v = static_cast<std::int8_t>(draw(-127, 127, i < 100));
    check(s, w, x);
  }
}
Ints vector_of(const void* p) { return cpu::load_ints(static_cast<const std::byte*>(p)); }

}  // namespace

TEST_CASE("small_dot: adds four products of bytes in each lane") {
  int wrong = 0;
  each_case(0, 127, [&](const auto& s, const auto& w, const auto& x) {
    std::int32_t all;
    std::memcpy(&all, x, 4);
    const Ints sum = cpu::small_dot(vector_of(s), vector_of(w), all);
    for (int lane = 0; lane < lanes; ++lane) {
      std::int32_t expected = s[lane];
      for (int j = 0; j < 4; ++j) expected += w[4 * lane + j] * x[j];
      wrong += sum[lane] != expected;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("signed_dot: adds the products and the offset") {
  int wrong = 0;
  each_case(-127, 127, [&](const auto& s, const auto& w, const auto& x) {
    std::int32_t all;
    std::memcpy(&all, x, 4);
    const Ints sum = cpu::signed_dot(vector_of(s), cpu::with_signed_offset(vector_of(w)), all);
    for (int lane = 0; lane < lanes; ++lane) {
      std::int32_t expected = s[lane];
      for (int j = 0; j < 4; ++j) expected += (w[4 * lane + j] + cpu::signed_offset) * x[j];
      wrong += sum[lane] != expected;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("by_lanes: equals the sums of the processor instruction") {
  int wrong = 0;
  each_case(0, 127, [&](const auto& s, const auto& w, const auto& x) {
    std::int32_t all;
    std::memcpy(&all, x, 4);
    const Ints a = cpu::small_dot(vector_of(s), vector_of(w), all),
               b = cpu::dot::by_lanes(vector_of(s), vector_of(w), all);
    for (int lane = 0; lane < lanes; ++lane) wrong += a[lane] != b[lane];
  });
  CHECK(wrong == 0);
}

TEST_CASE("looked_up: replaces each byte by its entry in the table") {
  std::uint8_t table[16], codes[bytes];
  std::mt19937 random(2);
  for (auto& v : table) v = static_cast<std::uint8_t>(random());
  for (auto& v : codes) v = static_cast<std::uint8_t>(random() % 16);
  const Ints found = cpu::looked_up(table, vector_of(codes));
  std::uint8_t values[bytes];
  std::memcpy(values, &found, sizeof(found));
  int wrong = 0;
  for (int i = 0; i < bytes; ++i) wrong += values[i] != table[codes[i]];
  CHECK(wrong == 0);
}
