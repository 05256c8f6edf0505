#pragma once

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"

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

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
