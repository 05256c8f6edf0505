#pragma once

#include "gatefold/core/config.hpp"

namespace gatefold {

/// The workers that share one row. Row functors are written once against this interface:
///
///     for (Index j = lanes.lane; j < D; j += lanes.size) partial += x(n, j);
///     const T total = lanes.sum(partial);                                       // the same on every lane
///
/// One lane on the CPU; a CUDA backend puts a warp behind the same names.
struct OneLane {
  static constexpr int size = 1, lane = 0;

  template <class T>
  GATEFOLD_HD T sum(T v) const {
    return v;
  }
  template <class T>
  GATEFOLD_HD T max(T v) const {
    return v;
  }
};

}  // namespace gatefold
