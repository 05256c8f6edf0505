#pragma once

#include "gatefold/backend/elementwise.hpp"

namespace gatefold {

namespace functor {

/// Returns the product a[i] · b[i] in the type `Sum`: term i of an inner product that the primitive `reduce` sums.
template <class T, class Sum = T>
struct InnerProduct {
  const T *a, *b;
  GATEFOLD_HD Sum operator()(Index i) const { return Sum(a[i]) * Sum(b[i]); }
};
/// Writes the inner product of row n of two matrices: out[n] = ⟨a[n], b[n]⟩, summed in the type `Sum`.
template <class T, class B, class Sum = T>
struct RowInnerProduct {
  View<const T, 2, B> a, b;
  View<Sum, 1, B> out;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Sum v = inner_product<Sum>(lanes, a.extent(1), &a(n, 0), &b(n, 0));
    if (lanes.lane == 0) out(n) = v;
  }
};

}  // namespace functor

namespace update {

/// The default for an argument that sums values over all parts of a batch, for example over processes. WholeBatch is
/// for a batch with one part and does nothing.
struct WholeBatch {
  template <class C, class T>
  void operator()(C&, T*, Index) const {}
};

/// Adds the inner product of two matrices, Σ_n ⟨a[n], b[n]⟩, to *out. The sum has the type `Sum`.
/// @order  row by row, then the rows in a fixed order
template <class C, class T, class Sum, class B>
void add_inner_product(C& ctx, View<const T, 2, B> a, NonDeduced<View<const T, 2, B>> b, Sum* out) {
  auto mark = ctx.mark();
  auto rows = ctx.template scratch<Sum>(a.extent(0));
  B::for_rows(ctx, a.extent(0), functor::RowInnerProduct<T, B, Sum>{a, b, rows});
  B::template reduce<Sum>(ctx, a.extent(0), functor::Term<Sum>{rows.data()}, out);
}

}  // namespace update
}  // namespace gatefold
