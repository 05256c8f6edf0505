#include "gatefold/backend/cpu/amx.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/guarded.hpp"
#include "support/naive.hpp"
#include "support/words.hpp"

using namespace gatefold;
using P = Bfloat16;

TEST_CASE("AmxTiles: only bfloat16 products use AMX") {
  static_assert(!cpu::on_amx<float> && !cpu::on_amx<double>);
  static_assert(!cpu::on_amx<P> || (cpu::bfloat16_pairs && cpu::words<P>(33) == 32));
  CHECK_NOTHROW(cpu::AmxTiles<float>::permit());
}

// Runs with and without the matrix unit. The numbers of rows fit one, two or three tiles of the unit, and some operands
// end inside a tile.
TEST_CASE("bfloat16 products: sums at tile edges equal the definition") {
  constexpr Index rows = 33, experts = 5;
  CpuBf16::Context alone(1), three(3, true);
  for (const Index depth : {0, 1, 2, 3, 31, 32, 33, 64, 257})
    for (const Index columns : {1, 15, 16, 17, 31, 32, 33, 70}) {
      CAPTURE(depth);
      CAPTURE(columns);
      const auto a = naive::random_vector<float>(rows * depth, 1), w = naive::random_vector<float>(depth * columns, 2);
      std::vector<float> plain, transposed;  // the same weights for every expert
      for (Index e = 0; e < experts; ++e) {
        plain.insert(plain.end(), w.begin(), w.end());
        for (Index j = 0; j < columns; ++j)
          for (Index k = 0; k < depth; ++k) transposed.push_back(w[static_cast<std::size_t>(k * columns + j)]);
      }
      const auto product = [&](const std::vector<Index>& offsets, CpuBf16::Context& ctx, bool transpose) {
        Tensor<float, 2, CpuBf16> c(rows, columns);
        const View<const float, 3, CpuBf16> weights((transpose ? transposed : plain).data(),
                                                    static_cast<Index>(offsets.size()) - 1, transpose ? columns : depth,
                                                    transpose ? depth : columns);
        CpuBf16::grouped_gemm<float>(ctx, Groups<CpuBf16>{offsets, {}, rows},
                                     View<const float, 2, CpuBf16>(a.data(), rows, depth), weights, transpose, c.view(),
                                     functor::Store{});
        return c;
      };
      const auto all = product({0, rows}, alone, false);
      for (Index i = 0; i < rows; ++i) {
        int wrong = 0;
        for (Index j = 0; j < columns; ++j) {
          double expected = 0, absolute = 0;
          for (Index k = 0; k < depth; ++k) {
            const double term = double(support::factor<P>(a[static_cast<std::size_t>(i * depth + k)])) *
                                double(support::factor<P>(w[static_cast<std::size_t>(k * columns + j)]));
            expected += term;
            absolute += std::abs(term);
          }
          // Each of the `depth` additions may be off by half a unit of a partial sum.
          wrong += !(std::abs(double(all(i, j)) - expected) <= static_cast<double>(depth) * 0x1p-24 * absolute);
        }
        CHECK(wrong == 0);
      }
      const auto same = [&](const Tensor<float, 2, CpuBf16>& c) {
        return std::memcmp(c.data(), all.data(), static_cast<std::size_t>(rows * columns) * sizeof(float)) == 0;
      };
      for (Index i = 1; i < rows; ++i) CHECK(same(product({0, 0, i, i, rows, rows}, i % 3 ? alone : three, i % 2)));
    }
}

TEST_CASE("bfloat16 gradients: equal loops for few or no slots") {
  const std::vector<Index> offsets{0, 1, 1, 4, 37, 38, 40};
  constexpr Index slots = 40, experts = 6;
  for (const Index rows : {1, 33, 80})
    for (const Index columns : {15, 32, 70})
      for (const bool accumulate : {false, true}) {
        const auto x = naive::random_vector<float>(slots * rows, 1),
                   dc = naive::random_vector<float>(slots * columns, 2);
        const auto outer = [&](int threads) {
          CpuBf16::Context ctx(threads, true);
          Tensor<float, 3, CpuBf16> dw(experts, rows, columns);
          std::fill_n(dw.data(), dw.size(), 0.5f);
          CpuBf16::grouped_outer<float>(
              ctx, Groups<CpuBf16>{offsets, {}, slots}, View<const float, 2, CpuBf16>(x.data(), slots, rows),
              View<const float, 2, CpuBf16>(dc.data(), slots, columns), dw.view(), accumulate);
          return dw;
        };
        const auto dw = outer(1), by_three = outer(3);
        CHECK(std::memcmp(dw.data(), by_three.data(), static_cast<std::size_t>(dw.size()) * sizeof(float)) == 0);
        int wrong = 0;
        for (Index e = 0; e < experts; ++e)
          for (Index i = 0; i < rows; ++i)
            for (Index j = 0; j < columns; ++j) {
              double expected = accumulate ? 0.5 : 0, absolute = expected;
              const Index begin = offsets[static_cast<std::size_t>(e)], end = offsets[static_cast<std::size_t>(e) + 1];
              for (Index s = begin; s < end; ++s) {
                const double term = double(support::factor<P>(x[static_cast<std::size_t>(s * rows + i)])) *
                                    double(support::factor<P>(dc[static_cast<std::size_t>(s * columns + j)]));
                expected += term;
                absolute += std::abs(term);
              }
              // Each addition may be off by half a unit of a partial sum.
              wrong += !(std::abs(double(dw(e, i, j)) - expected) <=
                         static_cast<double>(end - begin + 1) * 0x1p-24 * absolute);
            }
        CHECK(wrong == 0);
      }
}

