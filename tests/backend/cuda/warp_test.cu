// The lanes of a warp: the sums and maxima they exchange, and the column loops of lanes.hpp.
#include "gatefold/backend/cuda/warp.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gatefold/backend/lanes.hpp"
#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index kLanes = detail_::device::Warp::size;

/// Stores the sum and maximum over one value of each lane, as each lane gets them.
template <class T>
struct Exchange {
  const T* values;
  T *sums, *maxima;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index at = row * kLanes + lanes.lane;
    sums[at] = lanes.sum(values[at]);
    maxima[at] = lanes.max(values[at]);
  }
};

/// Stores sum and maximum of a row, as each lane gets them, and a copy of the row.
template <class T>
struct Columns {
  Index columns;
  const T* x;
  T *copies, *sums, *maxima;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const T* mine = x + row * columns;
    T* copy = copies + row * columns;
    const auto load = [&](const auto& at, Index j) { return at.load(mine + j); };
    sums[row * kLanes + lanes.lane] = sum_columns<T>(lanes, columns, load);
    maxima[row * kLanes + lanes.lane] = max_columns<T>(lanes, columns, load);
    // The copy is wrong if two lanes compute a column, or no lane does.
    each_column<T>(lanes, columns,
                   [&](const auto& at, Index j) { at.store(copy + j, at.load(copy + j) + at.load(mine + j)); });
  }
};

/// Values of the first lane, which from_first passes to every lane.
struct Found {
  Index large;
  float numbers[3];
};
struct ShareFound {
  const Index* large;
  const float* numbers;
  Found* found;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    found[row * kLanes + lanes.lane] = from_first(lanes, [&] {
      return Found{large[row], {numbers[3 * row], numbers[3 * row + 1], numbers[3 * row + 2]}};
    });
  }
};

/// Stores sums, maxima and first values of rows that share a warp. Rows with an odd index add their sum twice. Every
/// third row stores nothing.
template <int Size>
__global__ void parts_kernel(const double* values, double* sums, double* maxima, double* firsts) {
  const int lane = static_cast<int>(threadIdx.x) % Size;
  const detail_::device::WarpPart<Size> lanes{lane};
  const int at = static_cast<int>(threadIdx.x), row = at / Size;
  if (row % 3 == 2) return;
  double sum = lanes.sum(values[at]);
  if (row % 2 == 1) sum += lanes.sum(values[at]);
  sums[at] = sum;
  maxima[at] = lanes.max(values[at]);
  firsts[at] = lanes.of_first(values[at]);
}

template <int Size>
void check_parts() {
  CAPTURE(Size);
  constexpr int threads = 64;
  Cuda::Context ctx;
  const auto values = random_vector<double>(threads, 7);
  const std::vector<double> none(threads, -9);
  DeviceArray<double> given(ctx, values), sums(ctx, none), maxima(ctx, none), firsts(ctx, none);
  parts_kernel<Size><<<1, threads, 0, ctx.stream()>>>(given.data(), sums.data(), maxima.data(), firsts.data());
  const auto sum = sums.values(), maximum = maxima.values(), first = firsts.values();
  for (int at = 0; at < threads; ++at) {
    const int row = at / Size;
    const auto i = static_cast<std::size_t>(at), begin = static_cast<std::size_t>(row * Size);
    const auto from = values.begin() + row * Size, to = from + Size;
    double expected = 0;
    for (auto v = from; v != to; ++v) expected += *v;
    if (row % 2 == 1) expected *= 2;
    const bool left = row % 3 == 2;
    CHECK(std::abs(sum[i] - (left ? -9 : expected)) <= 1e-14);
    if (!left) CHECK(sum[i] == sum[begin]);
    CHECK(maximum[i] == (left ? -9 : *std::max_element(from, to)));
    CHECK(first[i] == (left ? -9 : *from));
  }
}

/// Returns the sum over 32 lanes as a butterfly: at every distance each lane adds its partner's value.
template <class T>
T butterfly(std::vector<T> v) {
  for (std::size_t distance = kLanes / 2; distance > 0; distance /= 2) {
    const std::vector<T> before = v;
    for (std::size_t lane = 0; lane < kLanes; ++lane) v[lane] = before[lane] + before[lane ^ distance];
  }
  return v[0];
}

template <class T>
void check_exchange(const std::vector<T>& values) {
  const Index rows = static_cast<Index>(values.size()) / kLanes;
  Cuda::Context ctx;
  const std::vector<T> none(values.size());
  DeviceArray<T> given(ctx, values), sums(ctx, none), maxima(ctx, none);
  Cuda::for_rows(ctx, rows, Exchange<T>{given.data(), sums.data(), maxima.data()});
  std::vector<T> expected_sums, expected_maxima;
  for (auto row = values.begin(); row != values.end(); row += kLanes) {
    expected_sums.insert(expected_sums.end(), kLanes, butterfly(std::vector<T>(row, row + kLanes)));
    expected_maxima.insert(expected_maxima.end(), kLanes, *std::max_element(row, row + kLanes));
  }
  CHECK(difference(expected_sums, sums.values()) == "");
  CHECK(difference(expected_maxima, maxima.values()) == "");
}

