#pragma once

#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), LinearScalarForward, LinearScalarBackward);

namespace update {

/// A learned linear function from an item x[n] with `dim` values to a number z[n], used by update rules with a step
/// size per item. If `dim` is 0, the parameters w and b are empty.
///
///     z[n] = ⟨x[n], w⟩ + b                                                                              (1)
template <class T, class B>
struct LinearScalar {
  static constexpr bool gradient_is_optional = true;
  Tensor<T, 2, B> weight;  // [D, 1], or [0, 1]
  Tensor<T, 1, B> bias;    // [1], or [0]
  GATEFOLD_PACK(weight, bias)

  static LinearScalar init(typename B::Context& ctx, const Initial& initial, Index dim, Seed seed) {
    if (dim == 0) return {Tensor<T, 2, B>(0, 1), Tensor<T, 1, B>(0)};
    return {initial_weights<T>(ctx, initial, seed.fork(0), dim, 1),
            initial_biases<T>(ctx, initial, seed.fork(1), dim, 1)};
  }
  void validate(const char* rule, Index dim) const {
    expect_shape(rule, "params.linear.weight", weight, {dim, 1});
    expect_shape(rule, "params.linear.bias", bias, {dim > 0 ? 1 : 0});
  }
  void forward(typename B::Context& ctx, View<const T, 2, B> x, View<T, 1, B> z) const {
    B::for_rows(ctx, x.extent(0), functor::LinearScalarForward<T, B>{x, weight.data(), bias.data(), z});
  }
  /// Computes the backward pass of the linear function z[n] = ⟨x[n], w⟩ + b. Adds to dx, and to the gradients of w and
  /// b in `grads`.
  void backward(typename B::Context& ctx, View<const T, 2, B> x, View<const T, 1, B> dz, View<T, 2, B> dx,
                LinearScalar& grads) const {
    auto mark = ctx.mark();
    const auto column = dz.as(x.extent(0), 1);
    if (!grads.weight.is_skipped()) B::gemm(ctx, x, true, column, false, true, grads.weight.view(), functor::Store{});
    if (!grads.bias.is_skipped()) B::grouped_sum(ctx, one_group(ctx, x.extent(0)), column, grads.bias.view().as(1, 1));
    B::for_rows(ctx, x.extent(0), functor::LinearScalarBackward<T, B>{dz, weight.data(), dx});
  }
};

}  // namespace update

namespace functor {

/// Computes z[n] = ⟨x[n], w⟩ + b for one item n.
template <class T, class B>
struct LinearScalarForward {
  View<const T, 2, B> x;
  const T *weight, *bias;
  View<T, 1, B> z;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const T v = inner_product<T>(lanes, x.extent(1), &x(n, 0), weight);
    if (lanes.lane == 0) z(n) = v + *bias;
  }
};
/// Adds the gradient of an item, dx[n] += dz[n] w.
template <class T, class B>
struct LinearScalarBackward {
  View<const T, 1, B> dz;
  const T* weight;
  View<T, 2, B> dx;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    each_column<T>(lanes, dx.extent(1), AddScaled<T>{dz(n), weight, &dx(n, 0)});
  }
};

}  // namespace functor

}  // namespace gatefold
