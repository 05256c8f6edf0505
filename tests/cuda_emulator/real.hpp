// The types in which floating-point numbers are computed: .f32 in float, .f64 and the 16-bit types in double.
#pragma once

#include <bit>
#include <cfenv>
#include <cmath>
#include <type_traits>

#include "cuda_emulator/real16.hpp"

namespace gatefold::cuda_emulator {

/// Sets the rounding mode of the host for its lifetime, unless it is the usual mode.
struct RoundingMode {
  explicit RoundingMode(Rounding rounding) : changed(rounding != Rounding::nearest) {
    if (changed) {
      std::fesetround(rounding == Rounding::zero ? FE_TOWARDZERO : rounding == Rounding::up ? FE_UPWARD : FE_DOWNWARD);
    }
  }
  RoundingMode(const RoundingMode&) = delete;
  RoundingMode& operator=(const RoundingMode&) = delete;
  ~RoundingMode() {
    if (changed) std::fesetround(FE_TONEAREST);
  }
  bool changed;
};

inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

/// Returns the value of a register in the type in which it is computed. `flush` applies only to .f32.
inline float computed(float x, bool flush) { return flush ? flushed(x) : x; }
inline double computed(double x, bool) { return x; }
template <int mantissa, int least>
double computed(Real16<mantissa, least> x, bool) {
  return x.value();
}

/// Returns `x` as a register holds it: rounded to its type, flushed and saturated. It is rounded only once, because `x`
/// is exact or wide enough. A NaN becomes the canonical NaN of devices, except for .f64.
template <class T, class C>
T finished(C x, bool flush, bool saturate) {
  if (saturate) x = x > 0 ? (x < 1 ? x : C(1)) : C(0);  // NaN gives 0
  if constexpr (std::is_same_v<T, float>) {
    if (x != x) return std::bit_cast<float>(0x7fffffffu);
    return flush ? flushed(x) : x;
  } else if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return T::rounded(x);
  }
}

}  // namespace gatefold::cuda_emulator
