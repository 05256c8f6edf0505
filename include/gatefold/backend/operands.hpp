#pragma once

#include <type_traits>

#include "gatefold/core/bfloat16.hpp"

namespace gatefold {

/// Makes grouped products multiply their operands as they are. Of<T> is the type to which a T is converted before it is
/// multiplied: T itself.
struct AsTheyAre {
  template <class T>
  using Of = T;
};
/// Makes grouped products round floats to bfloat16; doubles are not rounded. Of<T> is the type to which a T is
/// converted before it is multiplied.
struct RoundedFloats {
  template <class T>
  using Of = std::conditional_t<std::is_same_v<T, float>, Bfloat16, T>;
};

}  // namespace gatefold
