#pragma once

#include <initializer_list>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/tensor.hpp"

/// Checks and projections (products with weight matrices) that all attentions share. `where` is the name of the calling
/// attention in error messages.
namespace gatefold::detail_::attending {

inline void expect_heads(const char* where, Index model_dim, Index heads) {
  expect(model_dim >= 1, where, "model_dim", "at least 1", model_dim);
  expect(heads >= 1 && model_dim % heads == 0, where, "heads", Joined{"a divisor of model_dim = ", model_dim}, heads);
}
void expect_projections(const char* where, const auto& p, std::initializer_list<Index> extents) {
  expect_shape(where, "params.query", p.query, extents);
  expect_shape(where, "params.key", p.key, extents);
  expect_shape(where, "params.value", p.value, extents);
  expect_shape(where, "params.output", p.output, extents);
}

/// Writes the matrix product y = x w.
template <class T, class B>
void project(typename B::Context& ctx, In<T, 2, B> x, const Tensor<T, 2, B>& w, Out<T, 2, B> y) {
  B::gemm(ctx, x, false, w.view(), false, false, y, functor::Store{});
}
/// Backward pass of y = x w: adds dy wᵀ to dx, and xᵀ dy to dw unless dw is skipped (marked as not needed).
template <class T, class B>
void project_backward(typename B::Context& ctx, In<T, 2, B> x, const Tensor<T, 2, B>& w, In<T, 2, B> dy,
                      Out<T, 2, B> dx, Tensor<T, 2, B>& dw) {
  if (!dw.is_skipped()) B::gemm(ctx, x, true, dy, false, true, dw.view(), functor::Store{});
  B::gemm(ctx, dy, false, w.view(), true, true, dx, functor::Store{});
}

}  // namespace gatefold::detail_::attending
