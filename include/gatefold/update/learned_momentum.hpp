#pragma once

#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/update/momentum.hpp"

/// Functions for update rules with learned momentum (LearnedHeavyBall, ZeroOrderHold): one heavy-ball step over a
/// layer, and its backward, which also computes the gradients of the coefficients μ and γ.
///
///     p ← μ p + u(x),   y = x + γ p,   with μ, γ fixed, one per layer, or one per item                  (1)
namespace gatefold {

GATEFOLD_FUNCTORS((class T), Coefficient);
GATEFOLD_FUNCTORS((class T, class B), LearnedMomentumStep, LearnedMomentumBackward, LinearScalarForward,
                  LinearScalarBackward);

namespace update {

/// The momentum p before and after a layer, kept for backward: the gradient of μ is ⟨du, before⟩, and the gradient of γ
/// is ⟨dy, after⟩, with du and dy the gradients of the branch output u and of the result y.
template <class T, class B>
struct KeptMomentum {
  Tensor<T, 2, B> before, after;  // [N, D]
};

/// Computes one heavy-ball step with learned coefficients, p ← μ p + u(x),   y = x + γ p, for training: keeps p before
/// and after the layer.
template <class C, class T, class B, class F>
void learned_momentum_forward(C& ctx, const functor::Coefficient<T>& mu, const functor::Coefficient<T>& gamma,
                              View<const T, 2, B> x, F&& f, View<T, 2, B> p, View<T, 2, B> y,
                              KeptMomentum<T, B>& kept) {
  for (auto* t : {&kept.before, &kept.after}) t->resize(x.extent(0), x.extent(1));
  f(x, kept.after.view(), 0);
  B::for_rows(ctx, x.extent(0),
              functor::LearnedMomentumStep<T, B>{mu, gamma, x, kept.after, p, y, kept.before, kept.after});
}
/// Computes one heavy-ball step with learned coefficients, p ← μ p + u(x),   y = x + γ p, for inference: keeps nothing
/// for backward.
template <class C, class T, class B, class F>
void learned_momentum_infer(C& ctx, const functor::Coefficient<T>& mu, const functor::Coefficient<T>& gamma,
                            View<const T, 2, B> x, F&& f, View<T, 2, B> p, View<T, 2, B> y) {
  f(x, y, 0);
  B::for_rows(ctx, x.extent(0), functor::LearnedMomentumStep<T, B>{mu, gamma, x, y, p, y, {}, {}});
}
/// Computes the backward pass of a heavy-ball step with learned coefficients. Replaces dp, the gradient of p after the
/// layer, by the gradient of p before it. Adds to dx. If γ is per item, writes dgamma [N]; otherwise adds to dgamma [1]
/// unless it is empty. Adds to dmu [1] unless it is empty.
template <class C, class T, class B, class F>
void learned_momentum_backward(C& ctx, const functor::Coefficient<T>& mu, const functor::Coefficient<T>& gamma,
                               View<const T, 2, B> x, const KeptMomentum<T, B>& kept, F&& df, View<const T, 2, B> dy,
                               View<T, 2, B> dp, View<T, 2, B> dx, NonDeduced<View<T, 1, B>> dmu,
                               NonDeduced<View<T, 1, B>> dgamma) {
  auto mark = ctx.mark();
  auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
  B::for_rows(ctx, x.extent(0), functor::LearnedMomentumBackward<T, B>{mu, gamma, dy, dp, du, dx});
  if (dmu.size() > 0) add_inner_product(ctx, View<const T, 2, B>(du), kept.before, dmu.data());
  if (gamma.per_item) {
    B::for_rows(ctx, x.extent(0), functor::RowInnerProduct<T, B>{dy, kept.after, dgamma});
  } else if (dgamma.size() > 0) {
    add_inner_product(ctx, dy, kept.after, dgamma.data());
  }
  df(x, du, dx, 0);
}

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

/// A coefficient μ or γ of a momentum rule. It is a fixed option, a learned value for all items, or one value per item.
/// `learned` points to the learned value, or to the values of the items if `per_item` is true. If it is null, the
/// coefficient is `fixed`.
template <class T>
struct Coefficient {
  T fixed = 0;
  const T* learned = nullptr;
  bool per_item = false;
  GATEFOLD_HD T operator()(Index n) const { return learned ? learned[per_item ? n : 0] : fixed; }
};

/// Computes one heavy-ball step (HeavyBallStep) for all values of item n, with the coefficients μ and γ of this item.
template <class T, class B>
struct LearnedMomentumStep {
  Coefficient<T> mu, gamma;
  View<const T, 2, B> x, u;
  View<T, 2, B> p, y;
  // Memory for p before and after the layer, which backward needs. Empty in inference. `after` may be the memory of u.
  View<T, 2, B> before, after;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const HeavyBallStep<T> step{mu(n), gamma(n), &x(n, 0), &u(n, 0), &p(n, 0), &y(n, 0)};
    if (before.empty()) return each_column<T>(lanes, x.extent(1), step);
    each_column<T>(lanes, x.extent(1), [&](const auto& at, Index d) {
      at.store(&before(n, d), at.load(&p(n, d)));
      step(at, d);
      at.store(&after(n, d), at.load(&p(n, d)));
    });
  }
};
/// Computes the backward pass of a heavy-ball step (HeavyBallBackward) for all values of item n, with the coefficients
/// μ and γ of this item.
template <class T, class B>
struct LearnedMomentumBackward {
  Coefficient<T> mu, gamma;
  View<const T, 2, B> dy;
  View<T, 2, B> dp, du, dx;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    each_column<T>(lanes, dy.extent(1),
                   HeavyBallBackward<T>{mu(n), gamma(n), &dy(n, 0), &dp(n, 0), &du(n, 0), &dx(n, 0)});
  }
};
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
