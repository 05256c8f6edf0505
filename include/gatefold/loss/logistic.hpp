#pragma once

#include "gatefold/backend/math.hpp"
#include "gatefold/loss/loss.hpp"

namespace gatefold {

namespace functor {

template <class T>
struct LogisticLoss {
  const T *y, *target;
  GATEFOLD_HD T operator()(Index i) const { return functor::math::softplus(-target[i] * y[i]); }
};
template <class T>
struct LogisticLossBackward {
  const T *y, *target;
  T scale;
  T* dy;
  GATEFOLD_HD void operator()(Index i) const { dy[i] = -scale * target[i] * functor::math::sigmoid(-target[i] * y[i]); }
};

}  // namespace functor

/// Logistic loss for two classes, with scores y and labels t of −1 or +1.
///
///     loss = (1/N) Σ_n ℓ(t[n,0] y[n,0]),   ℓ(z) = log(1 + exp(−z)),   ℓ'(z) = −1 / (1 + exp z)           (1)
///
/// Source: papers 000, sec. 3, and 003, sec. 2.
/// @param y      [N, 1] in   scores
/// @param target [N, 1] in   labels, −1 or +1
/// @throws ArgumentError unless y and target are [N, 1] and the labels are −1 or +1 (labels are checked only on a host)
/// @cost   N exponentials forward and N backward; N logarithms forward
struct Logistic {
  template <class T, class B>
  using Target = View<const T, 2, B>;

  template <class T, class B>
  void validate(In<T, 2, B> y, In<T, 2, B> target) const {
    expect_shape("Logistic", "y", y, {any_extent, 1});
    expect_shape("Logistic", "target", target, {y.extent(0), 1});
    if constexpr (B::is_host)
      for (Index n = 0; n < target.size(); ++n)
        expect(target(n, 0) == 1 || target(n, 0) == -1, "Logistic", "target", "labels -1 or +1", target(n, 0));
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 1, B> value) const {
    validate<T, B>(y, target);
    mean_loss<T, B>(ctx, y.size(), {y.size()}, functor::LogisticLoss<T>{y.data(), target.data()}, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 2, B> dy) const {
    validate<T, B>(y, target);
    expect_shape("Logistic.backward", "dy", dy, {y.extent(0), 1});
    B::for_each(ctx, y.size(),
                functor::LogisticLossBackward<T>{y.data(), target.data(), 1 / static_cast<T>(y.size()), dy.data()});
  }
};

}  // namespace gatefold
