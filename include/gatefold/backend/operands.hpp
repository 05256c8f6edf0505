#pragma once

#include <type_traits>

#include "gatefold/core/bfloat16.hpp"

namespace gatefold {

/// What the grouped products of a backend multiply: Of<T> is T, or what T is rounded to.
struct AsTheyAre {
  template <class T>
  using Of = T;
};
/// Floats are rounded to bfloat16, doubles are not.
struct RoundedFloats {
  template <class T>
  using Of = std::conditional_t<std::is_same_v<T, float>, Bfloat16, T>;
};

}  // namespace gatefold
