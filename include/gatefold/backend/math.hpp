#pragma once

#include <cmath>

#include "gatefold/core/config.hpp"

/// Functions of one float or double, for example exp. SIMD registers (backend/cpu/register.hpp) have functions with the
/// same names. A functor can therefore write `using functor::math::exp; exp(v)` once for a float, a double and a SIMD
/// register of floats or doubles.
namespace gatefold::functor::math {

template <class T>
GATEFOLD_HD T exp(T v) {
  return std::exp(v);
}
template <class T>
GATEFOLD_HD T erf(T v) {
  return std::erf(v);
}
template <class T>
GATEFOLD_HD T log(T v) {
  return std::log(v);
}
template <class T>
GATEFOLD_HD T sqrt(T v) {
  return std::sqrt(v);
}
template <class T>
GATEFOLD_HD T tanh(T v) {
  return std::tanh(v);
}
template <class T>
GATEFOLD_HD T abs(T v) {
  return std::abs(v);
}
/// Returns 1 / v.
template <class T>
GATEFOLD_HD T reciprocal(T v) {
  return 1 / v;
}
/// Returns a if v > 0, else b. NaN is not positive.
template <class T>
GATEFOLD_HD T where_positive(T v, T a, T b) {
  return v > 0 ? a : b;
}

/// Returns 1 / (1 + exp(-v)). If exp overflows to infinity, the result is the correct limit 0.
template <class T>
GATEFOLD_HD T sigmoid(T v) {
  return 1 / (1 + std::exp(-v));
}
/// Returns log(1 + exp(v)), computed so that exp does not overflow.
template <class T>
GATEFOLD_HD T softplus(T v) {
  return v > 0 ? v + std::log1p(std::exp(-v)) : std::log1p(std::exp(v));
}

}  // namespace gatefold::functor::math
