#pragma once

#include <gatefold/core/types.hpp>
#include <vector>

namespace fashion {

using gatefold::Index;

/// Side and number of pixels of an image of Fashion-MNIST, and number of classes.
inline constexpr Index kSide = 28, kPixels = kSide * kSide, kClasses = 10;

/// Mean and deviation of the training pixels, scaled to [0, 1].
inline constexpr float kMean = 0.2860f, kDeviation = 0.3530f;

/// Returns the row-major position in the image of each value of an image that is cut into patches of side `patch`. The
/// patches are in row-major order, and so are the pixels of each patch.
inline std::vector<Index> patch_order(Index patch) {
  std::vector<Index> order;
  for (Index top = 0; top < kSide; top += patch)
    for (Index left = 0; left < kSide; left += patch)
      for (Index y = top; y < top + patch; ++y)
        for (Index x = left; x < left + patch; ++x) order.push_back(y * kSide + x);
  return order;
}

}  // namespace fashion
