#pragma once

#include <limits>
#include <type_traits>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// The workers that share one row. Row functors are written once against this interface:
///
///     for (Index j = lanes.lane; j < D; j += lanes.size) partial += x(n, j);
///     const T total = lanes.sum(partial);                                       // the same on every lane
///
/// One lane on the CPU; a CUDA backend puts a warp behind the same names. Loops over columns are better left to the
/// functions below, which run on vector registers where a backend has them:
///
///     const T total = sum_columns<T>(lanes, D, [&](auto at, Index j) { return at.load(&x(n, j)); });
///
/// What one lane can read for all is shared by `from_first`: best in one go, as loads that do not need each other are
/// then waited for together.
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

/// f() as the first lane finds it, the same on every lane: for what all of them need from one place in memory.
template <class Lanes, class F>
GATEFOLD_HD auto from_first(const Lanes& lanes, const F& f) {
  if constexpr (requires { lanes.of_first(f()); }) {
    return lanes.of_first(lanes.lane == 0 ? f() : decltype(f()){});
  } else {
    return f();
  }
}

/// A functor of rows whose columns are independent of each other: it says how many a row has, `Index
/// independent_columns() const`, touches them in each_column, and does nothing else but what from_first finds. A
/// backend may then share out the columns of a row to lanes that do not meet.
template <class F>
concept IndependentColumns = requires(const F& f) {
  f.independent_columns();
};

/// f(at, j) for the columns j < n of a row: `at` loads and stores what stands at j, a value or a register of neighbours
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

/// Σ_j f(at, j) over the columns j < n, the same on every lane, for an f that takes one value at a time, never a
/// register.
/// @order  fixed for given n and lanes
template <class T, class Lanes, class F>
GATEFOLD_HD T sum_elements(const Lanes& lanes, Index n, const F& f) {
  T total = 0;
  for (Index j = lanes.lane; j < n; j += lanes.size) total += f(OneElement<T>{}, j);
  return lanes.sum(total);
}

/// Σ_j f(at, j) over the columns j < n, the same on every lane.
/// @order  fixed for given n, lanes and target
template <class T, class Lanes, class F>
GATEFOLD_HD T sum_columns(const Lanes& lanes, Index n, const F& f) {
  if constexpr (requires { lanes.template sum_of<T>(n, f); }) {
    return lanes.template sum_of<T>(n, f);
  } else {
    return sum_elements<T>(lanes, n, f);
  }
}

/// Two values, or two registers of them.
template <class V>
struct TwoValues {
  V first, second;
};
template <class V>
TwoValues(V, V) -> TwoValues<V>;

/// The sums of both values that f(at, j) returns, TwoValues{a, b}, over the columns j < n, the same on every lane.
/// @order  as sum_columns
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

/// max_j f(at, j) over the columns j < n, the same on every lane; NaN is passed over, −∞ where nothing else is.
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