template <class T>
void check_columns(Index columns) {
  CAPTURE(columns);
  constexpr Index rows = 3;
  Cuda::Context ctx;
  const auto size = static_cast<std::size_t>(rows * columns), lanes = static_cast<std::size_t>(rows * kLanes);
  const std::vector<T> values = random_vector<T>(rows * columns, 3);
  DeviceArray<T> x(ctx, values), copies(ctx, std::vector<T>(size)), sums(ctx, std::vector<T>(lanes)),
      maxima(ctx, std::vector<T>(lanes));
  Cuda::for_rows(ctx, rows, Columns<T>{columns, x.data(), copies.data(), sums.data(), maxima.data()});
  std::vector<T> expected_sums, expected_maxima;
  for (Index row = 0; row < rows; ++row) {
    std::vector<T> partial(kLanes);  // columns lane, lane + 32, …
    T top = -std::numeric_limits<T>::infinity();
    for (Index j = 0; j < columns; ++j) {
      const T v = values[static_cast<std::size_t>(row * columns + j)];
      partial[static_cast<std::size_t>(j % kLanes)] += v;
      top = std::max(top, v);
    }
    expected_sums.insert(expected_sums.end(), kLanes, butterfly(partial));
    expected_maxima.insert(expected_maxima.end(), kLanes, top);
  }
  CHECK(difference(values, copies.values()) == "");
  CHECK(difference(expected_sums, sums.values()) == "");
  CHECK(difference(expected_maxima, maxima.values()) == "");
}

}  // namespace

TEST_CASE("cuda: warp sum: every lane has the butterfly's bits") {
  check_exchange(random_vector<double>(5 * kLanes, 1));
  check_exchange(random_vector<float>(5 * kLanes, 2));
  check_exchange(random_integers(5 * kLanes, -(Index(1) << 40), Index(1) << 41, 3));  // exchanges all 64 bits
}

TEST_CASE("cuda: from_first: gives every lane the first lane's value") {
  constexpr Index rows = 3;
  Cuda::Context ctx;
  const std::vector<Index> large = random_integers(rows, -(Index(1) << 40), Index(1) << 41, 4);
  const auto numbers = random_vector<float>(3 * rows, 5);
  DeviceArray<Index> on_large(ctx, large);
  DeviceArray<float> on_numbers(ctx, numbers);
  DeviceArray<Found> found(ctx, std::vector<Found>(rows * kLanes));
  Cuda::for_rows(ctx, rows, ShareFound{on_large.data(), on_numbers.data(), found.data()});
  const auto got = found.values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t row = i / kLanes;
    CHECK(got[i].large == large[row]);
    for (std::size_t k = 0; k < 3; ++k) CHECK(got[i].numbers[k] == numbers[3 * row + k]);
  }
}

TEST_CASE("cuda: warp max: finds negative, infinite values in any lane") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> values(3 * kLanes, -7);
  values[19] = -2;
  std::fill_n(values.begin() + kLanes, kLanes, -infinity);
  values[2 * kLanes + 31] = infinity;
  check_exchange(values);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    std::vector<float> one(kLanes);
    one[lane] = 1;
    check_exchange(one);
  }
}

TEST_CASE("cuda: column sums and maxima: are equal on every lane") {
  for (const Index columns : {0, 1, 31, 32, 33, 100}) {
    check_columns<double>(columns);
    check_columns<float>(columns);
  }
}

TEST_CASE("cuda: max_columns: ignores NaN") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  constexpr Index columns = 40;
  Cuda::Context ctx;
  std::vector<double> values(2 * columns, nan);
  values[columns + 35] = -3;  // in the second row; lane 3 has met NaN before
  DeviceArray<double> x(ctx, values), copies(ctx, values), sums(ctx, std::vector<double>(2 * kLanes)),
      maxima(ctx, std::vector<double>(2 * kLanes));
  Cuda::for_rows(ctx, 2, Columns<double>{columns, x.data(), copies.data(), sums.data(), maxima.data()});
  std::vector<double> expected(kLanes, -infinity);
  expected.resize(2 * kLanes, -3);
  CHECK(difference(expected, maxima.values()) == "");
}

TEST_CASE("cuda: rows that share a warp are independent") {
  check_parts<1>();
  check_parts<2>();
  check_parts<4>();
  check_parts<8>();
  check_parts<16>();
  check_parts<32>();
}
