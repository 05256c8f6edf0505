#pragma once

#include <cmath>
#include <type_traits>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/update/learned_momentum.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), ScaleBy, Hold, HoldBackward);

namespace update {

/// An update rule with heavy-ball momentum over the layers, discretised by a zero-order hold, and with learned
/// coefficients. A layer with input x and branch output u(x) returns y, and passes the momentum p to the next layer.
///
///     p ← μ_t p + u(x),   y = x + γ_t p,   p = 0 before the first layer                                 (1)
///     μ_t = e^{Δ μ},   γ_t[n] = (e^{Δ μ} − 1)/(Δ μ) · Δ · (⟨x[n], w⟩ + b),   Δ = softplus(s)            (2)
///
/// Source: paper 001, App. E.1 (ZOH), whose f is −u; each layer learns its own s, μ, w and b.
///
/// The paper does not give initial values. Here Δ starts at the option `delta`, and μ starts so that μ_t is the option
/// `mu`. `initial` draws w and b with mean 0. Before training, γ_t therefore has mean 0 and can have either sign. If
/// Δ μ = 0, the quotient in (2) is 1. If Δ μ is near 0, the quotient and its slope have full precision.
/// @param carry  p [N, D]
/// @param saved  p before and after the layer [N, D], ⟨x[n], w⟩ + b [N], γ_t [N], and μ_t and Δ φ(Δ μ) [2], with φ(z) =
///         (e^z − 1)/z
/// @throws ArgumentError unless mu and delta are positive and finite, and model_dim is the width of the branch
///         (Residual replaces 0 by this width)
/// @cost   3·N·D multiply-adds forward and 6·N·D backward, N·D carried and 2·N·D kept values
struct ZeroOrderHold {
  double mu = 0.7, delta = 1;  // initial values of μ_t and Δ
  Index model_dim = 0;
  Initial initial{};  // initial values of w and b

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 1, B> step, mu;   // [1] s and μ
    LinearScalar<T, B> linear;  // w, b
    GATEFOLD_PACK(step, mu, linear)
  };
  GATEFOLD_MOMENTUM(ZeroOrderHold)
  template <class T, class B>
  struct Saved {
    KeptMomentum<T, B> momentum;
    Tensor<T, 1, B> held;           // [2] μ_t and the factor Δ φ(Δ μ) of γ_t
    Tensor<T, 1, B> linear, gamma;  // [N]
  };

  ZeroOrderHold with_model_dim(Index width) const { return fill_model_dim(*this, "ZeroOrderHold", width, "branch"); }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect(mu > 0, "ZeroOrderHold.init", "mu", "more than 0", mu);
    expect(delta > 0, "ZeroOrderHold.init", "delta", "more than 0", delta);
    expect_finite("ZeroOrderHold.init", "mu", mu);
    expect_finite("ZeroOrderHold.init", "delta", delta);
    expect(model_dim >= 1, "ZeroOrderHold.init", "model_dim", "at least 1", model_dim);
    const double step = delta + std::log(-std::expm1(-delta));  // softplus⁻¹
    return {constant_tensor<T>(ctx, step, 1), constant_tensor<T>(ctx, std::log(mu) / delta, 1),
            LinearScalar<T, B>::init(ctx, initial, model_dim, seed)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& params, Index items, Index dim, const Carry<T, B>& carry) const {
    expect(model_dim == dim, "ZeroOrderHold", "model_dim", Joined{dim, " (the width of the branch)"}, model_dim);
    expect_shape("ZeroOrderHold", "params.step", params.step, {1});
    expect_shape("ZeroOrderHold", "params.mu", params.mu, {1});
    params.linear.validate("ZeroOrderHold", model_dim);
    carry.validate("ZeroOrderHold", items, dim);
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Params<T, B>& params, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
               Out<T, 2, B> y, Saved<T, B>& saved) const {
    saved.held.resize(2);
    for (auto* t : {&saved.linear, &saved.gamma}) t->resize(x.extent(0));
    hold(ctx, params, x, saved.held.data(), saved.linear.view(), saved.gamma.data());
    learned_momentum_forward(ctx, all_items(saved.held), each_item(saved.gamma), x, f, carry.p.view(), y,
                             saved.momentum);
  }
  template <class T, class B, class F>
  void infer(typename B::Context& ctx, const Params<T, B>& params, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    auto mark = ctx.mark();
    auto held = ctx.template scratch<T>(2), gamma = ctx.template scratch<T>(x.extent(0));
    hold(ctx, params, x, held.data(), gamma, gamma.data());
    learned_momentum_infer(ctx, all_items(held), each_item(gamma), x, f, carry.p.view(), y);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Params<T, B>& params, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Params<T, B>& grads) const {
    expect_shape("ZeroOrderHold.backward", "saved.momentum.before", saved.momentum.before, {x.extent(0), x.extent(1)});
    expect_shape("ZeroOrderHold.backward", "saved.momentum.after", saved.momentum.after, {x.extent(0), x.extent(1)});
    expect_shape("ZeroOrderHold.backward", "saved.held", saved.held, {2});
    expect_shape("ZeroOrderHold.backward", "saved.linear", saved.linear, {x.extent(0)});
    expect_shape("ZeroOrderHold.backward", "saved.gamma", saved.gamma, {x.extent(0)});
    auto mark = ctx.mark();
    auto dheld = ctx.template scratch<T>(2), dgamma = ctx.template scratch<T>(x.extent(0));
    fill(ctx, dheld, 0);
    learned_momentum_backward(ctx, all_items(saved.held), each_item(saved.gamma), x, saved.momentum, df, dy,
                              dcarry.p.view(), dx, View<T, 1, B>(dheld.data(), 1), dgamma);
    B::template reduce<T>(ctx, x.extent(0), functor::InnerProduct<T>{dgamma.data(), saved.linear.data()},
                          dheld.data() + 1);
    B::for_each(ctx, x.extent(0), functor::ScaleBy<T>{saved.held.data() + 1, dgamma.data(), dgamma.data()});
    params.linear.backward(ctx, x, dgamma, dx, grads.linear);
    B::for_each(ctx, 1,
                functor::HoldBackward<T>{params.step.data(), params.mu.data(), dheld.data(), grads.step.data(),
                                         grads.mu.data()});
  }

