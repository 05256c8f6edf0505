#include "gatefold/backend/cpu/kernels.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

#if defined(GATEFOLD_KERNELS)
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
TEST_CASE("kernels: the library's list contains the caller's instruction set") {
  const std::string_view names = GATEFOLD_KERNELS;
  CHECK(names.find(" " TEXT(GATEFOLD_CPU_ABI) " ") != std::string_view::npos);
  CHECK(names.find("  ") == std::string_view::npos);
}
#endif

// Fills a tensor with small whole numbers, whose sums are exact in either type and any order.
template <class T, int Rank>
Tensor<T, Rank, Cpu> whole(Index rows, Index columns, int step) {
  Tensor<T, Rank, Cpu> x;
  if constexpr (Rank == 3)
    x.resize(1, rows, columns);
  else
    x.resize(rows, columns);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>((i * step) % 11 - 5);
  return x;
}

template <class T, class E>
void check_products(const E& epilogue, const std::vector<T>& added) {
  const Index n = 37, k = 23, m = 19;
  for (const int threads : {1, 3}) {
    Cpu::Context ctx(threads, true);
    const auto a = whole<T, 2>(n, k, 7);
    const auto b = whole<T, 3>(1, k * m, 3);
    Tensor<T, 2, Cpu> plain(n, m), grouped(n, m);
    Cpu::gemm(ctx, a.view(), false, b.view().as(k, m), false, false, plain.view(), epilogue);
    const auto mark = ctx.mark();
    Cpu::grouped_gemm(ctx, one_group(ctx, n), a.view(), b.view().as(1, k, m), false, grouped.view(), epilogue);
    for (Index i = 0; i < n; ++i)
      for (Index j = 0; j < m; ++j) {
        T sum = added[static_cast<std::size_t>(j)];
        for (Index x = 0; x < k; ++x) sum += a(i, x) * b.data()[x * m + j];
        REQUIRE(plain(i, j) == sum);
        REQUIRE(grouped(i, j) == sum);
      }
  }
}

TEST_CASE_TEMPLATE("kernels: products with precompiled epilogues equal loops", T, float, double) {
  const Index m = 19;
  check_products<T>(functor::Store{}, std::vector<T>(m));
  Tensor<T, 2, Cpu> bias(1, m);
  std::vector<T> added;
  for (Index j = 0; j < m; ++j) added.push_back(bias(0, j) = static_cast<T>(j));
  check_products<T>(functor::AddBias<T, Cpu>{bias.view()}, added);
}

TEST_CASE_TEMPLATE("kernels: gradients of weights and biases equal loops", T, float, double) {
  const Index n = 41, k = 13, m = 17;
  Cpu::Context ctx(2, true);
  const auto a = whole<T, 2>(n, k, 5), dc = whole<T, 2>(n, m, 3);
  Tensor<T, 3, Cpu> dw(1, k, m);
  Tensor<T, 2, Cpu> db(1, m);
  const auto mark = ctx.mark();
  Cpu::grouped_outer(ctx, one_group(ctx, n), a.view(), dc.view(), dw.view(), false);
  Cpu::grouped_sum<T>(ctx, one_group(ctx, n), dc.view(), db.view(), false);
  for (Index j = 0; j < m; ++j) {
    T sum = 0;
    for (Index s = 0; s < n; ++s) sum += dc(s, j);
    CHECK(db(0, j) == sum);
    for (Index i = 0; i < k; ++i) {
      T product = 0;
      for (Index s = 0; s < n; ++s) product += a(s, i) * dc(s, j);
      REQUIRE(dw(0, i, j) == product);
    }
  }
}

}  // namespace
