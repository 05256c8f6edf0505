#pragma once

#include "gatefold/backend/backend.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold {

/// Adds the gradient of the weights of each expert e of a product c[s] = a[row(s)] W_e: grad[e] += Σ_s a[row(s)]ᵀ
/// dc[s]. With `dc_rows`, uses dc[dc_rows[s]] instead of dc[s]. If set_zero_later() has deferred the zeros of `grad`,
/// overwrites `grad` without reading it. Does nothing if grad.is_skipped(), that is, if the gradient is not needed.
/// @tparam Products  the type whose grouped_outer is called: B, or `FullPrecision<B>`
template <class Products, class Context, class B, class A, class DC, class T>
void add_weight_gradient(Context& ctx, const Groups<B>& groups, const A& a, const DC& dc, Tensor<T, 3, B>& grad,
                         View<const Index, 1, B> dc_rows = {}) {
  if (grad.is_skipped()) return;
  const bool stored = grad.take_zeros();
  Products::grouped_outer(ctx, groups, a, dc, grad.view(), !stored, dc_rows);
}

}  // namespace gatefold
