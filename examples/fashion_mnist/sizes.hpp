#pragma once

#include <gatefold/core/types.hpp>

namespace fashion {

using gatefold::Index;

/// Sizes of the images of Fashion-MNIST.
inline constexpr Index kSide = 28, kPixels = kSide * kSide, kClasses = 10;

}  // namespace fashion
