#pragma once

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "gatefold/update/inner_product.hpp"
#include "gatefold/update/momentum.hpp"

/// Heavy ball with coefficients that are numbers of the model, and their adjoints.
///
///     p ← μ p + u(x),   y = x + γ p,   with μ, γ fixed, one of the layer, or one of each item           (1)
namespace gatefold {

namespace fn {

/// A number of options, or one that lives in memory: for all elements, or for each `width` of them.
template <class T>
struct Coefficient {
  T fixed = 0;
  const T* learned = nullptr;
  Index width = 0;  // 0: one for all
  GATEFOLD_HD T operator()(Index i) const { return !learned ? fixed : width == 0 ? *learned : learned[i / width]; }
};

template <class T>
struct LearnedMomentumStep {
  Coefficient<T> mu, gamma;
  const T *x, *u;
  T *p, *before, *after, *y;
  GATEFOLD_HD void operator()(Index i) const {
    before[i] = p[i];
    p[i] = after[i] = mu(i) * p[i] + u[i];
    y[i] = x[i] + gamma(i) * p[i];
  }
};

}  // namespace fn

namespace update {

/// p before and after a layer, whose products with the adjoints are those of μ and γ.
template <class T, class B>
struct KeptMomentum {
  Tensor<T, 2, B> before, after;  // [N, D]
};

/// (1)
template <class C, class T, class B, class F>
void learned_momentum_forward(C& ctx, const fn::Coefficient<T>& mu, const fn::Coefficient<T>& gamma, View<const T, 2, B> x,
                              F&& f, View<T, 2, B> p, View<T, 2, B> y, KeptMomentum<T, B>& kept) {
  auto mark = ctx.mark();
  auto u = ctx.template scratch<T>(x.extent(0), x.extent(1));
  for (auto* t : {&kept.before, &kept.after}) t->resize(x.extent(0), x.extent(1));
  f(x, u, 0);
  B::for_each(ctx, x.size(), fn::LearnedMomentumStep<T>{mu, gamma, x.data(), u.data(), p.data(), kept.before.data(),
                                                        kept.after.data(), y.data()});
}
/// Its adjoint: updates dp, adds to dx; adds to dmu [1] and dgamma [1] unless they are empty, or writes dgamma [N] where
/// γ is one of each item.
template <class C, class T, class B, class F>
void learned_momentum_backward(C& ctx, const fn::Coefficient<T>& mu, const fn::Coefficient<T>& gamma,
                               View<const T, 2, B> x, const KeptMomentum<T, B>& kept, F&& df, View<const T, 2, B> dy,
                               View<T, 2, B> dp, View<T, 2, B> dx, Same<View<T, 1, B>> dmu, Same<View<T, 1, B>> dgamma) {
  auto mark = ctx.mark();
  auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
  B::for_each(ctx, x.size(),
              fn::HeavyBallBackward<T, fn::Coefficient<T>>{mu, gamma, dy.data(), dp.data(), du.data()});
  if (dmu.size() > 0)
    B::template reduce<T>(ctx, x.size(), fn::InnerProduct<T>{du.data(), kept.before.data()}, dmu.data());
  if (gamma.width > 0) {
    B::for_rows(ctx, x.extent(0), fn::RowInnerProduct<T, B>{dy, kept.after, dgamma});
  } else if (dgamma.size() > 0) {
    B::template reduce<T>(ctx, x.size(), fn::InnerProduct<T>{dy.data(), kept.after.data()}, dgamma.data());
  }
  add(ctx, dy, dx);
  df(x, du, dx, 0);
}

}  // namespace update
}  // namespace gatefold
