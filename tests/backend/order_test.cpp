#include "gatefold/backend/order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace gatefold;

namespace {

/// Returns groups of numbers with equal order_key(), lowest group first. NaN is lowest.
template <class T>
std::vector<std::vector<T>> ascending() {
  using limits = std::numeric_limits<T>;
  const T small = limits::denorm_min(), least = limits::min(), most = limits::max(), infinite = limits::infinity();
  return {{limits::quiet_NaN(), -limits::quiet_NaN(), limits::signaling_NaN()},
          {-infinite},
          {-most},
          {-T(1)},
          {-least},
          {-small},
          {-T(0), T(0)},
          {small},
          {least},
          {T(1)},
          {std::nextafter(T(1), T(2))},
          {most},
          {infinite}};
}

}  // namespace

TEST_CASE_TEMPLATE("order_key: keeps the order of numbers, NaN is lowest", T, float, double) {
  const auto classes = ascending<T>();
  for (std::size_t a = 0; a < classes.size(); ++a)
    for (std::size_t b = 0; b < classes.size(); ++b)
      for (const T v : classes[a])
        for (const T w : classes[b]) {
          CHECK((functor::order_key(v) < functor::order_key(w)) == (a < b));
          CHECK((functor::order_key(v) == functor::order_key(w)) == (a == b));
          CHECK(functor::ranks_before(v, 3, w, 5) == (a >= b));
          CHECK(functor::ranks_before(v, 5, w, 3) == (a > b));
          CHECK_FALSE(functor::ranks_before(v, 5, v, 5));
        }
}

TEST_CASE_TEMPLATE("is_finite and magnitude_bits: read the bits of the number", T, float, double) {
  for (const auto& equals : ascending<T>())
    for (const T v : equals) {
      CHECK(functor::is_finite(v) == std::isfinite(v));
      CHECK(functor::magnitude_bits(v) == functor::magnitude_bits(-v));
    }
  CHECK_FALSE(functor::finite_math_only);  // this test is not compiled with -ffast-math
}

namespace {

/// Orders larger values first, ties by the lower index.
struct ByValue {
  const int* value;
  bool operator()(Index a, Index b) const { return value[a] != value[b] ? value[a] > value[b] : a < b; }
};
std::vector<int> values_with_ties(Index count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<int> v(static_cast<std::size_t>(count));
  for (int& x : v) x = static_cast<int>(generator() % 7);
  return v;
}
std::vector<Index> shuffled(Index count, unsigned seed) {
  std::vector<Index> list(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) list[static_cast<std::size_t>(i)] = i;
  std::shuffle(list.begin(), list.end(), std::mt19937(seed));
  return list;
}

}  // namespace

TEST_CASE("heap_sort: equals std::sort for any length and order") {
  for (const Index count : {0, 1, 2, 3, 4, 7, 8, 100, 257})
    for (unsigned seed = 0; seed < 5; ++seed) {
      const auto value = values_with_ties(count, seed);
      auto list = shuffled(count, seed), expected = list;
      std::sort(expected.begin(), expected.end(), ByValue{value.data()});
      functor::heap_sort(list.data(), count, ByValue{value.data()});
      CHECK(list == expected);
    }
}

TEST_CASE("offer: keeps the first candidates, in any order of offers") {
  for (const Index count : {0, 1, 5, 60})
    for (const Index room : {0, 1, 4, 60, 100})
      for (unsigned seed = 0; seed < 5; ++seed) {
        const auto value = values_with_ties(count, seed);
        std::vector<Index> list(static_cast<std::size_t>(room), -1);
        auto expected = shuffled(count, seed);
        Index held = 0;
        for (const Index candidate : expected)
          functor::offer(list.data(), room, held, candidate, ByValue{value.data()});
        CHECK(held == std::min(room, count));
        functor::heap_sort(list.data(), held, ByValue{value.data()});
        list.resize(static_cast<std::size_t>(held));
        std::sort(expected.begin(), expected.end(), ByValue{value.data()});
        expected.resize(static_cast<std::size_t>(held));
        CHECK(list == expected);
      }
}
