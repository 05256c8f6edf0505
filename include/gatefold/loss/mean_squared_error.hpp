#pragma once

#include "gatefold/loss/loss.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), SquaredDifference);
GATEFOLD_FUNCTORS((class T), SquaredDifferenceBackward);

/// Mean squared error between outputs y [N, D] and targets [N, D].
///
///     loss = (1 / N·D) Σ_{n,d} (y[n,d] − target[n,d])²                                                   (1)
///
/// Source: torch.nn.MSELoss.
/// @param y, target [N, D] in
/// @throws ArgumentError unless y and target have the same shape
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
    auto mark = ctx.mark();
    auto sums = ctx.template scratch<T>(y.extent(0));
    B::for_rows(ctx, y.extent(0), functor::SquaredDifference<T, B>{y, target, sums});
    mean_loss<T, B>(ctx, y.extent(0), {y.size()}, functor::Term<T>{sums.data()}, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 2, B> dy) const {
    validate<T, B>(y, target);
    expect_shape("MeanSquaredError.backward", "dy", dy, {y.extent(0), y.extent(1)});
    B::for_each(
        ctx, y.size(),
        functor::SquaredDifferenceBackward<T>{y.data(), target.data(), 2 / static_cast<T>(y.size()), dy.data()});
  }
};

namespace functor {

/// Writes sums[n] = Σ_d (y[n,d] − target[n,d])².
template <class T, class B>
struct SquaredDifference {
  View<const T, 2, B> y, target;
  View<T, 1, B> sums;  // [N]
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const T sum = sum_columns<T>(lanes, y.extent(1), [&](const auto& at, Index d) {
      const auto difference = at.load(&y(n, d)) - at.load(&target(n, d));
      return difference * difference;
    });
    if (lanes.lane == 0) sums(n) = sum;
  }
};
template <class T>
struct SquaredDifferenceBackward {
  using Element = T;
  const T *y, *target;
  T scale;
  T* dy;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    at.store(dy + i, scale * (at.load(y + i) - at.load(target + i)));
  }
};

}  // namespace functor

}  // namespace gatefold
