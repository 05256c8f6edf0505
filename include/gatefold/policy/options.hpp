#pragma once

#include <cmath>

#include "gatefold/core/error.hpp"

/// Checks of options that policies of several families make.
namespace gatefold {

/// @throws ArgumentError unless the option is a finite number
inline void expect_finite(const char* where, const char* option, double value) {
  expect(std::isfinite(value), where, option, "a finite number", value);
}

}  // namespace gatefold
