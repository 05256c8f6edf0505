#pragma once

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold::fn {

/// The terms of ⟨a, b⟩, for reduce.
template <class T>
struct InnerProduct {
  const T *a, *b;
  GATEFOLD_HD T operator()(Index i) const { return a[i] * b[i]; }
};
/// out[n] = ⟨a[n], b[n]⟩
template <class T, class B>
struct RowInnerProduct {
  View<const T, 2, B> a, b;
  View<T, 1, B> out;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    T v = 0;
    for (Index d = lanes.lane; d < a.extent(1); d += lanes.size) v += a(n, d) * b(n, d);
    v = lanes.sum(v);
    if (lanes.lane == 0) out(n) = v;
  }
};

}  // namespace gatefold::fn
