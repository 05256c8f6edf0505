#pragma once

#include "gatefold/core/bfloat16.hpp"
#include "gatefold/tensor/view.hpp"

/// Epilogues: functors that a matrix product applies to each element of its result just before it stores the element,
/// for example to add a bias.
///
/// A product calls `epilogue(at, e, s, j, v)` once for the element v in row s and column j, and stores the returned
/// value; e is the expert of the row (0 in a plain product). On the CPU, v is a SIMD register of neighbouring columns
/// j, j+1, …, and `at` reads and writes the values of these columns. At the right edge, `at` reads and writes fewer
/// values, but the arithmetic is the same. On a device, v is one value or, after a product of bfloat16, four or eight
/// neighbouring values (cuda/epilogue.cuh). An epilogue therefore accesses memory only through `at`. An epilogue can be
/// copied, and calls do not change it.
namespace gatefold {

/// An accessor that loads and stores one element at a time. (A functor gets an accessor as its argument `at` and uses
/// it for all its loads and stores.) It is used on devices, and by CPU code that does not use SIMD registers.
template <class T>
struct OneElement {
  using Value = T;
  GATEFOLD_HD T load(const T* p) const { return *p; }
  GATEFOLD_HD void store(T* p, T v) const { *p = v; }
  /// Loads a float that is stored as bfloat16 (see the type `Stored` in backend.hpp). Only for T = float.
  GATEFOLD_HD T load(const Bfloat16* p) const { return *p; }
  /// Rounds a float to bfloat16 and stores it. Only for T = float.
  GATEFOLD_HD void store(Bfloat16* p, T v) const { *p = Bfloat16::from(v); }
};

/// True for functors that can process a whole SIMD register of elements. Such a functor f declares the type `Element`.
/// The primitive for_each (backend.hpp) calls it as f(at, i), and f loads and stores through the accessor `at`. Other
/// functors are called as f(i).
template <class F>
concept RegisterFunctor = requires {
  typename F::Element;
};

namespace functor {

/// The epilogue that stores the product unchanged: c = v.
struct Store {
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A&, Index, Index, Index, typename A::Value v) const {
    return v;
  }
};

/// An epilogue that adds a bias: c = v + bias[e, j], for expert e and column j.
template <class T, class B>
struct AddBias {
  View<const T, 2, B> bias;  // [E, columns]

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index e, Index, Index j, typename A::Value v) const {
    return v + at.load(&bias(e, j));
  }
};

/// An epilogue that adds a matrix: c = v + addend[s, j], for row s and column j.
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
