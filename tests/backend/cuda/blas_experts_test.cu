// The grouped products by cuBLAS, for contexts that ask for it: the same as our own, in cuBLAS's order of summation.
#include "gatefold/backend/cuda/blas_experts.cuh"

#include <doctest/doctest.h>

#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cuda/cuda.cuh"
#include "gatefold/backend/one_group.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "support/grouped_product.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// What sums of at most 130 products of numbers below 1 may differ by, and products of such sums.
template <class T>
constexpr double kTolerance = 2000 * std::numeric_limits<T>::epsilon();

template <class T>
void check(const ProductCase& c) {
  CAPTURE(c);
  Cuda::Context ctx({.blas_experts = true});
  CHECK(difference_of_product<T>(ctx, c, kTolerance<T>) == "");
  CHECK(difference_of_gradients<T>(ctx, c, kTolerance<T>) == "");
  if constexpr (std::is_same_v<T, double>) {  // the same calls once more, with one matrix and with two
    CHECK(difference_of_pair<T, 1>(ctx, c, 6, kTolerance<T>) == "");
    CHECK(difference_of_pair<T, 2>(ctx, c, 6, kTolerance<T>) == "");
  }
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: cuBLAS experts give the products of our own", T, double, float) {
  for (const bool transpose : {false, true})
    for (const bool gather : {false, true}) {
      check<T>({{0, 3, 17, 0, 1, 0}, 5, 7, transpose, gather});
      check<T>({{130, 0, 33}, 12, 20, transpose, gather});
    }
}

TEST_CASE_TEMPLATE("cuda: cuBLAS experts leave slots of others alone", T, double, float) {
  check<T>({.counts = {2, 0, 40}, .depth = 12, .columns = 8, .gather = true, .first = 7, .more = 50});
  check<T>({.counts = {2, 0, 40}, .depth = 12, .columns = 8, .first = 7, .more = 50});
}

TEST_CASE_TEMPLATE("cuda: cuBLAS experts without slots, experts, columns or depth", T, double, float) {
  check<T>({.counts = {}, .depth = 4, .columns = 4});
  check<T>({.counts = {0, 0, 0}, .depth = 4, .columns = 4});
  check<T>({.counts = {0}, .depth = 4, .columns = 4, .more = 0});
  check<T>({.counts = {3, 2}, .depth = 4, .columns = 0});
  check<T>({.counts = {3, 2}, .depth = 0, .columns = 4});
}

TEST_CASE("cuda: an epilogue may add what stands in the result") {
  for (const bool blas_experts : {false, true}) {
    Cuda::Context ctx({.blas_experts = blas_experts});
    const auto a = constant_tensor<double>(ctx, 0.5, 3, 4);     // [S, depth]
    const auto w = constant_tensor<double>(ctx, 1.5, 1, 4, 8);  // [E, depth, columns]
    auto c = constant_tensor<double>(ctx, 5, 3, 8);
    const auto mark = ctx.mark();
    Cuda::grouped_gemm(ctx, one_group(ctx, 3), a.view(), w.view(), false, c.view(), fn::AddTo<double, Cuda>{c.view()});
    std::vector<double> got(24);
    Cuda::to_host(ctx, 24, std::as_const(c).data(), got.data());
    CHECK(got == std::vector<double>(24, 5 + 4 * 0.5 * 1.5));
  }
}
