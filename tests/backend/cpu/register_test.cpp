#include "gatefold/backend/cpu/register.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gatefold/backend/math.hpp"
#include "support/larger.hpp"

using namespace gatefold;
using cpu::Register;

namespace {

// An activation as a user writes it: the same body for scalars and registers.
struct Silu {
  template <class V>
  V operator()(V v) const {
    using functor::math::exp;
    return v / (1 + exp(-v));
  }
};
struct Erf {
  template <class V>
  V operator()(V v) const {
    using functor::math::erf;
    return erf(v);
  }
};
struct Exp {
  template <class V>
  V operator()(V v) const {
    using functor::math::exp;
    return exp(v);
  }
};

template <class T, class F>
T one(const F& f, T x) {
  T lanes[Register<T>::size];
  f(Register<T>(x)).store(lanes);
  for (const T lane : lanes) CHECK(std::memcmp(&lane, lanes, sizeof(T)) == 0);
  return lanes[0];
}

// Returns how many units in the last place of float or double separate a result from one in higher precision.
template <class T>
double ulps(T result, long double exact) {
  const T nearest = static_cast<T>(exact);
  if (std::isinf(nearest) || nearest == 0) return result == nearest ? 0 : 1e9;
  int exponent;
  std::frexp(nearest, &exponent);
  return static_cast<double>(std::fabs(result - exact) / std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits));
}

template <class T, class F, class G>
double worst(const F& f, const G& exact, double low, double high) {
  constexpr int steps = 20000;
  double most = 0;
  for (int i = 0; i <= steps; ++i) {
    const T x = static_cast<T>(low + (high - low) * i / steps);
    T lanes[Register<T>::size];
    f(Register<T>(x)).store(lanes);
    most = support::larger(most, ulps(lanes[0], exact(static_cast<long double>(x))));
  }
  return most;
}

long double exact_exp(long double x) { return std::exp(x); }
long double exact_erf(long double x) { return std::erf(x); }

}  // namespace

TEST_CASE_TEMPLATE("Register: arithmetic accepts registers, scalars and integers", T, float, double) {
  CHECK(one([](auto v) { return 2 * v + 1; }, T(3)) == T(7));
  CHECK(one([](auto v) { return 1 - v / 4; }, T(2)) == T(0.5));
  CHECK(one([](auto v) { return (1 / v - 1) * T(0.5); }, T(2)) == T(-0.25));
  CHECK(one([](auto v) { return -v - v * v; }, T(3)) == T(-12));
  CHECK(one([](auto v) { return madd(v, v, -v); }, T(3)) == T(6));
  CHECK(one([](auto v) { return sqrt(v); }, T(2)) == std::sqrt(T(2)));
  CHECK(one(
            [](auto v) {
              v += v;
              v *= v;
              v -= v;
              return v;
            },
            T(2)) == T(0));
}

TEST_CASE_TEMPLATE("Register: a product is rounded before a later sum", T, float, double) {
  const T e = std::numeric_limits<T>::epsilon(), x = 1 + e, square = x * x;  // exact: 1 + 2e + e²
  volatile T rounded = square;
  CHECK(one([&](auto v) { return v * v - rounded; }, x) == T(0));
}

TEST_CASE_TEMPLATE("where_positive: zero, negative and NaN select the second value", T, float, double) {
  const auto pick = [](auto v) { return where_positive(v, decltype(v)(T(1)), decltype(v)(T(2))); };
  CHECK(one(pick, std::numeric_limits<T>::denorm_min()) == T(1));
  CHECK(one(pick, std::numeric_limits<T>::infinity()) == T(1));
  for (const T x : {T(0), T(-0.0), T(-1), -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()})
    CHECK(one(pick, x) == T(2));
}

TEST_CASE("exp: errors are at most 2 ulp") {
  CHECK(worst<float>(Exp{}, exact_exp, -87.3, 88.3) <= 2);
  CHECK(worst<float>(Exp{}, exact_exp, -1, 1) <= 2);
  CHECK(worst<double>(Exp{}, exact_exp, -708, 709) <= 2);
  CHECK(worst<double>(Exp{}, exact_exp, -1, 1) <= 2);
}

