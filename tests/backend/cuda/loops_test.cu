// Loops and sums: every index occurs once, and reduce adds in the documented order.
#include "gatefold/backend/cuda/loops.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

struct CountIndex {
  Index* calls;
  GATEFOLD_HD void operator()(Index i) const { calls[i] += 1 + i; }
};
struct CountElement {
  using Element = Index;
  Index* calls;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    at.store(calls + i, at.load(calls + i) + 1 + i);
  }
};
struct CountLane {
  Index* calls;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    calls[row * 32 + lanes.lane] += 1 + row * 32 + lanes.lane;
  }
};

/// Adds 1 to the floats of a row that begins at any alignment, and counts how many neighbouring columns were updated
/// together.
struct AddOneToFloats {
  Index columns, width;
  float* x;
  int* at_once;
  GATEFOLD_HD Index independent_columns() const { return columns; }
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    each_column<float>(lanes, columns, [&](const auto& at, Index j) {
      float* const to = x + row * width + j;
      at.store(to, at.load(to) + 1.f);
      if constexpr (requires { at.count; }) at_once[row * columns + j] = at.count;
    });
  }
};

/// Counts how often each column of a row is visited, and stores how many warps share the row.
struct CountColumn {
  Index columns;
  Index *calls, *warps;
  GATEFOLD_HD Index independent_columns() const { return columns; }
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    if constexpr (requires { lanes.parts; })
      if (row == 0 && lanes.part == 0 && lanes.lane == 0) *warps = lanes.parts;
    each_column<Index>(lanes, columns, [&](const auto& at, Index j) {
      Index* call = calls + row * columns + j;
      at.store(call, at.load(call) + 1 + row * columns + j);
    });
  }
};

struct IsFourth {
  GATEFOLD_HD Index operator()(Index i) const { return (i & 3) == 0; }
};

/// Checks n calls that add 1 + i to element i, and `more` elements behind them that must not change.
template <class F>
std::string difference_of_calls(Index n, Index more, const F& run) {
  Cuda::Context ctx;
  std::vector<Index> calls(static_cast<std::size_t>(n + more), -1), expected = calls;
  for (Index i = 0; i < n; ++i) expected[static_cast<std::size_t>(i)] = i;
  DeviceArray<Index> array(ctx, calls);
  run(ctx, array.data());
  return difference(expected, array.values());
}

template <class T>
T reduced(Cuda::Context& ctx, const std::vector<T>& terms, T start) {
  DeviceArray<T> x(ctx, terms), out(ctx, std::vector<T>{start});
  Cuda::reduce<T>(ctx, static_cast<Index>(terms.size()), functor::Term<T>{x.data()}, out.data());
  return out.values()[0];
}
template <class T>
std::string difference_of_sums(T expected, T got) {
  return difference(std::vector<T>{expected}, std::vector<T>{got});
}

/// Returns numbers of very different sizes, so that every order of summation gives other bits.
template <class T>
std::vector<T> terms_of(Index n) {
  auto x = random_vector<T>(n, 5);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], static_cast<int>(i * 7 % 23));
  return x;
}

template <class T>
void check_order(Index n) {
  CAPTURE(n);
  Cuda::Context ctx;
  const auto terms = terms_of<T>(n);
  const T sum = reduced<T>(ctx, terms, 0);
  CHECK(difference_of_sums(sum, reduced<T>(ctx, terms, 0)) == "");

  // Sums of blocks of 4096 terms; the sums of blocks are added in the same way.
  std::vector<T> of_blocks;
  for (std::size_t begin = 0; begin < terms.size(); begin += 4096)
    of_blocks.push_back(
        reduced<T>(ctx, {terms.begin() + begin, terms.begin() + std::min(begin + 4096, terms.size())}, 0));
  CHECK(difference_of_sums(reduced<T>(ctx, of_blocks, 0), sum) == "");

  // The first block: thread t sums terms t, t + 256, …
  std::vector<T> of_threads(256);
  const std::size_t first = std::min<std::size_t>(terms.size(), 4096);
  for (std::size_t i = 0; i < first; ++i) of_threads[i % 256] += terms[i];
  CHECK(difference_of_sums(reduced<T>(ctx, of_threads, 0), of_blocks[0]) == "");

  long double exact = 0, size = 0;
  for (const T v : terms) {
    exact += v;
    size += std::abs(v);
  }
  CHECK(std::abs(static_cast<double>(exact - sum)) <=
        static_cast<double>(30 * size * std::numeric_limits<T>::epsilon()));
}

}  // namespace

TEST_CASE("cuda: for_each: calls f once for each index") {
  for (const Index n : {0, 1, 31, 255, 256, 257, 1000}) {
    CAPTURE(n);
    CHECK(difference_of_calls(n, 300, [&](auto& ctx, Index* calls) { Cuda::for_each(ctx, n, CountIndex{calls}); }) ==
          "");
    CHECK(difference_of_calls(n, 300, [&](auto& ctx, Index* calls) { Cuda::for_each(ctx, n, CountElement{calls}); }) ==
          "");
  }
}

TEST_CASE("cuda: for_rows: calls f once on each lane and row") {
  for (const Index n : {0, 1, 7, 8, 9, 70}) {
    CAPTURE(n);
    CHECK(difference_of_calls(32 * n, 300,
                              [&](auto& ctx, Index* calls) { Cuda::for_rows(ctx, n, CountLane{calls}); }) == "");
  }
}

