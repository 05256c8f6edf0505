#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/philox_run.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Loads and stores the first `count` elements of a SIMD register. The other lanes are 0; the memory of the other
/// elements is neither read nor written. An epilogue (a function that a product applies to its sums) gets this object
/// as its argument `at` (backend/epilogue.hpp).
template <class T>
struct RegisterAccess {
  using Value = Register<T>;
  int count = Register<T>::size;

  GATEFOLD_INLINE Value load(const T* p) const { return Value::load(p, count); }
  GATEFOLD_INLINE void store(T* p, Value v) const { v.store(p, count); }
  /// Loads values that are stored as bfloat16 and converts them to float (see the type `Stored` in backend.hpp). Only
  /// for T = float.
  GATEFOLD_INLINE Value load(const Bfloat16* p) const { return load_halves(p, count); }
  /// Rounds floats to bfloat16 and stores them. Only for T = float.
  GATEFOLD_INLINE void store(Bfloat16* p, Value v) const { store_halves(v, p, count); }
};

/// The object `lanes` with which a function loops over the columns of its row on the CPU (backend/lanes.hpp). One
/// thread computes the row, one SIMD register of columns at a time.
/// @order  a sum is first computed in each lane of a register, then over the lanes; the order depends only on the
///         number of columns n and the target
struct RowLanes : OneLane {
  template <class T, class F>
  void each(Index n, const F& f) const {
    constexpr Index width = Register<T>::size;
    Index j = 0;
    for (; j + width <= n; j += width) f(RegisterAccess<T>{}, j);
    if (j < n) f(RegisterAccess<T>{static_cast<int>(n - j)}, j);
  }
  template <class T, class F>
  T sum_of(Index n, const F& f) const {
    Register<T> total(T(0));
    each<T>(n, [&](auto at, Index j) { total += keep_first(at.count, f(at, j), T(0)); });
    return total.sum();
  }
  template <class T, class F>
  TwoValues<T> two_sums_of(Index n, const F& f) const {
    Register<T> first(T(0)), second(T(0));
    each<T>(n, [&](auto at, Index j) {
      const auto v = f(at, j);
      first += keep_first(at.count, v.first, T(0));
      second += keep_first(at.count, v.second, T(0));
    });
    return {first.sum(), second.sum()};
  }
  template <class T, class F>
  T max_of(Index n, const F& f) const {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    Register<T> top(lowest);
    each<T>(n, [&](auto at, Index j) { top = larger(top, keep_first(at.count, f(at, j), lowest)); });
    return top.largest();
  }
  /// Calls f(j, u) for the columns j < n in order. u is random number first + j of the stream `at`, uniform in [0, 1).
  template <class T, class F>
  void uniform(Random at, Index first, Index n, const F& f) const {
    for (Index begin = 0; begin < n; begin += PhiloxRun::size) {
      const PhiloxRun run(at, static_cast<std::uint64_t>(first + begin));
      const int count = static_cast<int>(std::min<Index>(PhiloxRun::size, n - begin));
      for (int j = 0; j < count; ++j) f(begin + j, run.uniform<T>(j));
    }
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
