#pragma once

#include <type_traits>

#include "gatefold/core/bfloat16.hpp"

namespace gatefold {

/// Operands of grouped products: Of<T> is the type that a T is multiplied as, T itself or a rounded type. Here: T.
struct AsTheyAre {
  template <class T>
  using Of = T;
};
/// Floats are rounded to bfloat16; doubles are not rounded.
struct RoundedFloats {
  template <class T>
  using Of = std::conditional_t<std::is_same_v<T, float>, Bfloat16, T>;
};

}  // namespace gatefold
