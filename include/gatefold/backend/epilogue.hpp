#pragma once

#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

/// Epilogues: functors that a product applies to each sum just before it stores it.
///
/// A product calls `epilogue(at, e, s, j, v)` once for element (s, j) of expert e (0 in a plain product) and stores the
/// result. On the CPU, v is a register of neighbouring columns j, j+1, …, and `at` reads and writes that many values
/// (fewer at the right edge, with the same arithmetic). On a device, v is one value, or eight neighbours after a
/// product of bfloat16 (cuda/epilogue.cuh). An epilogue therefore accesses memory only through `at`. It can be copied,
/// and calls do not change it.
namespace gatefold {

/// An accessor (the argument `at` of an epilogue) for one element. It is used on devices, and by CPU code that does not
/// run on registers.
template <class T>
struct OneElement {
  using Value = T;
  GATEFOLD_HD T load(const T* p) const { return *p; }
  GATEFOLD_HD void store(T* p, T v) const { *p = v; }
  /// Loads a float that is stored as bfloat16 (see the type `Stored` in backend.hpp). Only for T = float.
  GATEFOLD_HD T load(const Bfloat16* p) const { return *p; }
  /// Stores a float as bfloat16. Only for T = float.
  GATEFOLD_HD void store(Bfloat16* p, T v) const { *p = Bfloat16::from(v); }
};

/// True if F runs on registers: F declares `Element`, and for_each calls f(at, i) (backend.hpp). Other functors are
/// called as f(i).
template <class F>
concept RegisterFunctor = requires {
  typename F::Element;
};

namespace functor {

/// c = v
struct Store {
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A&, Index, Index, Index, typename A::Value v) const {
    return v;
  }
};

/// c = v + bias[e, j]
template <class T, class B>
struct AddBias {
  View<const T, 2, B> bias;  // [E, columns]

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index e, Index, Index j, typename A::Value v) const {
    return v + at.load(&bias(e, j));
  }
};

/// c = v + addend[s, j]
template <class T, class B>
struct AddTo {
  View<const T, 2, B> addend;  // the shape of c

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index s, Index j, typename A::Value v) const {
    return v + at.load(&addend(s, j));
  }
};

}  // namespace functor
}  // namespace gatefold
