#pragma once

#include <gatefold/core/types.hpp>

namespace studies::mot {

/// Returns E|s_1 + … + s_c| for c independent signs, each ±1 with probability 1/2: 0, 1, 1, 3/2, 3/2, 15/8, … for
/// c = 0, 1, 2, …
inline double mean_of_signs(gatefold::Index c) {
  double mean = c > 0 ? 1 : 0;
  for (gatefold::Index k = 3; k <= c; k += 2) mean *= static_cast<double>(k) / static_cast<double>(k - 1);
  return mean;
}

}  // namespace studies::mot
