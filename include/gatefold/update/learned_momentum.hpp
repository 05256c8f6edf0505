#pragma once

#include "gatefold/update/inner_product.hpp"
#include "gatefold/update/momentum.hpp"

/// Functions for update rules with learned momentum (LearnedHeavyBall, ZeroOrderHold): one heavy-ball step over a
/// layer, and its backward, which also computes the gradients of the coefficients μ and γ.
///
///     p ← μ p + u(x),   y = x + γ p,   with μ, γ fixed, one per layer, or one per item                  (1)
namespace gatefold {

GATEFOLD_FUNCTORS((class T), Coefficient);
GATEFOLD_FUNCTORS((class T, class B), LearnedMomentumStep, LearnedMomentumBackward);

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

}  // namespace update

namespace functor {

/// A coefficient μ or γ of a momentum rule. It is a fixed option, a learned value for all items, or one value per item.
/// `learned` points to the learned values, or to one value per item; null means `fixed`.
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

}  // namespace functor

}  // namespace gatefold