TEST_CASE_TEMPLATE("exp: returns known results for special values", T, float, double) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  CHECK(one(Exp{}, T(0)) == T(1));
  CHECK(one(Exp{}, inf) == inf);
  CHECK(one(Exp{}, T(1000)) == inf);
  CHECK(one(Exp{}, T(-1000)) == T(0));
  CHECK(one(Exp{}, -inf) == T(0));
  T lanes[Register<T>::size];
  exp(Register<T>(std::numeric_limits<T>::quiet_NaN())).store(lanes);
  CHECK(std::isnan(lanes[0]));
  if (std::is_same_v<T, float>) {  // the least argument with a normal result, and the next lower one
    const T least = T(-87.33654022216796875);
    CHECK(one(Exp{}, least) >= std::numeric_limits<T>::min());
    CHECK(one(Exp{}, std::nextafter(least, -inf)) == T(0));
  }
  CHECK(one(Silu{}, T(-1000)) == T(0));
  CHECK(one(Silu{}, T(1000)) == T(1000));
}

TEST_CASE_TEMPLATE("exp: lanes with subnormal results return 0", T, float, double) {
  constexpr T inf = std::numeric_limits<T>::infinity(), least = std::numeric_limits<T>::min();
  const T edge = std::log(least);
  const std::vector<T> values{
      -inf, T(-1e30), T(1.2) * edge, T(1.01) * edge, edge - T(0.01), edge + T(0.01), T(0.99) * edge, 0, 1, inf};
  constexpr int size = Register<T>::size;
  for (std::size_t shift = 0; shift < values.size(); ++shift) {
    T in[size], out[size];
    for (int i = 0; i < size; ++i) in[i] = values[(static_cast<std::size_t>(i) + shift) % values.size()];
    exp(Register<T>::load(in)).store(out);
    for (int i = 0; i < size; ++i) {
      const T exact = std::exp(in[i]);
      CAPTURE(in[i]);
      if (exact < least || exact == inf) {
        CHECK(out[i] == (exact == inf ? inf : 0));
      } else {
        CHECK(std::abs(out[i] - exact) <= T(4) * std::numeric_limits<T>::epsilon() * exact);
      }
    }
  }
}

TEST_CASE("erf: errors are at most 2 ulp, also near 0") {
  CHECK(worst<float>(Erf{}, exact_erf, -5, 5) <= 2);
  CHECK(worst<float>(Erf{}, exact_erf, 0.9, 0.95) <= 2);
  CHECK(worst<float>(Erf{}, exact_erf, -1e-3, 1e-3) <= 2);
  CHECK(worst<float>(Erf{}, exact_erf, 1e-30, 1e-20) <= 2);
  CHECK(worst<float>(Erf{}, exact_erf, 5, 1e6) <= 1);
  CHECK(worst<double>(Erf{}, exact_erf, -6, 6) <= 2);
}

TEST_CASE_TEMPLATE("erf: returns known results for special values", T, float, double) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  CHECK(one(Erf{}, inf) == T(1));
  CHECK(one(Erf{}, -inf) == T(-1));
  CHECK(one(Erf{}, T(0)) == T(0));
  CHECK(std::signbit(one(Erf{}, T(-0.0))));
  T lanes[Register<T>::size];
  erf(Register<T>(std::numeric_limits<T>::quiet_NaN())).store(lanes);
  CHECK(std::isnan(lanes[0]));
}

TEST_CASE_TEMPLATE("Register: functions equal the functions of single values", T, float, double) {
  using V = Register<T>;
  const T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const auto inverse = [](V v) { return reciprocal(v); };
  const auto root = [](V v) { return sqrt(v); };
  double worst_inverse = 0;
  for (double x = 1e-30; x < 1e30; x *= 1.0137) {
    worst_inverse = support::larger(worst_inverse, ulps(one<T>(inverse, T(x)), 1 / static_cast<long double>(T(x))));
    CHECK(one<T>(root, T(x)) == std::sqrt(T(x)));
  }
  CHECK(worst_inverse <= 1.01);
  CHECK(one<T>(inverse, T(0)) == infinity);
  CHECK(one<T>(inverse, -infinity) == 0);
  CHECK(one<T>(inverse, infinity) == 0);
  CHECK(std::isnan(one<T>(inverse, nan)));
  CHECK(std::isnan(one<T>(root, T(-1))));
  CHECK(one<T>([&](V v) { return larger(v, V(nan)); }, T(2)) == 2);
  CHECK(one<T>([&](V v) { return larger(v, V(T(3))); }, T(2)) == 3);

  T x[V::size], y[V::size];
  for (int i = 0; i < V::size; ++i) x[i] = T(i % 3 - 5);
  for (int count = 0; count <= V::size; ++count) {
    keep_first(count, V::load(x), T(9)).store(y);
    T total = 0;
    for (int i = 0; i < V::size; ++i) CHECK(y[i] == (i < count ? x[i] : T(9)));
    for (int i = 0; i < V::size; ++i) total += y[i];
    CHECK(V::load(y).sum() == total);
    CHECK(V::load(y).largest() == *std::max_element(y, y + V::size));
  }
}
