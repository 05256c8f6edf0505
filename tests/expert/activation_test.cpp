#include "gatefold/expert/activation.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "gatefold/backend/cpu/register.hpp"
#include "support/larger.hpp"

using namespace gatefold;

namespace {

using Real = long double;
constexpr Real pi = std::numbers::pi_v<Real>;

/// The textbook formula of each activation.
Real formula(Identity, Real v) { return v; }
Real formula(Relu, Real v) { return std::max(v, Real(0)); }
Real formula(Gelu, Real v) { return v * std::erfc(-v / std::sqrt(Real(2))) / 2; }
Real formula(GeluTanh, Real v) {
  return v / 2 * (1 + std::tanh(std::sqrt(2 / pi) * (v + Real(0.044715L) * v * v * v)));
}
Real formula(Silu, Real v) { return v / (1 + std::exp(-v)); }
Real formula(Cubic, Real v) { return v * v * v; }
Real formula(Relu2, Real v) { return v > 0 ? v * v : 0; }
Real formula(ClampedSilu, Real v) {
  const Real gate = std::min(v, Real(7));
  return gate / (1 + std::exp(Real(-1.702L) * gate));
}
Real formula(ClampedPlusOne, Real v) { return std::clamp(v, Real(-7), Real(7)) + 1; }

}  // namespace

TEST_CASE_TEMPLATE("activations: values equal the formulas in long double", Act, Identity, Relu, Gelu, GeluTanh, Silu,
                   Cubic, Relu2, ClampedSilu, ClampedPlusOne) {
  // The tolerance is relative to |v| if |v| exceeds the value, because 1 + erf and 1 + tanh cancel for very negative v.
  for (int i = -1200; i <= 1200; ++i) {
    const double v = i / 100.0;
    const double expected = static_cast<double>(formula(Act{}, v)), scale = std::max(std::abs(v), std::abs(expected));
    CHECK(std::abs(Act::value(v) - expected) <= 1e-15 * scale);
    CHECK(std::abs(double(Act::value(static_cast<float>(v))) - double(formula(Act{}, static_cast<float>(v)))) <=
          5e-7 * scale);
  }
}

TEST_CASE_TEMPLATE("activations: derivatives equal central differences", Act, Identity, Relu, Gelu, GeluTanh, Silu,
                   Cubic, Relu2, ClampedSilu, ClampedPlusOne) {
  // Computes the slope of the formula in long double with a five-point stencil. The error of the stencil is of order
  // h⁴, and rounding adds 1e-19 / h.
  const Real h = 1e-3L;
  for (int i = -1199; i <= 1200; i += 2) {
    const double v = i / 100.0;
    auto f = [&](Real offset) { return formula(Act{}, v + offset); };
    const double numeric = static_cast<double>((8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h));
    CHECK(std::abs(Act::slope(v) - numeric) <= 2e-12 * std::max(1.0, std::abs(numeric)));
  }
}

TEST_CASE("activations: exact and approximate GELU are close but different") {
  double most = 0;
  for (int i = -500; i <= 500; ++i)
    most = support::larger(most, std::abs(Gelu::value(i / 100.0) - GeluTanh::value(i / 100.0)));
  CHECK(most < 5e-4);  // the largest difference is 4.73e-4, at v = ±2.7
  CHECK(most > 3e-4);
}

TEST_CASE("Relu: the derivative is 0 at 0 and at NaN") {
  CHECK(Relu::value(0.0) == 0);
  CHECK(Relu::slope(0.0) == 0);
  CHECK(Relu::slope(1e-300) == 1);
  CHECK(Relu::slope(-1e-300) == 0);
  CHECK(Relu::slope(std::numeric_limits<double>::quiet_NaN()) == 0);
}

TEST_CASE("Relu2: squares positive values; the derivative is 0 at 0") {
  CHECK(Relu2::value(-3.0) == 0);
  CHECK(Relu2::value(3.0) == 9);
  CHECK(Relu2::slope(0.0) == 0);
  CHECK(Relu2::slope(-3.0) == 0);
  CHECK(Relu2::slope(3.0) == 6);
}

TEST_CASE("ClampedSilu, ClampedPlusOne: clamp at 7 with derivatives from below") {
  for (const double v : {7.5, 1e3, 1e30, std::numeric_limits<double>::infinity()}) {
    CHECK(ClampedSilu::value(v) == ClampedSilu::value(7.0));
    CHECK(ClampedSilu::slope(v) == 0);
    CHECK(ClampedPlusOne::value(v) == 8);
    CHECK(ClampedPlusOne::value(-v) == -6);
    CHECK(ClampedPlusOne::slope(v) == 0);
    CHECK(ClampedPlusOne::slope(-v) == 0);
  }
  // At the limit torch.clamp has the derivative 1.
  CHECK(ClampedSilu::slope(7.0) == Silu::slope(7 * 1.702));
  CHECK(ClampedPlusOne::slope(7.0) == 1);
  CHECK(ClampedPlusOne::slope(-7.0) == 1);
  CHECK(ClampedSilu::value(-1e30) == 0);
}

TEST_CASE_TEMPLATE("activations: stay finite for large inputs", Act, Relu, Gelu, GeluTanh, Silu) {
  for (const float v : {1e2f, 1e4f, 1e9f, 3e19f, 1e30f, 3e38f}) {
    CHECK(Act::value(v) == v);
    CHECK(Act::slope(v) == 1);
    CHECK(Act::value(-v) == 0);
    CHECK(Act::slope(-v) == 0);
  }
}

TEST_CASE_TEMPLATE("activations: NaN stays NaN", Act, Identity, Relu, Gelu, GeluTanh, Silu, Cubic, Relu2, ClampedSilu,
                   ClampedPlusOne) {
  CHECK(std::isnan(Act::value(std::numeric_limits<double>::quiet_NaN())));
}

TEST_CASE_TEMPLATE("activations: SIMD registers give the values of their elements", Act, Identity, Relu, Gelu, GeluTanh,
                   Silu, Cubic, Relu2, ClampedSilu, ClampedPlusOne) {
  // If the gate is near 1, the slope of GeluTanh multiplies the rounding error of 1 - gate by v (0.21 v² + 1.6). In
  // float this factor reaches about 35, at the v from which on 1 - gate is 0.
  constexpr double of_slope = std::is_same_v<Act, GeluTanh> ? 4 : 1;
  const auto agrees = [](auto zero, double tolerance) {
    using T = decltype(zero);
    using V = cpu::Register<T>;
    for (int i = -900; i <= 900; ++i) {
      T from[V::size], value[V::size], slope[V::size];
      for (int j = 0; j < V::size; ++j) from[j] = static_cast<T>(i / 100.0 + j / 1000.0);
      Act::value(V::load(from)).store(value);
      Act::slope(V::load(from)).store(slope);
      for (int j = 0; j < V::size; ++j) {
        CHECK(std::abs(value[j] - Act::value(from[j])) <= T(tolerance) * (1 + std::abs(value[j])));
        CHECK(std::abs(slope[j] - Act::slope(from[j])) <= T(of_slope * tolerance) * (1 + std::abs(slope[j])));
      }
    }
  };
  agrees(float(0), 5e-7);  // about 8 times the unit roundoff
  agrees(double(0), 1e-14);
}
