// The product that also applies a functor to its finished rows. Its sums are bit for bit the documented chains of fused
// multiply-adds, and the functor sees them.
#include "gatefold/backend/cuda/product_rows.cuh"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Copies the row that its lanes see to out[n,:] and stores the row's sum if every lane has the same one. Negates the
/// row if it may write.
template <class T>
struct TakeRow {
  Index columns;
  T *out, *sums;
  bool write;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n, T* row) const {
    const T sum = sum_columns<T>(lanes, columns, [&](const auto& at, Index j) { return at.load(row + j); });
    each_column<T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(out + n * columns + j, at.load(row + j));
      if (write) at.store(row + j, -at.load(row + j));
    });
    const T smallest = -lanes.max(-sum), largest = lanes.max(sum);  // equal if all lanes have the same sum
    if (lanes.lane == 0) sums[n] = smallest == largest ? sum : T(1e30);
  }
};

struct RowsCase {
  Index lines, depth, columns;
  bool transposed = false;
  Index skip = 0;  // elements that a and b begin past an aligned address
};

template <class T>
void check(Cuda::Context& ctx, const RowsCase& r) {
  CAPTURE(r.lines);
  CAPTURE(r.depth);
  CAPTURE(r.columns);
  CAPTURE(r.transposed);
  CAPTURE(r.skip);
  const auto a = random_vector<T>(r.lines * r.depth, 1), b = random_vector<T>(r.depth * r.columns, 2),
             bias = random_vector<T>(r.columns, 3);
  std::vector<T> expected;
  std::vector<double> totals;
  const auto at = [](const std::vector<T>& x, Index i) { return x[static_cast<std::size_t>(i)]; };
  for (Index n = 0; n < r.lines; ++n) {
    double total = 0;
    for (Index j = 0; j < r.columns; ++j) {
      T sum = 0;
      for (Index k = 0; k < r.depth; ++k)
        sum = std::fma(at(a, n * r.depth + k), at(b, r.transposed ? j * r.depth + k : k * r.columns + j), sum);
      expected.push_back(sum + at(bias, j));
      total += static_cast<double>(expected.back());
    }
    totals.push_back(total);
  }

  const std::vector<T> before(expected.size(), T(-7));
  DeviceArray<T> da(ctx, a, r.skip), db(ctx, b, r.skip), dbias(ctx, bias), c(ctx, before), seen(ctx, before),
      again(ctx, before), sums(ctx, std::vector<T>(totals.size()));
  const functor::AddBias<T, Cuda> epilogue{dbias.in(1, r.columns)};
  const auto from_b = r.transposed ? db.in(r.columns, r.depth) : db.in(r.depth, r.columns);
  Cuda::gemm_rows(ctx, da.in(r.lines, r.depth), from_b, r.transposed, c.as(r.lines, r.columns), epilogue,
                  TakeRow<T>{r.columns, seen.data(), sums.data(), false});
  const double tolerance =  // of cuBLAS, which has its own order of summation
      r.columns > detail_::device::MostColumns::columns ? 4.0 * double(r.depth + 4) * std::numeric_limits<T>::epsilon()
                                                        : 0;
  CHECK(difference(expected, c.values(), tolerance) == "");
  CHECK(difference(c.values(), seen.values()) == "");
  const auto got = sums.values();
  CHECK(difference(totals, {got.begin(), got.end()},
                   8.0 * double((r.depth + 4) * r.columns) * std::numeric_limits<T>::epsilon()) == "");
  Cuda::gemm_rows(ctx, da.in(r.lines, r.depth), from_b, r.transposed, View<T, 2, Cuda>(nullptr, r.lines, r.columns),
                  epilogue, TakeRow<T>{r.columns, again.data(), sums.data(), true});
  CHECK(difference(c.values(), again.values()) == "");
}

template <class Shape>
void check_shape() {
  CHECK(Shape::threads % 32 == 0);
  CHECK(Shape::threads % Shape::Lanes::size == 0);
  CHECK(sizeof(detail_::device::RowsStaging<Shape, float>) <=
        48 * 1024);  // the default limit of shared memory of a block
  CHECK(sizeof(detail_::device::RowsStaging<Shape, double>) <= 48 * 1024);
}

}  // namespace

TEST_CASE("row products: shapes have whole warps and fit shared memory") {
  check_shape<detail_::device::FewColumns>();
  check_shape<detail_::device::SkinnyOfFewColumns>();
  check_shape<detail_::device::SeveralColumns>();
  check_shape<detail_::device::SkinnyOfSeveralColumns>();
  check_shape<detail_::device::SomeColumns>();
  check_shape<detail_::device::SkinnyOfSomeColumns>();
  check_shape<detail_::device::MostColumns>();
  check_shape<detail_::device::SkinnyOfMostColumns>();
}

