#include "gatefold/update/adaptive_root.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>
#include <limits>

using namespace gatefold;

TEST_CASE("AdaptiveRoot (1): ε outside or inside the root") {
  const functor::AdaptiveRoot<double> outside{0.3, false}, inside{0.3, true};
  CHECK(outside.value(4.0) == doctest::Approx(2.3).epsilon(1e-15));
  CHECK(inside.value(4.0) == doctest::Approx(std::sqrt(4.3)).epsilon(1e-15));
  CHECK(outside.value(0.0) == doctest::Approx(0.3).epsilon(1e-15));
  CHECK(inside.value(0.0) == doctest::Approx(std::sqrt(0.3)).epsilon(1e-15));
}

TEST_CASE("AdaptiveRoot: the slope is exact, and 0 at 0") {
  for (const bool within : {false, true}) {
    const functor::AdaptiveRoot<double> root{0.2, within};
    for (const double v : {0.01, 0.5, 3.0}) {
      const double h = 1e-6 * v, numeric = (root.value(v + h) - root.value(v - h)) / (2 * h);
      CHECK(root.slope(v) == doctest::Approx(numeric).epsilon(1e-8));  // 2^-53 / h
    }
  }
  for (const bool within : {false, true}) {  // (2)
    const functor::AdaptiveRoot<double> root{0.2, within};
    for (const double v : {0.01, 0.5, 3.0})
      for (const double rest : {0.0, 0.3, -2.0})
        CHECK(root.passed(v, 0.7, rest) ==
              doctest::Approx((0.7 * root.value(v) - 2 * root.slope(v) * (0.7 * v - rest)) / root.value(v))
                  .epsilon(1e-13));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  for (const bool within : {false, true})
    for (const double rest : {0.0, 1.0, infinity, -infinity})
      CHECK(functor::AdaptiveRoot<double>{0.2, within}.passed(infinity, 0.7, rest) == 0);
  CHECK(functor::AdaptiveRoot<double>{0.2, false}.passed(0.0, 0.7, 0.0) == doctest::Approx(0.7).epsilon(1e-15));
  CHECK(functor::AdaptiveRoot<double>{0.2, false}.slope(0.0) == 0);
  CHECK(functor::AdaptiveRoot<double>{0.25, true}.slope(0.0) == doctest::Approx(1).epsilon(1e-15));
}
