#pragma once

#include <cmath>

#include "gatefold/core/error.hpp"

/// Checks of options that several families of policies use.
namespace gatefold {

/// Requires that an option is finite.
/// @throws ArgumentError unless the option is a finite number
inline void expect_finite(const char* where, Printed option, double value) {
  expect(std::isfinite(value), where, option, "a finite number", value);
}
/// Requires that an option is finite and positive.
/// @throws ArgumentError unless the option is a finite number above 0
inline void expect_positive(const char* where, Printed option, double value) {
  expect(value > 0, where, option, "more than 0", value);
  expect_finite(where, option, value);
}

}  // namespace gatefold
