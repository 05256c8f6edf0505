#pragma once

#include <cmath>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/update/learned_momentum.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), Sigmoid, SigmoidBackward);

namespace update {

/// Selects how an update rule gets its step size γ: from a fixed option, from a learned parameter, or from a learned
/// function of each item.
enum class StepSize { fixed, learned, per_item };

/// An update rule with heavy-ball momentum over the layers, which learns its coefficient μ, its step size γ, or both. A
/// layer with input x and branch output u(x) returns y, and passes the momentum p to the next layer.
///
///     p ← μ p + u(x),   y = x + γ p,   p = 0 before the first layer                                     (1)
///     per_item:  γ[n] = σ(⟨x[n], w⟩ + b)                                                                (2)
///
/// Source: paper 001, App. E.1, Tables 5 and 6, whose f is −u. Variant (i) of the paper learns μ and γ and is the
/// default. Variant (ii) is `.learn_mu = false`, and variant (iii) is (ii) with `StepSize::per_item`.
///
/// Each layer learns its own coefficients. A fixed coefficient has no parameter. The initial values of μ and γ are the
/// options. For per_item, w is initialised by `initial`, and b is log(γ/(1 − γ)) if 0 < γ < 1, or else 0. Therefore, an
/// item with ⟨x[n], w⟩ = 0 starts with γ[n] = γ, or with 1/2 if γ is not in (0, 1).
/// @param carry  p [N, D]
/// @param saved  p before and after the layer [N, D]; γ [N] if it is per item
/// @throws ArgumentError unless μ and γ are finite, and, with per_item, model_dim is the width of the branch (Residual
///         replaces 0 by this width)
/// @cost   2·N·D multiply-adds forward and 4·N·D backward (3·N·D forward and 6·N·D backward with per_item); N·D carried
///         and 2·N·D kept values
struct LearnedHeavyBall {
  double mu = 0.7, gamma = 1;
  bool learn_mu = true;
  StepSize step = StepSize::learned;
  Index model_dim = 0;
  Initial initial{};  // initial values of w

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 1, B> mu, gamma;  // [1]; [0] if not learned
    LinearScalar<T, B> linear;  // weights w and bias b of γ[n] in (2); empty unless γ is per item
    GATEFOLD_PACK(mu, gamma, linear)
  };
  GATEFOLD_MOMENTUM(LearnedHeavyBall)
  template <class T, class B>
  struct Saved {
    KeptMomentum<T, B> momentum;
    Tensor<T, 1, B> gamma;  // [N], or [0]
  };

