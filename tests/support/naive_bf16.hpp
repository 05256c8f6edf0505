#pragma once

#include <type_traits>

#include "gatefold/core/bfloat16.hpp"
#include "support/naive_backend.hpp"

/// Plain loops that round the factors and results of experts' products to bfloat16, as CudaBf16 does.
namespace gatefold::test {

struct ToBfloat16 {
  static float of(float v) { return Bfloat16::from(v); }
};
struct NaiveBf16 : NaivePrimitives<NaiveBf16, ToBfloat16> {
  using FullPrecision = NaivePrimitives<NaiveBf16, AsItIs>;
  template <class T>
  using Stored = std::conditional_t<std::is_same_v<T, float>, Bfloat16, T>;
  template <class T>
  using SlotValue = Stored<T>;
};

}  // namespace gatefold::test
