#include "gatefold/backend/cpu/packed_weights.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using cpu::Bfloat16;
using cpu::PackedMatrix;
using cpu::PackedWeights;

TEST_CASE("bfloat16: nearest value of 8 bits, ties to even, infinities and NaN") {
  CHECK(float(Bfloat16::from(1.0f)) == 1.0f);
  CHECK(float(Bfloat16::from(-2.5f)) == -2.5f);
  CHECK(float(Bfloat16::from(1.0f + std::ldexp(1.0f, -8))) == 1.0f);                              // a tie, to even
  CHECK(float(Bfloat16::from(1.0f + 3 * std::ldexp(1.0f, -8))) == 1.0f + std::ldexp(1.0f, -6));  // a tie, to even
  CHECK(float(Bfloat16::from(1.0f + std::ldexp(1.001f, -8))) == 1.0f + std::ldexp(1.0f, -7));
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(float(Bfloat16::from(infinity)) == infinity);
  CHECK(float(Bfloat16::from(std::numeric_limits<float>::max())) == infinity);
  CHECK(std::isnan(float(Bfloat16::from(std::numeric_limits<float>::quiet_NaN()))));
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

namespace {

/// panels_sum of `panels` panels that lie one after the other, against the few-rows sum of each alone.
template <class T, class W>
void panels_agree(const std::vector<W>& b, Index depth, Index most_panels) {
  constexpr Index width = cpu::Tile<T>::columns;
  const std::vector<T> wide(b.begin(), b.end());
  const auto a = naive::random_vector<T>(cpu::most_rows_of_panels * cpu::Tile<T>::stride, 5);
  for (Index rows = 1; rows <= cpu::most_rows_of_panels; ++rows)
    for (Index panels = 1; panels <= most_panels; ++panels)
      for (const bool add : {false, true}) {
        std::vector<T> sums(static_cast<std::size_t>(panels * rows * width), T(0.75));
        cpu::panels_sum(rows, panels, depth, a.data(), b.data(), sums.data(), add);
        int wrong = 0;
        for (Index p = 0; p < panels; ++p) {
          std::vector<T> expected(static_cast<std::size_t>(rows * width));
          cpu::few_rows_sum(rows, depth, a.data(), wide.data() + p * depth * width, width, width, expected.data(),
                            width);
          for (Index i = 0; i < rows * width; ++i)
            wrong += sums[static_cast<std::size_t>(p * rows * width + i)] !=
                     (add ? T(0.75) : T(0)) + expected[static_cast<std::size_t>(i)];
        }
        CHECK(wrong == 0);
      }
}

}  // namespace

TEST_CASE_TEMPLATE("panels together have the chains of each alone, of floats and of bfloat16", T, float, double) {
  for (const Index depth : {1, 3, 40, 256}) {
    const auto b = naive::random_vector<T>(5 * depth * cpu::Tile<T>::columns, 6);
    panels_agree<T>(b, depth, 5);
    if constexpr (std::is_same_v<T, float>) {
      std::vector<Bfloat16> half;
      for (const float v : b) half.push_back(Bfloat16::from(v));
      panels_agree<T>(half, depth, 5);
    }
  }
}

TEST_CASE_TEMPLATE("every weight stands where the tile looks for it", T, float, double) {
  constexpr Index width = cpu::Tile<T>::columns, block = cpu::Tile<T>::depth;
  for (const auto& [experts, depth, columns] : {std::array<Index, 3>{3, 5, 7}, {2, 600, 70}, {1, 256, 64}}) {
    const auto w = naive::random_vector<T>(experts * depth * columns, 3);
    for (const bool round : {false, true})
      for (const int threads : {1, 3}) {
        PackedWeights weights;
        Cpu::Context ctx(threads);
        weights.add(ctx, w.data(), experts, depth, columns, round);
        const PackedMatrix<T> first = weights.find(w.data());
        REQUIRE(first);
        CHECK(bool(first.half) == (round && std::is_same_v<T, float>));
        CHECK(!weights.find(w.data() + 1));
        std::vector<T> buffer(static_cast<std::size_t>(block * width));
        for (Index e = 0; e < experts; ++e)
          for (Index k0 = 0; k0 < depth; k0 += block)
            for (Index j0 = 0; j0 < columns; j0 += width) {
              const PackedMatrix<T> matrix = first + e * PackedMatrix<T>::size(depth, columns);
              const Index length = std::min(block, depth - k0);
              const T* panel = matrix.panel(PackedMatrix<T>::at(columns, k0, length, j0), length, buffer.data());
              bool equal = true;
              for (Index k = 0; k < length; ++k)
                for (Index j = 0; j < width; ++j) {
                  T expected = j0 + j < columns ? w[static_cast<std::size_t>((e * depth + k0 + k) * columns + j0 + j)] : T(0);
                  if (first.half) expected = T(float(Bfloat16::from(float(expected))));
                  equal = equal && panel[k * width + j] == expected;
                }
              CHECK(equal);
            }
      }
  }
}

TEST_CASE("packed weights move, and hold nothing of empty tensors") {
  const auto w = naive::random_vector<float>(64, 4);
  Cpu::Context ctx(1);
  PackedWeights a;
  a.add(ctx, w.data(), 1, 8, 8, false);
  a.add<Cpu::Context, float>(ctx, nullptr, 4, 0, 8, false);
  CHECK(!a.find<float>(nullptr));
  PackedWeights b = std::move(a);
  CHECK(b.find(w.data()));
  PackedWeights c;
  c = std::move(b);
  CHECK(c.find(w.data()));
}

TEST_CASE("packed weights are readable where panels are as wide as where they were packed") {
  const auto w = naive::random_vector<float>(64, 4);
  Cpu::Context ctx(1);
  PackedWeights a;
  a.expect_readable();
  a.add(ctx, w.data(), 1, 8, 8, false);
  PackedWeights b = std::move(a), c;
  c = std::move(b);
  c.expect_readable();  // tests/march hands weights from one instruction set to another
}
