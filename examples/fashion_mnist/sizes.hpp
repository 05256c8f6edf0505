#pragma once

#include <gatefold/core/types.hpp>

namespace fashion {

using gatefold::Index;

/// Side and number of pixels of an image of Fashion-MNIST, and number of classes.
inline constexpr Index kSide = 28, kPixels = kSide * kSide, kClasses = 10;

}  // namespace fashion
