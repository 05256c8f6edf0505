#include "gatefold/backend/order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

using namespace gatefold;

namespace {

/// Returns groups of equal numbers from smallest to largest.
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
