#include "gatefold/backend/math.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace gatefold;

namespace {

template <class T>
constexpr T infinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T not_a_number = std::numeric_limits<T>::quiet_NaN();

}  // namespace

TEST_CASE_TEMPLATE("functor::math: scalar functions equal the standard library", T, float, double) {
  for (T v = -20; v <= 20; v += T(0.37)) {
    CHECK(functor::math::exp(v) == std::exp(v));
    CHECK(functor::math::erf(v) == std::erf(v));
    CHECK(functor::math::tanh(v) == std::tanh(v));
    CHECK(functor::math::abs(v) == std::fabs(v));
    CHECK(functor::math::log(v * v) == std::log(v * v));
    CHECK(functor::math::sqrt(v * v) == std::sqrt(v * v));
  }
}

TEST_CASE_TEMPLATE("where_positive: zero, minus zero and NaN select the second value", T, float, double) {
  CHECK(functor::math::where_positive(T(1), T(2), T(3)) == 2);
  CHECK(functor::math::where_positive(T(-1), T(2), T(3)) == 3);
  CHECK(functor::math::where_positive(T(0), T(2), T(3)) == 3);
  CHECK(functor::math::where_positive(T(-0.0), T(2), T(3)) == 3);
  CHECK(functor::math::where_positive(not_a_number<T>, T(2), T(3)) == 3);
  CHECK(functor::math::where_positive(infinity<T>, T(2), T(3)) == 2);
}

TEST_CASE_TEMPLATE("sigmoid and softplus: match extended precision", T, float, double) {
  const double epsilon = std::numeric_limits<T>::epsilon();
  for (T v = -30; v <= 30; v += T(0.173)) {
    const long double x = v;
    const auto sigmoid = static_cast<double>(1 / (1 + std::exp(-x)));
    const auto softplus = static_cast<double>(std::log1p(std::exp(x)));
    CAPTURE(v);
    CHECK(std::abs(static_cast<double>(functor::math::sigmoid(v)) - sigmoid) <= 4 * epsilon * sigmoid);
    CHECK(std::abs(static_cast<double>(functor::math::softplus(v)) - softplus) <= 4 * epsilon * softplus);
  }
}

TEST_CASE_TEMPLATE("sigmoid and softplus: reach their limits for large arguments", T, float, double) {
  CHECK(functor::math::sigmoid(T(0)) == T(0.5));
  CHECK(functor::math::sigmoid(T(1000)) == 1);
  CHECK(functor::math::sigmoid(T(-1000)) == 0);
  CHECK(functor::math::sigmoid(infinity<T>) == 1);
  CHECK(functor::math::sigmoid(-infinity<T>) == 0);
  CHECK(functor::math::softplus(T(1000)) == 1000);
  CHECK(functor::math::softplus(T(-1000)) == 0);
  CHECK(functor::math::softplus(infinity<T>) == infinity<T>);
  CHECK(functor::math::softplus(-infinity<T>) == 0);
  CHECK(std::isnan(functor::math::sigmoid(not_a_number<T>)));
  CHECK(std::isnan(functor::math::softplus(not_a_number<T>)));
  CHECK(functor::math::softplus(T(-50)) > 0);
}
