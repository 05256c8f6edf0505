#pragma once

#include "gatefold/backend/backend.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// grad[e] += Σ_s a[row(s)]ᵀ dc[s], or dc[dc_rows[s]] where these are given: the gradient of the weights of a product.
/// Where the gradient's zeros are deferred (set_zero_later) nothing is read: the sums are stored, and zeros for experts
/// without slots. A gradient that is_skipped is left alone.
/// @tparam Products  whose grouped_outer: B, or `FullPrecision<B>`
template <class Products, class Context, class B, class A, class DC, class T>
void add_weight_gradient(Context& ctx, const Groups<B>& groups, const A& a, const DC& dc, Tensor<T, 3, B>& grad,
                         View<const Index, 1, B> dc_rows = {}) {
  if (grad.is_skipped()) return;
  const bool stored = grad.take_zeros();
  Products::grouped_outer(ctx, groups, a, dc, grad.view(), !stored, dc_rows);
}

}  // namespace gatefold
