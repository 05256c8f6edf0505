#pragma once

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial.hpp"
#include "gatefold/backend/one_group.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold::update {

/// The parameters of a learned number for each item, linear in it. Without dimensions there are none.
///
///     z[n] = ⟨x[n], w⟩ + b                                                                              (1)
template <class T, class B>
struct LinearScalar {
  Tensor<T, 2, B> weight;  // [D, 1], or [0, 1]
  Tensor<T, 1, B> bias;    // [1], or [0]
  template <class F, class... P>
  static void each(F&& f, P&... p) {
    f("weight", p.weight...);
    f("bias", p.bias...);
  }

  static LinearScalar init(typename B::Context& ctx, const Initial& initial, Index dim, Seed seed) {
    if (dim == 0) return {Tensor<T, 2, B>(0, 1), Tensor<T, 1, B>(0)};
    return {initial.weights<T>(ctx, seed.fork(0), dim, 1), initial.biases<T>(ctx, seed.fork(1), dim, 1)};
  }
  void validate(const char* rule, Index dim) const {
    expect_shape(rule, "params.linear.weight", weight, {dim, 1});
    expect_shape(rule, "params.linear.bias", bias, {dim > 0 ? 1 : 0});
  }
  void forward(typename B::Context& ctx, View<const T, 2, B> x, View<T, 1, B> z) const {
    B::gemm(ctx, x, false, weight.view(), false, false, z.as(x.extent(0), 1), fn::AddBias<T, B>{bias.view().as(1, 1)});
  }
  /// Adds to dx and grads.
  void backward(typename B::Context& ctx, View<const T, 2, B> x, View<const T, 1, B> dz, View<T, 2, B> dx,
                LinearScalar& grads) const {
    auto mark = ctx.mark();
    const auto column = dz.as(x.extent(0), 1);
    B::gemm(ctx, x, true, column, false, true, grads.weight.view(), fn::Store{});
    B::grouped_sum(ctx, one_group(ctx, x.extent(0)), column, grads.bias.view().as(1, 1));
    B::gemm(ctx, column, false, weight.view(), true, true, dx, fn::Store{});
  }
};

}  // namespace gatefold::update
