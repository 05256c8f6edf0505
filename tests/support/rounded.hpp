#pragma once

#include <doctest/doctest.h>

#include <limits>

namespace gatefold::support {

/// Accepts the result of a few operations in T: within 8 roundings of `expected`, or of 1 if |expected| is less.
template <class T = double>
doctest::Approx rounded(double expected) {
  return doctest::Approx(expected).epsilon(8.0 * static_cast<double>(std::numeric_limits<T>::epsilon()));
}

}  // namespace gatefold::support
