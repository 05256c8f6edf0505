#include "gatefold/backend/cpu/cpu.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"
#include "support/words.hpp"

using namespace gatefold;

TEST_CASE("Cpu and CpuBf16: satisfy the Backend concept") {
  static_assert(Backend<Cpu> && Backend<CpuBf16>);
  static_assert(std::is_same_v<FullPrecision<Cpu>, Cpu>);
  static_assert(!std::is_same_v<FullPrecision<CpuBf16>, CpuBf16>);
}

namespace {

constexpr Index kRows = 9, kDepth = 5, kColumns = 3;

/// Compares two products of the same matrices a and w with loops: the grouped product of `Primitives` for one expert,
/// which rounds the factors to P, and the plain product, which rounds no factors.
template <class Primitives, class P, class T>
void check_product() {
  using B = typename Primitives::Context::Backend;
  const auto a = naive::random_vector<T>(kRows * kDepth, 1), w = naive::random_vector<T>(kDepth * kColumns, 2);
  const std::vector<Index> offsets{0, kRows};
  Tensor<T, 2, B> c(kRows, kColumns), plain(kRows, kColumns);
  typename B::Context ctx(1);
  const View<const T, 2, B> items(a.data(), kRows, kDepth);
  Primitives::template grouped_gemm<T>(ctx, Groups<B>{offsets, {}, kRows}, items,
                                       View<const T, 3, B>(w.data(), Index(1), kDepth, kColumns), false, c.view(),
                                       functor::Store{});
  B::template gemm<T>(ctx, items, false, View<const T, 2, B>(w.data(), kDepth, kColumns), false, false, plain.view(),
                      functor::Store{});
  constexpr double u = std::is_same_v<T, float> ? 0x1p-24 : 0x1p-53;
  for (Index i = 0; i < kRows; ++i)
    for (Index j = 0; j < kColumns; ++j) {
      double expected = 0, exact = 0;
      for (Index k = 0; k < kDepth; ++k) {
        const T x = a[static_cast<std::size_t>(i * kDepth + k)], y = w[static_cast<std::size_t>(k * kColumns + j)];
        expected += double(support::factor<P>(x)) * double(support::factor<P>(y));
        exact += double(x) * double(y);
      }
      // The sums have five terms that are at most 1 each.
      CHECK(std::abs(double(c(i, j)) - expected) <= 25 * u);
      CHECK(std::abs(double(plain(i, j)) - exact) <= 25 * u);
    }
}

}  // namespace

TEST_CASE("CpuBf16: rounds only the float operands of experts' products") {
  check_product<Cpu, float, float>();
  check_product<CpuBf16, Bfloat16, float>();
  check_product<CpuBf16, double, double>();
  check_product<CpuBf16::FullPrecision, float, float>();
}

TEST_CASE("CpuBf16: a fused pair rounds hidden values like two calls") {
  constexpr Index N = 40, D = 21, H = 301, O = 24;
  const auto x = naive::random_vector<float>(N * D, 1), up = naive::random_vector<float>(2 * D * H, 2),
             down = naive::random_vector<float>(2 * H * O, 3);
  const std::vector<Index> offsets{0, 31, N};
  const Groups<CpuBf16> groups{offsets, {}, N};
  const View<const float, 2, CpuBf16> items(x.data(), N, D);
  const View<const float, 3, CpuBf16> first(up.data(), Index(2), D, H), second(down.data(), Index(2), H, O);
  CpuBf16::Context ctx(2);
  Tensor<float, 2, CpuBf16> hidden(N, H), expected(N, O), got(N, O);
  CpuBf16::grouped_gemm(ctx, groups, items, first, false, hidden.view(), functor::Store{});
  CpuBf16::grouped_gemm(ctx, groups, std::as_const(hidden).view(), second, false, expected.view(), functor::Store{});
  CpuBf16::grouped_pair(ctx, groups, items, std::array{first}, functor::Store{}, second, got.view(), functor::Store{});
  CHECK(std::memcmp(got.data(), expected.data(), sizeof(float) * N * O) == 0);
}

TEST_CASE("CpuBf16: gradients of few slots equal loops across several tasks") {
  constexpr Index slots = 5, rows = 400, columns = 1100;
  const auto a = naive::random_vector<float>(slots * rows, 1), d = naive::random_vector<float>(slots * columns, 2);
  const std::vector<Index> offsets{0, slots};
  Tensor<float, 3, CpuBf16> dw(1, rows, columns);
  CpuBf16::Context ctx(3);
  CpuBf16::grouped_outer(ctx, Groups<CpuBf16>{offsets, {}, slots}, View<const float, 2, CpuBf16>(a.data(), slots, rows),
                         View<const float, 2, CpuBf16>(d.data(), slots, columns), dw.view(), false);
  Index wrong = 0;
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < columns; ++j) {
      double expected = 0;
      for (Index s = 0; s < slots; ++s)
        expected += double(support::factor<Bfloat16>(a[static_cast<std::size_t>(s * rows + i)])) *
                    double(support::factor<Bfloat16>(d[static_cast<std::size_t>(s * columns + j)]));
      wrong += !(std::abs(double(dw(0, i, j)) - expected) <= 25 * 0x1p-24);  // five terms that are at most 1 each
    }
  CHECK(wrong == 0);
}

TEST_CASE("Cpu and CpuBf16: views convert to each other") {
  Tensor<float, 2, Cpu> x(2, 3);
  x(1, 2) = 7;
  const View<float, 2, CpuBf16> from_tensor = x;
  const View<const float, 2, CpuBf16> from_view = std::as_const(x).view(), back = View<const float, 2, Cpu>(from_view);
  CHECK(from_tensor.data() == x.data());
  CHECK(from_view(1, 2) == 7);
  CHECK(back.extent(1) == 3);
  static_assert(!std::is_convertible_v<View<const float, 2, Cpu>, View<float, 2, CpuBf16>>);
}
