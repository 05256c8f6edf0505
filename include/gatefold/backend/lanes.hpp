#pragma once

#include <limits>
#include <type_traits>

#include "gatefold/backend/epilogue.hpp"

namespace gatefold {

/// The lanes of a row are the threads that compute the row together. On the CPU there is one lane (this type); a CUDA
/// backend has a warp with the same members. Functors of rows are written once for this interface:
///
///     for (Index j = lanes.lane; j < D; j += lanes.size) partial += x(n, j);
///     const T total = lanes.sum(partial);                                       // the same on every lane
///
/// Prefer the functions below for loops over columns, because they run on vector registers if the backend has them:
///
///     const T total = sum_columns<T>(lanes, D, [&](auto at, Index j) { return at.load(&x(n, j)); });
///
/// from_first reads values on one lane and returns them on all lanes. If you need several values, return a struct of
/// them from one call, because independent loads then overlap.
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

/// Calls f() on the first lane and returns the result on every lane (lanes are the threads that share a row). Use this
/// function for values that all lanes read from one address.
template <class Lanes, class F>
GATEFOLD_HD auto from_first(const Lanes& lanes, const F& f) {
  if constexpr (requires { lanes.of_first(f()); }) {
    return lanes.of_first(lanes.lane == 0 ? f() : decltype(f()){});
  } else {
    return f();
  }
}

/// A functor of rows that computes each column independently of the others. Its member `Index independent_columns()
/// const` returns the number of columns. It accesses columns only in each_column, except for values that it reads with
/// from_first. A backend can then divide the columns of a row between threads that do not synchronise.
template <class F>
concept IndependentColumns = requires(const F& f) {
  f.independent_columns();
};

/// Calls f(at, j) for the columns j < n of a row. The accessor `at` loads and stores the value in column j, or a SIMD
/// register of neighbouring columns (epilogue.hpp).
template <class T, class Lanes, class F>
GATEFOLD_HD void each_column(const Lanes& lanes, Index n, const F& f) {
  if constexpr (requires { lanes.template each<T>(n, f); }) {
    lanes.template each<T>(n, f);
  } else {
    for (Index j = lanes.lane; j < n; j += lanes.size) f(OneElement<T>{}, j);
  }
}

/// Sets the columns j < n of a row to 0.
template <class Lanes, class T>
GATEFOLD_HD void zero_columns(const Lanes& lanes, T* row, Index n) {
  each_column<T>(lanes, n, [&](const auto& at, Index j) {
    using Value = typename std::remove_cvref_t<decltype(at)>::Value;
    at.store(row + j, Value(T(0)));
  });
}

/// Returns Σ_j f(at, j) over the columns j < n of a row. Every lane (thread that shares the row) gets the same result.
/// The accessor `at` loads one value at a time, never a SIMD register.
/// @order  the order of the additions is fixed for a given n and number of lanes
template <class T, class Lanes, class F>
GATEFOLD_HD T sum_elements(const Lanes& lanes, Index n, const F& f) {
  T total = 0;
  for (Index j = lanes.lane; j < n; j += lanes.size) total += f(OneElement<T>{}, j);
  return lanes.sum(total);
}

/// Returns Σ_j f(at, j) over the columns j < n of a row. Every lane (thread that shares the row) gets the same result.
/// The accessor `at` loads one value, or a SIMD register of neighbouring columns.
/// @order  the order of the additions is fixed for a given n, number of lanes and target
template <class T, class Lanes, class F>
GATEFOLD_HD T sum_columns(const Lanes& lanes, Index n, const F& f) {
  if constexpr (requires { lanes.template sum_of<T>(n, f); }) {
    return lanes.template sum_of<T>(n, f);
  } else {
    return sum_elements<T>(lanes, n, f);
  }
}

/// Two values that are summed at the same time. V is a number or a SIMD register of numbers.
template <class V>
struct TwoValues {
  V first, second;
};
template <class V>
TwoValues(V, V) -> TwoValues<V>;

/// Returns two sums over the columns j < n of a row: f(at, j) returns a pair (TwoValues), and each member of the pair
/// is summed. Every lane (thread that shares the row) gets the same result.
/// @order  the order of the additions is fixed for a given n, number of lanes and target
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

/// Returns the maximum of f(at, j) over the columns j < n of a row. Every lane (thread that shares the row) gets the
/// same result. NaN is ignored; the result is −∞ if there is no other value.
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

namespace functor {

/// Copies rows of a matrix: to[to_rows[i], :] = from[from_rows[i], :] for each i. If `from_rows` is empty, row i of
/// `from` is read. If `to_rows` is empty, row i of `to` is written. Values are rounded if Y is smaller than T.
/// @tparam T     the type of a value between load and store
/// @tparam X, Y  the types of the values of `from` and of `to`
template <class T, class X, class Y, class B>
struct CarryRows {
  View<const Index, 1, B> from_rows;
  View<const X, 2, B> from;
  View<const Index, 1, B> to_rows;
  View<Y, 2, B> to;
  GATEFOLD_HD void operator()(const auto& lanes, Index i) const {
    const Index source = from_rows.empty() ? i : from_rows(i), target = to_rows.empty() ? i : to_rows(i);
    each_column<T>(lanes, to.extent(1),
                   [&](const auto& at, Index j) { at.store(&to(target, j), at.load(&from(source, j))); });
  }
};

/// Computes the sum over the first `count` positions of each sequence n, times the factor `share`: total[n] = share ·
/// Σ_l x[n, l] for l < count, added in ascending order of l. x[n, l] are the D values of sequence n at position l.
template <class T, class B>
struct SumPositions {
  Index count;  // at least 1
  T share;
  View<const T, 2, B> x;  // [N, length · D], length >= count
  View<T, 2, B> total;    // [N, D]

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index dim = total.extent(1);
    const T* const from = x.data() + n * x.extent(1);
    T* const to = total.data() + n * dim;
    each_column<T>(lanes, dim, [&](const auto& at, Index d) {
      auto sum = at.load(from + d);
      for (Index l = 1; l < count; ++l) sum += at.load(from + l * dim + d);
      at.store(to + d, sum * share);
    });
  }
};
/// The backward pass of SumPositions (total[n] = share · Σ_l x[n, l]): adds the gradient of `total` to the gradient of
/// x, dx[n, l] += share · dtotal[n] for l < count.
template <class T, class B>
struct SumPositionsBackward {
  Index count;
  T share;
  View<const T, 2, B> dtotal;
  View<T, 2, B> dx;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index dim = dtotal.extent(1);
    const T* const from = dtotal.data() + n * dim;
    T* const to = dx.data() + n * dx.extent(1);
    each_column<T>(lanes, dim, [&](const auto& at, Index d) {
      const auto v = at.load(from + d) * share;
      for (Index l = 0; l < count; ++l) at.store(to + l * dim + d, at.load(to + l * dim + d) + v);
    });
  }
};

}  // namespace functor

}  // namespace gatefold
