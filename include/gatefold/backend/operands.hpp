#pragma once

#include <type_traits>

#include "gatefold/core/bfloat16.hpp"

namespace gatefold {

/// The option of a backend to multiply the operands of grouped products (one matrix product per expert) without
/// rounding them. Of<T> is the type to which a T is converted before it is multiplied: T itself.
struct AsTheyAre {
  template <class T>
  using Of = T;
};
/// The option of a backend to round the float operands of grouped products (one matrix product per expert) to bfloat16;
/// doubles are not rounded. Of<T> is the type to which a T is converted before it is multiplied.
struct RoundedFloats {
  template <class T>
  using Of = std::conditional_t<std::is_same_v<T, float>, Bfloat16, T>;
};

}  // namespace gatefold
