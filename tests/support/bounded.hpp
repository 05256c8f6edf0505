#pragma once

#include <cmath>
#include <limits>

#include "gatefold/core/types.hpp"

/// Exact numbers with the largest allowed error of a result in T.
namespace gatefold::support {

/// Half the distance from 1 to the next larger number of type T.
template <class T>
inline constexpr double unit_roundoff = static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;

/// An exact number, and the largest allowed error of the result in T.
struct Bounded {
  double value = 0, error = 0;
};

/// A sum of products with the error that the engine promises: at most (terms + 8) u Σ |a b|, plus the effect of the
/// errors of the factors. u is the unit roundoff of T.
template <class T>
class BoundedSum {
 public:
  void add(Bounded a, Bounded b) {
    sum_.value += a.value * b.value;
    sum_.error += std::abs(a.value) * b.error + a.error * std::abs(b.value) + a.error * b.error;
    absolute_ += std::abs(a.value * b.value);
    ++terms_;
  }
  void add(double a, double b) { add(Bounded{a, 0}, Bounded{b, 0}); }
  Bounded result() const {
    return {sum_.value, sum_.error + static_cast<double>(terms_ + 8) * (unit_roundoff<T> + 0x1p-53) * absolute_};
  }

 private:
  Bounded sum_;
  double absolute_ = 0;
  Index terms_ = 0;
};

/// Returns f, the value of a function at b, with its error bound. The function's |f'| and |f''| are at most `steep`,
/// and the function itself may have an error of 16 u (1 + |b|).
template <class T>
Bounded apply(double f, Bounded b, double steep = 1.3) {
  return {f, steep * b.error + 16 * unit_roundoff<T> * (1 + std::abs(b.value))};
}

template <class T>
bool within(T result, Bounded expected) {
  return std::abs(static_cast<double>(result) - expected.value) <= expected.error;  // false for NaN
}

}  // namespace gatefold::support
