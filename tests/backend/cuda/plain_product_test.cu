// The plain product: cuBLAS, which stores by columns, gives the product of matrices that are stored by rows.
#include "gatefold/backend/cuda/plain_product.cuh"

#include <doctest/doctest.h>

#include <climits>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// c = 2 (v + bias[j]). A mark for each row shows a mix-up of rows and columns.
template <class T>
struct BiasAndMark {
  const T* bias;
  T* rows;
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index e, Index i, Index j, typename A::Value v) const {
    if (j == 0) at.store(rows + i, typename A::Value(10 * i + e));
    return 2 * (v + at.load(bias + j));
  }
};

struct GemmCase {
  Index m, n, k;
  bool ta, tb, accumulate;
};

/// Compares with numbers computed in double, within the rounding of `depth` products of numbers below 1.
template <class T>
std::string difference_in_double(const std::vector<double>& expected, const std::vector<T>& got, Index depth) {
  return difference(expected, {got.begin(), got.end()},
                    4.0 * static_cast<double>(depth + 4) * std::numeric_limits<T>::epsilon());
}

template <class T>
void check_gemm(Cuda::Context& ctx, const GemmCase& g) {
  CAPTURE(g.m);
  CAPTURE(g.n);
  CAPTURE(g.k);
  CAPTURE(g.ta);
  CAPTURE(g.tb);
  CAPTURE(g.accumulate);
  const auto a = random_vector<T>(g.m * g.k, 1), b = random_vector<T>(g.k * g.n, 2),
             before = random_vector<T>(g.m * g.n, 3), bias = random_vector<T>(g.n, 4);
  std::vector<double> plain, finished, marks;
  for (Index i = 0; i < g.m; ++i)
    for (Index j = 0; j < g.n; ++j) {
      const auto at = [](const std::vector<T>& x, Index i) {
        return static_cast<double>(x[static_cast<std::size_t>(i)]);
      };
      double sum = g.accumulate ? at(before, i * g.n + j) : 0;
      for (Index k = 0; k < g.k; ++k)
        sum += at(a, g.ta ? k * g.m + i : i * g.k + k) * at(b, g.tb ? j * g.k + k : k * g.n + j);
      plain.push_back(sum);
      finished.push_back(2 * (sum + at(bias, j)));
    }
  for (Index i = 0; i < g.m; ++i) marks.push_back(g.n > 0 ? static_cast<double>(10 * i) : -1);

  DeviceArray<T> da(ctx, a), db(ctx, b), c(ctx, before), again(ctx, before), dbias(ctx, bias),
      rows(ctx, std::vector<T>(static_cast<std::size_t>(g.m), -1));
  const auto a_view = g.ta ? da.in(g.k, g.m) : da.in(g.m, g.k), b_view = g.tb ? db.in(g.n, g.k) : db.in(g.k, g.n);
  Cuda::gemm(ctx, a_view, g.ta, b_view, g.tb, g.accumulate, c.as(g.m, g.n), functor::Store{});
  CHECK(difference_in_double(plain, c.values(), g.k) == "");
  Cuda::gemm(ctx, a_view, g.ta, b_view, g.tb, g.accumulate, again.as(g.m, g.n),
             BiasAndMark<T>{dbias.data(), rows.data()});
  CHECK(difference_in_double(finished, again.values(), g.k) == "");
  CHECK(difference_in_double(marks, rows.values(), 0) == "");
}

template <class T>
void check_all() {
  Cuda::Context ctx;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const bool accumulate : {false, true}) {
        check_gemm<T>(ctx, {5, 7, 3, ta, tb, accumulate});
        check_gemm<T>(ctx, {33, 16, 20, ta, tb, accumulate});
        check_gemm<T>(ctx, {1, 1, 1, ta, tb, accumulate});
        check_gemm<T>(ctx, {1, 9, 4, ta, tb, accumulate});
        check_gemm<T>(ctx, {9, 1, 4, ta, tb, accumulate});
        check_gemm<T>(ctx, {4, 6, 0, ta, tb, accumulate});  // sums without terms
        check_gemm<T>(ctx, {0, 6, 4, ta, tb, accumulate});
        check_gemm<T>(ctx, {6, 0, 4, ta, tb, accumulate});
      }
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: gemm: equals loops, transposed or not, stored or added", T, double, float) { check_all<T>(); }

TEST_CASE("cuda: gemm: accepts row strides larger than the row") {
  Cuda::Context ctx;
  const std::vector<double> a{1, 2, 99, 3, 4, 99}, b{5, 6, 7, 99, 8, 9, 10, 99};
  DeviceArray<double> da(ctx, a), db(ctx, b), c(ctx, std::vector<double>(6));
  detail_::device::gemm<double>(ctx, 2, 3, 2, da.data(), false, 3, db.data(), false, 4, false, c.data());
  CHECK(difference({21, 24, 27, 47, 54, 61}, c.values()) == "");
}

TEST_CASE("cuda: gemm: a stored product overwrites NaN in c") {
  Cuda::Context ctx;
  DeviceArray<float> a(ctx, {2, 3}), b(ctx, {4, 5}), c(ctx, {std::nanf("")});
  Cuda::gemm(ctx, a.in(1, 2), false, b.in(2, 1), false, false, c.as(1, 1), functor::Store{});
  CHECK(c.values()[0] == 23);
}

TEST_CASE("cuda: gemm: throws if extents exceed the range of cuBLAS") {
  Cuda::Context ctx;
  const auto error_of = [&](Index m, Index n, Index k) {
    try {
      detail_::device::gemm<float>(ctx, m, n, k, nullptr, false, k, nullptr, false, n, false, nullptr);
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string("no ArgumentError");
  };
  const auto message = [](const std::string& name) {
    return "Cuda::gemm: " + name + ": expected at most 2147483647, got 2147483648";
  };
  const Index most = INT_MAX;
  CHECK(error_of(most + 1, 1, 1) == message("m"));
  CHECK(error_of(1, most + 1, 1) == message("n"));
  CHECK(error_of(1, 1, most + 1) == message("k"));
}

TEST_CASE("cuda: gemm with TF32: floats keep ten bits, doubles all") {
  Cuda::Context ctx({.tf32 = true});
  const Index n = 64;
  const auto a = random_vector<float>(n * n, 1), b = random_vector<float>(n * n, 2);
  const std::vector<double> a_wide(a.begin(), a.end()), b_wide(b.begin(), b.end());
  DeviceArray<float> da(ctx, a), db(ctx, b), c(ctx, a);
  DeviceArray<double> da_wide(ctx, a_wide), db_wide(ctx, b_wide), c_wide(ctx, a_wide);
  Cuda::gemm(ctx, da.in(n, n), false, db.in(n, n), false, false, c.as(n, n), functor::Store{});
  Cuda::gemm(ctx, da_wide.in(n, n), false, db_wide.in(n, n), false, false, c_wide.as(n, n), functor::Store{});
  std::vector<double> expected;
  for (Index i = 0; i < n * n; ++i) {
    double sum = 0;
    for (Index k = 0; k < n; ++k)
      sum += a_wide[static_cast<std::size_t>(i / n * n + k)] * b_wide[static_cast<std::size_t>(k * n + i % n)];
    expected.push_back(sum);
  }
  CHECK(difference_in_double(expected, c_wide.values(), n) == "");
  const auto got = c.values();
  CHECK(difference(expected, {got.begin(), got.end()}, 0x1p-9 * std::sqrt(n)) == "");
}