#if defined(__linux__)
TEST_CASE("bfloat16 products: read nothing past the end of operands") {
  constexpr Index hidden = 64, columns = 32;
  const functor::Store store;
  for (const Index rows : {1, 9, 100})
    for (const Index depth : {39, 40}) {
      const support::Guarded<float> x(naive::random_vector<float>(rows * depth, 1)),
          up(naive::random_vector<float>(depth * hidden, 2)), down(naive::random_vector<float>(hidden * columns, 3));
      const View<const float, 2, CpuBf16> items(x.data(), rows, depth);
      const View<const float, 3, CpuBf16> first(up.data(), Index(1), depth, hidden),
          second(down.data(), Index(1), hidden, columns);
      const std::vector<Index> offsets{0, rows};
      const Groups<CpuBf16> groups{offsets, {}, rows};
      CpuBf16::Context ctx(1);
      Tensor<float, 2, CpuBf16> c(rows, columns), between(rows, hidden), expected(rows, columns);
      CpuBf16::grouped_pair<float, 1>(ctx, groups, items, {first}, store, second, c.view(), store);
      CpuBf16::grouped_gemm<float>(ctx, groups, items, first, false, between.view(), store);
      CpuBf16::grouped_gemm<float>(ctx, groups, between.view(), second, false, expected.view(), store);
      CHECK(std::memcmp(c.data(), expected.data(), static_cast<std::size_t>(rows * columns) * sizeof(float)) == 0);
    }
}
#endif

#if defined(GATEFOLD_AMX)
namespace {

/// Returns v, or a zero of the same sign if v is subnormal.
float flushed(float v) { return std::abs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v; }

}  // namespace

TEST_CASE("AMX: sums even and odd products separately, then adds them") {
  constexpr Index width = cpu::Tile<P>::columns, depth = 80;
  static_assert(cpu::Tile<P>::rows == 32 && width == 32);
  cpu::AmxTiles<P>::permit();
  const cpu::AmxTiles<P> tiles;
  auto a = naive::random_vector<float>(32 * depth, 2), b = naive::random_vector<float>(depth * width, 3);
  // Rows whose factors, products or sums are subnormal, cancel, or are not finite.
  for (Index k = 0; k < depth; ++k) {
    a[static_cast<std::size_t>(k)] *= 0x1p-124f;
    a[static_cast<std::size_t>(depth + k)] *= 0x1p-130f;
    a[static_cast<std::size_t>(2 * depth + k)] *= k % 3 ? 0x1p30f : -0x1p30f;
  }
  a[static_cast<std::size_t>(3 * depth)] = std::numeric_limits<float>::infinity();
  std::vector<float> rows(static_cast<std::size_t>(32 * cpu::Tile<P>::stride)),
      panel(static_cast<std::size_t>(cpu::words<P>(depth) * width)), sums(static_cast<std::size_t>(32 * width));
  cpu::pack_rows<P>({a.data(), depth, true}, 0, 32, 0, depth, rows.data());
  cpu::pack_panels<P>({b.data(), width, false}, 0, width, 0, depth, panel.data());
  cpu::tile_sum<P>(32, width, cpu::words<P>(depth), rows.data(), panel.data(), sums.data(), width, cpu::Into::store,
                   cpu::Prefetch::nothing(panel.data()));
  int wrong = 0;
  for (Index i = 0; i < 32; ++i)
    for (Index j = 0; j < width; ++j) {
      float sum = 0;
      for (Index step = 0; step < depth; step += 32) {
        float chain[2] = {0, 0};
        for (Index k = step; k < std::min(step + 32, depth); ++k)
          chain[k % 2] =
              flushed(std::fma(flushed(support::factor<P>(a[static_cast<std::size_t>(i * depth + k)])),
                               flushed(support::factor<P>(b[static_cast<std::size_t>(k * width + j)])), chain[k % 2]));
        sum = flushed(sum + flushed(chain[0] + chain[1]));
      }
      wrong += sums[static_cast<std::size_t>(i * width + j)] != sum;
    }
  CHECK(wrong == 0);
}

#if defined(GATEFOLD_AMX_INT8)
TEST_CASE("AmxBytes: sums equal loops over integers") {
  constexpr int rows = cpu::AmxBytes::rows, columns = cpu::AmxBytes::columns, terms = 32;
  REQUIRE(cpu::amx_permitted());
  std::mt19937 random(1);
  const auto byte = [&] { return static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127); };
  for (int last = 1; last <= rows; ++last) {
    std::int8_t a[rows][terms + 8], b[terms / 4][2][columns][4];
    for (auto& row : a)
      for (auto& v : row) v = byte();
    for (auto& row : b)
      for (auto& half : row)
        for (auto& word : half)
          for (auto& v : word) v = byte();
    alignas(64) std::int32_t whole[rows * columns], some[rows * columns];
    std::fill(some, some + rows * columns, 7);
    {
      const cpu::AmxBytes unit(last);
      unit.multiply<false>(a, sizeof(a[0]), b, sizeof(b[0]), whole);
      unit.multiply<true>(a, sizeof(a[0]), b, sizeof(b[0]), some);
    }
    int wrong = 0;
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) {
        std::int32_t sum = 0;
        for (int k = 0; k < terms; ++k) sum += a[i][k] * b[k / 4][0][j][k % 4];
        wrong += whole[i * columns + j] != sum;
        wrong += some[i * columns + j] != (i < last ? sum : 7);
      }
    CHECK(wrong == 0);
  }
}
#endif
#endif