TEST_CASE_TEMPLATE("cuda: gemm_rows: equals loops for every shape of row tile", T, float, double) {
  Cuda::Context ctx;
  for (const Index columns : {1, 5, 8, 9, 16, 17, 32, 33, 64, 65}) check<T>(ctx, {35, 68, columns});
  for (const Index columns : {0, 1}) check<T>(ctx, {3, 5, detail_::device::most_copied_columns<T> + columns});
  for (const Index lines : {0, 1, 8, 9}) check<T>(ctx, {lines, 7, 257});
}
TEST_CASE_TEMPLATE("cuda: gemm_rows: equals loops for any rows and any depth", T, float, double) {
  Cuda::Context ctx;
  for (const Index lines : {0, 1, 31, 32, 33, 64, 70}) check<T>(ctx, {lines, 36, 8});
  for (const Index depth : {0, 1, 3, 4, 16, 31, 32, 33, 64, 96, 128, 160, 200}) check<T>(ctx, {33, depth, 8});
  for (const Index depth : {256, 257, 512, 600, 1100}) check<T>(ctx, {11, depth, 7});  // several rounds of the ring
  for (const Index depth : {0, 2, 16, 64, 65, 300}) check<T>(ctx, {19, depth, 14});
  for (const Index depth : {0, 2, 16, 100}) check<T>(ctx, {33, depth, 40});
}
TEST_CASE_TEMPLATE("cuda: gemm_rows: equals loops around the switch of tile shapes", T, float, double) {
  Cuda::Context ctx;
  const auto last_skinny = [&]<class Shape>(Shape) {
    const Index lines = Shape::rows * (ctx.multiprocessors() - 1);
    CHECK(!detail_::device::rows_for_each<Shape>(lines, ctx.multiprocessors()));
    CHECK(detail_::device::rows_for_each<Shape>(lines + 1, ctx.multiprocessors()));
    return lines;
  };
  const Index few = last_skinny(detail_::device::FewColumns{}),
              several = last_skinny(detail_::device::SeveralColumns{}),
              some = last_skinny(detail_::device::SomeColumns{}), most = last_skinny(detail_::device::MostColumns{});
  for (const Index lines : {few, few + 1, few + 70})
    for (const Index columns : {1, 7, 8}) check<T>(ctx, {lines, 20, columns});
  for (const Index depth : {0, 1, 31, 64, 100, 200}) check<T>(ctx, {few + 6, depth, 8});
  for (const Index lines : {several, several + 1, several + 70}) check<T>(ctx, {lines, 36, 15});
  for (const Index lines : {some, some + 1, some + 70}) check<T>(ctx, {lines, 20, 30});
  for (const Index lines : {most, most + 1, most + 65}) check<T>(ctx, {lines, 36, 64});
  check<T>(ctx, {most + 130, 9, 37, true});
}
TEST_CASE_TEMPLATE("cuda: gemm_rows: accepts transposed and unaligned operands", T, float, double) {
  Cuda::Context ctx;
  for (const Index columns : {3, 8, 20, 64, 70}) {
    check<T>(ctx, {34, 44, columns, true});
    check<T>(ctx, {34, 44, columns, false, 1});
    check<T>(ctx, {34, 7, columns, true, 3});
  }
}

TEST_CASE("cuda: gemm_rows: NaN and infinity stay in row and column") {
  Cuda::Context ctx;
  const Index lines = 40, depth = 37, columns = 6;
  auto a = random_vector<double>(lines * depth, 1), b = random_vector<double>(depth * columns, 2);
  a[3 * depth + 36] = NAN;
  b[36 * columns + 5] = INFINITY;
  DeviceArray<double> da(ctx, a), db(ctx, b), c(ctx, std::vector<double>(lines * columns)),
      out(ctx, std::vector<double>(lines * columns)), sums(ctx, std::vector<double>(lines));
  Cuda::gemm_rows(ctx, da.in(lines, depth), db.in(depth, columns), false, c.as(lines, columns), functor::Store{},
                  TakeRow<double>{columns, out.data(), sums.data(), false});
  const auto got = c.values();
  for (Index n = 0; n < lines; ++n)
    for (Index j = 0; j < columns; ++j) {
      const double v = got[static_cast<std::size_t>(n * columns + j)];
      CHECK(std::isnan(v) == (n == 3));
      if (n != 3) CHECK(std::isinf(v) == (j == 5));
    }
}
