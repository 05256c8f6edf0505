#include "gatefold/backend/cpu/row_lanes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/naive.hpp"

using namespace gatefold;

TEST_CASE_TEMPLATE("each_column: visits each column once and no other element", T, float, double) {
  for (const Index n : {0, 1, 3, 8, 15, 16, 17, 31, 64, 100}) {
    const auto x = naive::random_vector<T>(n, 1);
    std::vector<T> y(static_cast<std::size_t>(n) + 2, T(7));
    each_column<T>(cpu::RowLanes{}, n, [&](auto at, Index j) {
      at.store(&y[static_cast<std::size_t>(j) + 1], at.load(&x[static_cast<std::size_t>(j)]));
    });
    CHECK(std::equal(x.begin(), x.end(), y.begin() + 1));
    CHECK(y.front() == 7);
    CHECK(y.back() == 7);
  }
}

TEST_CASE_TEMPLATE("RowLanes: sums and maxima over columns equal loops", T, float, double) {
  for (const Index n : {1, 3, 8, 15, 16, 17, 31, 64, 1000}) {
    auto x = naive::random_vector<T>(n, 2);
    for (T& v : x) v -= 3;  // all negative: the lanes past the end hold 0, which must not count
    const auto at_x = [&](auto at, Index j) { return at.load(&x[static_cast<std::size_t>(j)]); };
    double total = 0, size = 0;
    T top = x[0];
    for (const T v : x) total += v, size += std::abs(v), top = std::max(top, v);
    const auto plus_one = [&](auto at, Index j) { return at.load(&x[static_cast<std::size_t>(j)]) + T(1); };
    CHECK(std::abs(sum_columns<T>(cpu::RowLanes{}, n, at_x) - total) <= size * std::numeric_limits<T>::epsilon() * 8);
    CHECK(std::abs(sum_columns<T>(cpu::RowLanes{}, n, plus_one) - (total + static_cast<double>(n))) <=
          size * std::numeric_limits<T>::epsilon() * 8);
    const TwoValues<T> both = sum_two_columns<T>(cpu::RowLanes{}, n, [&](auto at, Index j) {
      return TwoValues{at_x(at, j), plus_one(at, j)};
    });
    CHECK(both.first == sum_columns<T>(cpu::RowLanes{}, n, at_x));
    CHECK(both.second == sum_columns<T>(cpu::RowLanes{}, n, plus_one));
    const TwoValues<T> slow_both = sum_two_columns<T>(OneLane{}, n, [&](auto at, Index j) {
      return TwoValues{at_x(at, j), plus_one(at, j)};
    });
    CHECK(slow_both.first == sum_columns<T>(OneLane{}, n, at_x));
    CHECK(slow_both.second == sum_columns<T>(OneLane{}, n, plus_one));
    CHECK(max_columns<T>(cpu::RowLanes{}, n, at_x) == top);
    CHECK(max_columns<T>(OneLane{}, n, at_x) == top);
    CHECK(std::abs(sum_columns<T>(OneLane{}, n, at_x) - total) <= size * std::numeric_limits<T>::epsilon() * double(n));
    x[static_cast<std::size_t>(n / 2)] = std::numeric_limits<T>::quiet_NaN();
    const T rest = max_columns<T>(cpu::RowLanes{}, n, at_x), slow = max_columns<T>(OneLane{}, n, at_x);
    CHECK(rest == slow);
    CHECK(!std::isnan(rest));
    CHECK(std::isnan(sum_columns<T>(cpu::RowLanes{}, n, at_x)));
  }
  CHECK(max_columns<T>(cpu::RowLanes{}, 0, [](auto at, Index) { return typename decltype(at)::Value{}; }) ==
        -std::numeric_limits<T>::infinity());
}

using cpu::Register;
using cpu::RegisterAccess;

TEST_CASE_TEMPLATE("RegisterAccess: a tail accesses only its elements", T, float, double) {
  constexpr int size = Register<T>::size;
  for (int count = 1; count <= size; ++count) {
    // `in` has exactly `count` elements on the heap, so that a sanitizer sees a read past them.
    std::vector<T> in(static_cast<std::size_t>(count)), out(static_cast<std::size_t>(size) + 1, T(-7));
    for (int i = 0; i < count; ++i) in[static_cast<std::size_t>(i)] = T(i + 1);
    const RegisterAccess<T> at{count};
    const Register<T> v = at.load(in.data());
    T lanes[size];
    v.store(lanes);
    for (int i = 0; i < size; ++i) CHECK(lanes[i] == (i < count ? T(i + 1) : T(0)));
    at.store(out.data(), v);
    for (int i = 0; i <= size; ++i) CHECK(out[static_cast<std::size_t>(i)] == (i < count ? T(i + 1) : T(-7)));
    at.store(in.data(), v);
  }
}

TEST_CASE("RegisterAccess: rounds to bfloat16 and writes only its elements") {
  constexpr int size = Register<float>::size;
  const auto values = naive::random_vector<float>(size, 4);
  for (int count = 1; count <= size; ++count) {
    const RegisterAccess<float> at{count};
    std::vector<Bfloat16> halves(static_cast<std::size_t>(size) + 1, Bfloat16{std::uint16_t(0x4040)});  // the bits of 3
    at.store(halves.data(), Register<float>::load(values.data()));
    for (int i = 0; i <= size; ++i)
      CHECK(halves[static_cast<std::size_t>(i)].bits ==
            (i < count ? Bfloat16::from(values[static_cast<std::size_t>(i)]).bits : 0x4040));
    // `exact` has exactly `count` elements to read.
    const std::vector<Bfloat16> exact(halves.begin(), halves.begin() + count);
    float lanes[size];
    at.load(exact.data()).store(lanes);
    for (int i = 0; i < size; ++i)
      CHECK(lanes[i] == (i < count ? static_cast<float>(halves[static_cast<std::size_t>(i)]) : 0.0f));
  }
}
