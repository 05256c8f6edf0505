#pragma once

#include <gatefold/core/types.hpp>

namespace fashion {

using gatefold::Index;

/// Of Fashion-MNIST's images.
inline constexpr Index kSide = 28, kPixels = kSide * kSide, kClasses = 10;

}  // namespace fashion