 private:
  /// Computes the coefficients μ_t and γ_t of (2) from the parameters. Writes held = (μ_t, Δ φ(Δ μ)) with φ(z) = (e^z −
  /// 1)/z, linear[n] = ⟨x[n], w⟩ + b, and gamma[n] = γ_t[n]. `linear` and `gamma` may be the same memory.
  template <class C, class T, class B>
  void hold(C& ctx, const Params<T, B>& params, View<const T, 2, B> x, NonDeduced<T*> held, View<T, 1, B> linear,
            NonDeduced<T*> gamma) const {
    B::for_each(ctx, 1, functor::Hold<T>{params.step.data(), params.mu.data(), held});
    params.linear.forward(ctx, x, linear);
    B::for_each(ctx, x.extent(0), functor::ScaleBy<T>{held + 1, linear.data(), gamma});
  }
  static auto all_items(const auto& numbers) {
    return functor::Coefficient<std::remove_cvref_t<decltype(*numbers.data())>>{0, numbers.data()};
  }
  static auto each_item(const auto& numbers) {
    return functor::Coefficient<std::remove_cvref_t<decltype(*numbers.data())>>{0, numbers.data(), true};
  }
};

}  // namespace update

namespace functor {

/// Returns φ(z) = (e^z − 1)/z, and φ(0) = 1.
template <class T>
GATEFOLD_HD T held(T z) {
  return z == 0 ? T(1) : std::expm1(z) / z;
}
/// Returns the derivative φ′(z) = (e^z − φ(z))/z of φ(z) = (e^z − 1)/z. Near z = 0 the terms of this formula cancel, so
/// the power series Σ_k (k+1)/(k+2)! z^k is used there.
template <class T>
GATEFOLD_HD T held_slope(T z) {
  if (z > T(0.5) || z < T(-0.5)) return (std::exp(z) - held(z)) / z;
  T sum = 0, term = T(0.5);  // `term` is z^k / (k+2)!
  for (int k = 0; k < 16; ++k) {
    sum += T(k + 1) * term;
    term *= z / T(k + 3);
  }
  return sum;
}

/// Multiplies `from` by the number *scale and writes the result to `to`, element by element.
template <class T>
struct ScaleBy {
  using Element = T;
  const T *scale, *from;
  T* to;
  GATEFOLD_HD void operator()(const auto& at, Index i) const { at.store(to + i, *scale * at.load(from + i)); }
};
/// Computes the two values held = (μ_t, Δ φ(Δ μ)) of a layer with ZeroOrderHold, with φ(z) = (e^z − 1)/z. μ_t is the
/// coefficient of the momentum; the second value is the factor of the step size γ_t.
template <class T>
struct Hold {
  const T *step, *mu;
  T* held_values;
  GATEFOLD_HD void operator()(Index) const {
    const T delta = functor::math::softplus(*step), z = delta * *mu;
    held_values[0] = std::exp(z);
    held_values[1] = delta * held(z);
  }
};
/// Adds the gradients of the parameters μ and `step` (s) of ZeroOrderHold to dmu and dstep. `dheld` = (dμ_t, dh) is the
/// gradient of held = (μ_t, h) with h = Δ φ(Δ μ), Δ = softplus(step) and φ(z) = (e^z − 1)/z. φ′ is the derivative of φ,
/// and σ is the logistic function:
///
///     dμ += (dμ_t μ_t + dh Δ φ′(Δ μ)) Δ
///     dstep += (dμ_t μ_t μ + dh e^{Δ μ}) σ(step)
///
/// If dmu or dstep is null, its gradient is skipped.
template <class T>
struct HoldBackward {
  const T *step, *mu, *dheld;
  T *dstep, *dmu;
  GATEFOLD_HD void operator()(Index) const {
    const T delta = functor::math::softplus(*step), z = delta * *mu, mu_t = std::exp(z);
    if (dmu) *dmu += delta * (dheld[0] * mu_t + dheld[1] * delta * held_slope(z));
    if (dstep) *dstep += (dheld[0] * mu_t * *mu + dheld[1] * mu_t) * functor::math::sigmoid(*step);
  }
};

}  // namespace functor

}  // namespace gatefold
