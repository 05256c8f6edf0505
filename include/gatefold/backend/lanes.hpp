#pragma once

#include <limits>
#include <type_traits>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// The workers that share one row. Row functors are written once for this interface:
///
///     for (Index j = lanes.lane; j < D; j += lanes.size) partial += x(n, j);
///     const T total = lanes.sum(partial);                                       // the same on every lane
///
/// On the CPU there is one lane; a CUDA backend has a warp with the same members. Prefer the functions below for loops
/// over columns, because they run on vector registers if the backend has them:
///
///     const T total = sum_columns<T>(lanes, D, [&](auto at, Index j) { return at.load(&x(n, j)); });
///
/// from_first reads values on one lane and returns them on all lanes. If you need several values, read them in one
/// call, because independent loads then overlap.
struct OneLane {
  static constexpr int size = 1, lane = 0;

  template <class T>
  GATEFOLD_HD T sum(T v) const {
    return v;
  }
  template <class T>
  GATEFOLD_HD T max(T v) const {
    return v;
  }
};

/// Calls f() on the first lane and returns its result on every lane. Use it for values that all lanes need from one
/// address.
template <class Lanes, class F>
GATEFOLD_HD auto from_first(const Lanes& lanes, const F& f) {
  if constexpr (requires { lanes.of_first(f()); }) {
    return lanes.of_first(lanes.lane == 0 ? f() : decltype(f()){});
  } else {
    return f();
  }
}

/// A functor of rows whose columns are independent of each other. Its member `Index independent_columns() const`
/// returns the number of columns of a row. It accesses columns only in each_column, except for values that it reads
/// with from_first. A backend can then divide the columns of a row between lanes that do not synchronise.
template <class F>
concept IndependentColumns = requires(const F& f) {
  f.independent_columns();
};

/// Calls f(at, j) for the columns j < n of a row. `at` loads and stores the value at j, or a register of neighbours
/// (backend/epilogue.hpp).
template <class T, class Lanes, class F>
GATEFOLD_HD void each_column(const Lanes& lanes, Index n, const F& f) {
  if constexpr (requires { lanes.template each<T>(n, f); }) {
    lanes.template each<T>(n, f);
  } else {
    for (Index j = lanes.lane; j < n; j += lanes.size) f(OneElement<T>{}, j);
  }
}

/// row[j] = 0 for the columns j < n
template <class Lanes, class T>
GATEFOLD_HD void zero_columns(const Lanes& lanes, T* row, Index n) {
  each_column<T>(lanes, n, [&](const auto& at, Index j) {
    using Value = typename std::remove_cvref_t<decltype(at)>::Value;
    at.store(row + j, Value(T(0)));
  });
}

/// Returns Σ_j f(at, j) over the columns j < n; every lane gets the same result. f gets one value at a time, never a
/// register.
/// @order  fixed for a given n and number of lanes
template <class T, class Lanes, class F>
GATEFOLD_HD T sum_elements(const Lanes& lanes, Index n, const F& f) {
  T total = 0;
  for (Index j = lanes.lane; j < n; j += lanes.size) total += f(OneElement<T>{}, j);
  return lanes.sum(total);
}

/// Returns Σ_j f(at, j) over the columns j < n; every lane gets the same result.
/// @order  fixed for a given n, number of lanes and target
template <class T, class Lanes, class F>
GATEFOLD_HD T sum_columns(const Lanes& lanes, Index n, const F& f) {
  if constexpr (requires { lanes.template sum_of<T>(n, f); }) {
    return lanes.template sum_of<T>(n, f);
  } else {
    return sum_elements<T>(lanes, n, f);
  }
}

/// Two values, or two registers of values.
template <class V>
struct TwoValues {
  V first, second;
};
template <class V>
TwoValues(V, V) -> TwoValues<V>;

/// Returns the sums of both members of f(at, j), a TwoValues, over the columns j < n; every lane gets the same result.
/// @order  fixed for a given n, number of lanes and target
template <class T, class Lanes, class F>
GATEFOLD_HD TwoValues<T> sum_two_columns(const Lanes& lanes, Index n, const F& f) {
  if constexpr (requires { lanes.template two_sums_of<T>(n, f); }) {
    return lanes.template two_sums_of<T>(n, f);
  } else {
    TwoValues<T> total{0, 0};
    for (Index j = lanes.lane; j < n; j += lanes.size) {
      const TwoValues<T> v = f(OneElement<T>{}, j);
      total.first += v.first;
      total.second += v.second;
    }
    return {lanes.sum(total.first), lanes.sum(total.second)};
  }
}

template <class T>
inline constexpr T negative_infinity = -std::numeric_limits<T>::infinity();

/// Returns max_j f(at, j) over the columns j < n; every lane gets the same result. NaN is ignored; the result is −∞ if
/// there is no other value.
template <class T, class Lanes, class F>
GATEFOLD_HD T max_columns(const Lanes& lanes, Index n, const F& f) {
  if constexpr (requires { lanes.template max_of<T>(n, f); }) {
    return lanes.template max_of<T>(n, f);
  } else {
    T top = negative_infinity<T>;
    for (Index j = lanes.lane; j < n; j += lanes.size) {
      const T v = f(OneElement<T>{}, j);
      top = v > top ? v : top;
    }
    return lanes.max(top);
  }
}

}  // namespace gatefold
