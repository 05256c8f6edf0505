#include "gatefold/policy/options.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace gatefold;

TEST_CASE("expect_finite: numbers pass, NaN and infinities are named") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK_NOTHROW(expect_finite("Rule", "mu", -1e308));
  CHECK_THROWS_WITH_AS(expect_finite("Rule", "mu", infinity), "Rule: mu: expected a finite number, got inf",
                       ArgumentError);
  CHECK_THROWS_AS(expect_finite("Rule", "mu", -infinity), ArgumentError);
  CHECK_THROWS_AS(expect_finite("Rule", "mu", std::numeric_limits<double>::quiet_NaN()), ArgumentError);
}