TEST_CASE("warps_of_row: warps fill the device, every lane has work") {
  for (const int multiprocessors : {1, 4, 132})
    for (const Index rows : {1, 8, 9, 16, 100, 5000})
      for (const Index parts : {0, 1, 31, 32, 63, 64, 1024, 100000}) {
        CAPTURE(multiprocessors);
        CAPTURE(rows);
        CAPTURE(parts);
        const Index blocks_of_rows = (rows + 7) / 8,
                    warps = detail_::device::warps_of_row(rows, parts, multiprocessors);
        const auto fits = [&](Index n) { return blocks_of_rows * n <= 4 * multiprocessors && 32 * n <= parts; };
        CHECK(warps >= 1);
        CHECK((warps == 1 || fits(warps)));
        CHECK(!fits(warps + 1));
      }
}
TEST_CASE("cuda: for_rows: visits columns once for any warps per row") {
  Cuda::Context ctx;
  const Index some = 8 * 4 * ctx.multiprocessors();  // as many rows as fill the device with blocks
  for (const Index rows : {Index(1), Index(9), some / 2, some / 2 + 1, some, some + 1})
    for (const Index columns : {1, 255, 256, 400}) {
      CAPTURE(rows);
      CAPTURE(columns);
      DeviceArray<Index> warps(ctx, {0});
      CHECK(difference_of_calls(rows * columns, 300, [&](auto& own, Index* calls) {
              Cuda::for_rows(own, rows, CountColumn{columns, calls, warps.data()});
            }) == "");
      CHECK(warps.values()[0] == detail_::device::warps_of_row(rows, columns / 4, ctx.multiprocessors()));
      CHECK((warps.values()[0] > 1) == (columns >= 256 && rows <= some / 2));
    }
}

TEST_CASE("cuda: for_rows: lanes access floats in fours, within the row") {
  Cuda::Context ctx;
  for (const Index rows : {1, 3, 40})
    for (const Index columns : {1, 3, 4, 5, 128, 130, 1023})
      for (const Index before : {0, 1, 2}) {
        CAPTURE(rows);
        CAPTURE(columns);
        CAPTURE(before);
        const Index width = columns + before;  // the last `before` columns of a row are not used
        std::vector<float> expected = random_vector<float>(before + rows * width, 3);
        DeviceArray<float> x(ctx, expected);
        DeviceArray<int> at_once(ctx, std::vector<int>(static_cast<std::size_t>(rows * columns), 0));
        Cuda::for_rows(ctx, rows, AddOneToFloats{columns, width, x.data() + before, at_once.data()});
        std::vector<int> counts(static_cast<std::size_t>(rows * columns), 0);
        for (Index row = 0; row < rows; ++row)
          for (Index j = 0; j < columns; ++j) {
            expected[static_cast<std::size_t>(before + row * width + j)] += 1.f;
            if (j % 4 == 0) counts[static_cast<std::size_t>(row * columns + j)] = int(std::min(Index(4), columns - j));
          }
        CHECK(difference(expected, x.values()) == "");
        CHECK(difference(counts, at_once.values()) == "");
      }
}

TEST_CASE("cuda: fill, copy, add_scaled, add and Scale: give known results") {
  Cuda::Context ctx;
  const std::vector<double> x{1, -2, 3, 0.5, 8};
  DeviceArray<double> a(ctx, x), b(ctx, std::vector<double>(5));
  copy(ctx, a.in(5), b.as(5));
  add_scaled(ctx, 2, a.in(5), b.as(5));
  CHECK(difference({3, -6, 9, 1.5, 24}, b.values()) == "");
  add(ctx, a.in(4), b.as(4));
  CHECK(difference({4, -8, 12, 2, 24}, b.values()) == "");
  Cuda::for_each(ctx, 2, functor::Scale<double>{-0.5, b.data()});
  CHECK(difference({-2, 4, 12, 2, 24}, b.values()) == "");
  fill(ctx, b.as(3), 7);
  CHECK(difference({7, 7, 7, 2, 24}, b.values()) == "");
}

TEST_CASE("cuda: reduce: adds to the previous value") {
  Cuda::Context ctx;
  for (const Index n : {0, 1, 2, 300, 4096, 4097, 20000}) {
    CAPTURE(n);
    const Index start = 10;
    std::vector<Index> terms;
    Index expected = start;
    for (Index i = 0; i < n; ++i) {
      terms.push_back((i * i) % 1001 - 300);
      expected += terms.back();
    }
    CHECK(reduced(ctx, terms, start) == expected);
  }
  CHECK(reduced<double>(ctx, {0.25}, -1) == -0.75);
}

TEST_CASE("cuda: reduce: sums in the documented order") {
  for (const Index n : {1, 255, 4096, 4097, 20000}) {
    check_order<double>(n);
    check_order<float>(n);
  }
}

TEST_CASE("cuda: reduce: sums more than 4096 blocks") {
  Cuda::Context ctx;
  const Index n = (Index(1) << 24) + 12345;
  DeviceArray<Index> out(ctx, {0});
  Cuda::reduce<Index>(ctx, n, IsFourth{}, out.data());
  CHECK(out.values()[0] == (n + 3) / 4);
}
