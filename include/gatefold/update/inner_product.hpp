#pragma once

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold::fn {

/// The terms of ⟨a, b⟩, for reduce in Sum.
template <class T, class Sum = T>
struct InnerProduct {
  const T *a, *b;
  GATEFOLD_HD Sum operator()(Index i) const { return Sum(a[i]) * Sum(b[i]); }
};
/// out[n] = ⟨a[n], b[n]⟩, summed in Sum
template <class T, class B, class Sum = T>
struct RowInnerProduct {
  View<const T, 2, B> a, b;
  View<Sum, 1, B> out;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    Sum v = 0;
    for (Index d = lanes.lane; d < a.extent(1); d += lanes.size) v += Sum(a(n, d)) * Sum(b(n, d));
    v = lanes.sum(v);
    if (lanes.lane == 0) out(n) = v;
  }
};

}  // namespace gatefold::fn
