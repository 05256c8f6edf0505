#pragma once

#include "gatefold/core/config.hpp"
#include "gatefold/loss/loss.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

namespace fn {

template <class T>
struct SquaredDifference {
  const T *y, *target;
  GATEFOLD_HD T operator()(Index i) const { return (y[i] - target[i]) * (y[i] - target[i]); }
};
template <class T>
struct SquaredDifferenceBackward {
  const T *y, *target;
  T scale;
  T* dy;
  GATEFOLD_HD void operator()(Index i) const { dy[i] = scale * (y[i] - target[i]); }
};

}  // namespace fn

/// Mean squared error.
///
///     loss = (1 / N·D) Σ_{n,d} (y[n,d] − target[n,d])²                                                   (1)
///
/// Source: as torch.nn.MSELoss.
/// @param y, target [N, D] in
/// @throws ArgumentError unless both have the same shape
/// @cost   2·N·D additions
struct MeanSquaredError {
  template <class T, class B>
  using Target = View<const T, 2, B>;

  template <class T, class B>
  void validate(In<T, 2, B> y, In<T, 2, B> target) const {
    expect_shape("MeanSquaredError", "target", target, {y.extent(0), y.extent(1)});
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 1, B> value) const {
    validate<T, B>(y, target);
    loss::mean<T, B>(ctx, y.size(), y.size(), fn::SquaredDifference<T>{y.data(), target.data()}, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 2, B> dy) const {
    validate<T, B>(y, target);
    expect_shape("MeanSquaredError.backward", "dy", dy, {y.extent(0), y.extent(1)});
    B::for_each(ctx, y.size(), fn::SquaredDifferenceBackward<T>{y.data(), target.data(), 2 / static_cast<T>(y.size()), dy.data()});
  }
};

}  // namespace gatefold