  LearnedHeavyBall with_model_dim(Index width) const {
    return fill_model_dim(*this, "LearnedHeavyBall", width, "branch");
  }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_options("LearnedHeavyBall.init");
    if (step == StepSize::per_item)
      expect(model_dim >= 1, "LearnedHeavyBall.init", "model_dim", "at least 1", model_dim);
    Params<T, B> p{constant_tensor<T>(ctx, mu, learn_mu ? 1 : 0),
                   constant_tensor<T>(ctx, gamma, step == StepSize::learned ? 1 : 0),
                   LinearScalar<T, B>::init(ctx, initial, linear_dim(), seed)};
    fill(ctx, p.linear.bias.view(), T(gamma > 0 && gamma < 1 ? std::log(gamma / (1 - gamma)) : 0));
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& params, Index items, Index dim, const Carry<T, B>& carry) const {
    expect_options("LearnedHeavyBall");
    if (step == StepSize::per_item)
      expect(model_dim == dim, "LearnedHeavyBall", "model_dim", Joined{dim, " (the width of the branch)"}, model_dim);
    expect_shape("LearnedHeavyBall", "params.mu", params.mu, {learn_mu ? 1 : 0});
    expect_shape("LearnedHeavyBall", "params.gamma", params.gamma, {step == StepSize::learned ? 1 : 0});
    params.linear.validate("LearnedHeavyBall", linear_dim());
    carry.validate("LearnedHeavyBall", items, dim);
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Params<T, B>& params, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
               Out<T, 2, B> y, Saved<T, B>& saved) const {
    saved.gamma.resize(step == StepSize::per_item ? x.extent(0) : 0);
    step_sizes(ctx, params, x, saved.gamma.view());
    learned_momentum_forward(ctx, mu_of(params), gamma_of(params, saved.gamma.data()), x, f, carry.p.view(), y,
                             saved.momentum);
  }
  template <class T, class B, class F>
  void infer(typename B::Context& ctx, const Params<T, B>& params, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    auto mark = ctx.mark();
    auto sizes = ctx.template scratch<T>(x.extent(0));
    step_sizes(ctx, params, x, sizes);
    learned_momentum_infer(ctx, mu_of(params), gamma_of(params, sizes.data()), x, f, carry.p.view(), y);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Params<T, B>& params, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Params<T, B>& grads) const {
    expect_shape("LearnedHeavyBall.backward", "saved.momentum.before", saved.momentum.before,
                 {x.extent(0), x.extent(1)});
    expect_shape("LearnedHeavyBall.backward", "saved.momentum.after", saved.momentum.after, {x.extent(0), x.extent(1)});
    auto mark = ctx.mark();
    const bool per_item = step == StepSize::per_item;
    expect_shape("LearnedHeavyBall.backward", "saved.gamma", saved.gamma, {per_item ? x.extent(0) : 0});
    auto of_items = ctx.template scratch<T>(per_item ? x.extent(0) : 0);
    learned_momentum_backward(ctx, mu_of(params), gamma_of(params, saved.gamma.data()), x, saved.momentum, df, dy,
                              dcarry.p.view(), dx, grads.mu, per_item ? of_items : grads.gamma.view());
    if (!per_item) return;
    B::for_each(ctx, x.extent(0), functor::SigmoidBackward<T>{saved.gamma.data(), of_items.data()});
    params.linear.backward(ctx, x, of_items, dx, grads.linear);
  }

 private:
  void expect_options(const char* where) const {
    expect_finite(where, "mu", mu);
    expect_finite(where, "gamma", gamma);
  }
  /// Computes the step size of each item, equation (2). Does nothing unless the option `step` is StepSize::per_item.
  template <class C, class T, class B>
  void step_sizes(C& ctx, const Params<T, B>& params, View<const T, 2, B> x, View<T, 1, B> sizes) const {
    if (step != StepSize::per_item) return;
    params.linear.forward(ctx, x, sizes);
    B::for_each(ctx, x.extent(0), functor::Sigmoid<T>{sizes.data()});
  }
  Index linear_dim() const { return step == StepSize::per_item ? model_dim : 0; }
  template <class T, class B>
  functor::Coefficient<T> mu_of(const Params<T, B>& params) const {
    return {T(mu), learn_mu ? params.mu.data() : nullptr};
  }
  /// Returns the step size γ as a Coefficient, which can be an option, a learned value, or one value per item.
  /// @param sizes  [N] γ of each item, used only with StepSize::per_item
  template <class T, class B>
  functor::Coefficient<T> gamma_of(const Params<T, B>& params, const T* sizes) const {
    switch (step) {
      case StepSize::learned:
        return {0, params.gamma.data()};
      case StepSize::per_item:
        return {0, sizes, true};
      default:
        return {T(gamma)};
    }
  }
};

}  // namespace update

namespace functor {

/// Replaces z[n] by its sigmoid, the step size of item n.
template <class T>
struct Sigmoid {
  T* z;
  GATEFOLD_HD void operator()(Index n) const { z[n] = functor::math::sigmoid(z[n]); }
};
/// Backward pass of Sigmoid: replaces the gradient d of a step size γ by the gradient d γ (1 − γ) of its argument.
template <class T>
struct SigmoidBackward {
  const T* gamma;
  T* d;
  GATEFOLD_HD void operator()(Index n) const { d[n] *= gamma[n] * (1 - gamma[n]); }
};

}  // namespace functor

}  // namespace gatefold
