#pragma once

#include <doctest/doctest.h>

#include <limits>

namespace gatefold::support {

/// Accepts the result of a few operations in T. Its error may be 8 ε (1 + |expected|), where ε is the epsilon of T.
template <class T = double>
doctest::Approx rounded(double expected) {
  return doctest::Approx(expected).epsilon(8.0 * static_cast<double>(std::numeric_limits<T>::epsilon()));
}

}  // namespace gatefold::support
