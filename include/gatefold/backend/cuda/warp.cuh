#pragma once

#include "gatefold/core/config.hpp"

namespace gatefold::device {

/// The lanes of a row on a device: one warp (backend/lanes.hpp). Sums and maxima are exchanged in a butterfly, so that
/// every lane computes the same bits (maxima: up to the sign of zero, and without NaN). What a lane wrote to memory
/// before, the others may read after.
///
/// Callable from host code, where it would be wrong: functors are compiled for both sides and called on one.
struct Warp {
  static constexpr int size = 32;
  int lane;

  template <class T>
  GATEFOLD_HD T sum(T v) const {
#ifdef __CUDA_ARCH__
    __syncwarp();  // shuffles alone do not order memory
    for (int distance = size / 2; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
#endif
    return v;
  }
  template <class T>
  GATEFOLD_HD T max(T v) const {
#ifdef __CUDA_ARCH__
    __syncwarp();  // shuffles alone do not order memory
    for (int distance = size / 2; distance > 0; distance /= 2) {
      const T other = __shfl_xor_sync(0xffffffffu, v, distance);
      v = other > v ? other : v;
    }
#endif
    return v;
  }
};

}  // namespace gatefold::device
