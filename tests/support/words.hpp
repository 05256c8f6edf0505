#pragma once

#include <bit>
#include <cstdint>

#include "gatefold/backend/cpu/words.hpp"

namespace gatefold::support {

/// Returns value i of a packed word.
template <class P>
float value_of_word(float word, Index i) {
  const auto bits = std::bit_cast<std::uint32_t>(word);
  if constexpr (cpu::values_of_word<P> == 2)
    return Bfloat16{static_cast<std::uint16_t>(i % 2 ? bits >> 16 : bits & 0xffff)};
  else
    return word;
}
template <class P>
double value_of_word(double word, Index) {
  return word;
}

/// Returns a value as products with elements P use it: rounded if P is Bfloat16.
template <class P, class T>
T factor(T v) {
  if constexpr (std::is_same_v<P, Bfloat16>)
    return Bfloat16::from(v);
  else
    return v;
}

}  // namespace gatefold::support
