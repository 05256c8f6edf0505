#pragma once

#include "gatefold/backend/backend.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// Adds the gradient of the weights of a product: grad[e] += Σ_s a[row(s)]ᵀ dc[s], or with dc[dc_rows[s]] instead of
/// dc[s] if `dc_rows` is given. If the zeros of `grad` are deferred (set_zero_later), overwrites `grad` without reading
/// it, with zeros for experts without slots. If grad.is_skipped(), does nothing.
/// @tparam Products  the type whose grouped_outer is called: B, or `FullPrecision<B>`
template <class Products, class Context, class B, class A, class DC, class T>
void add_weight_gradient(Context& ctx, const Groups<B>& groups, const A& a, const DC& dc, Tensor<T, 3, B>& grad,
                         View<const Index, 1, B> dc_rows = {}) {
  if (grad.is_skipped()) return;
  const bool stored = grad.take_zeros();
  Products::grouped_outer(ctx, groups, a, dc, grad.view(), !stored, dc_rows);
}

}  // namespace gatefold
