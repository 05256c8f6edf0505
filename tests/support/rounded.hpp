#pragma once

#include <doctest/doctest.h>

#include <limits>

namespace gatefold::support {

/// What a few operations in T give of `expected`: within 8 roundings of it, or of 1 where it is less.
template <class T = double>
doctest::Approx rounded(double expected) {
  return doctest::Approx(expected).epsilon(8.0 * static_cast<double>(std::numeric_limits<T>::epsilon()));
}

}  // namespace gatefold::support
