#pragma once

#include <cmath>

#include "gatefold/update/rms_prop.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), AdamCoefficients, AdamRuleStep, AdamRuleBackward);

namespace update {

/// An update rule that applies Adam over the layers of a model, instead of over training steps. A layer with input x
/// and branch output u(x) returns y. The moments p and v are passed from layer to layer. κ is a decoupled decay of x.
///
///     p ← β₁ p + (1−β₁) u(x),   v ← β₂ v + (1−β₂) u(x)²,   p = v = 0 before the first layer             (1)
///     y = x + γ p / (√v + ε) − κ x                                                                      (2)
///     with bias_correction: p / (1−β₁ᵗ) and v / (1−β₂ᵗ) in (2), t = 1 in the first layer                (3)
///
/// Source: paper 001, sec. 4.1, whose f is −u; the paper's μ and β are β₁ and β₂ here, and its m is v here.
///
/// The paper does not give κ; the default is 0. `reference()` has the settings of the paper's code: ε inside the root,
/// no bias correction, and κ = 1, so that y contains x only through the branch. The paper uses Adam only in the first
/// layer, First{Adam{}, HeavyBall{}}, because Adam in all layers was unstable.
///
/// In the first layer p = (1−β₁) u and v = (1−β₂) u². With ε = 1e-8 the update is nearly γ (1−β₁)/√(1−β₂) sign(u),
/// which is about 3.16 sign(u). The branch gets almost no gradient: it is dy times about 1e-6/u². For very small |u|,
/// this factor is at most (1−β₁)/ε. Finite differences cannot resolve this gradient, so check gradients with a larger
/// ε. An ε inside the root acts like √ε outside.
///
/// If v = 0, the slope of the root counts as 0, so that u = 0 gives no NaN. If u² overflows (|u| > 1.8e19 in float),
/// the step is 0.
/// @param carry  p, v [N, D] and the number of completed layers
/// @throws ArgumentError unless ε > 0, 0 <= β₁, β₂ < 1, and ε, γ and κ are finite
/// @cost   N·D roots and divisions, 2·N·D carried and 3·N·D kept values
struct Adam {
  double beta1 = 0.9, beta2 = 0.999, gamma = 1, kappa = 0, epsilon = 1e-8;
  bool epsilon_inside = false, bias_correction = false;

  static Adam reference() { return reference({}); }
  static Adam reference(Adam options) {
    options.kappa = 1, options.epsilon_inside = true, options.bias_correction = false;
    return options;
  }

  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> p, v;  // [N, D]
    Index layer = 0;       // number of layers of this rule that have run
    Pass pass{};
    GATEFOLD_PACK(p, v)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> u, p, v;  // [N, D] branch output u; moments p, v before the layer
    Index layer = 0;          // number t of the layer, from 1
  };
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    carry.layer = 0;
    for (auto* moment : {&carry.p, &carry.v}) {
      moment->resize(items, dim);
      fill(ctx, moment->view(), 0);
    }
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    expect_positive("Adam", "epsilon", epsilon);
    expect(beta1 >= 0 && beta1 < 1, "Adam", "beta1", "0 <= beta1 < 1", beta1);
    expect(beta2 >= 0 && beta2 < 1, "Adam", "beta2", "0 <= beta2 < 1", beta2);
    expect_finite("Adam", "gamma", gamma);
    expect_finite("Adam", "kappa", kappa);
    expect_shape("Adam", "carry.p", carry.p, {items, dim});
    expect_shape("Adam", "carry.v", carry.v, {items, dim});
  }

  template <class T, class B, class F>
  void forward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    for (auto* t : {&saved.u, &saved.p, &saved.v}) t->resize(x.extent(0), x.extent(1));
    saved.layer = carry.layer + 1;
    step(x, carry, f, saved.u.view(), y, saved.p.data(), saved.v.data());
  }
  template <class T, class B, class F>
  void infer(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    step(x, carry, f, y, y);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    expect_shape("Adam.backward", "saved.u", saved.u, {x.extent(0), x.extent(1)});
    expect_shape("Adam.backward", "saved.p", saved.p, {x.extent(0), x.extent(1)});
    expect_shape("Adam.backward", "saved.v", saved.v, {x.extent(0), x.extent(1)});
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    B::for_each(
        ctx, x.size(),
        functor::AdamRuleBackward<T>{coefficients<T>(saved.layer), saved.u.data(), saved.p.data(), saved.v.data(),
                                     dy.data(), dcarry.p.data(), dcarry.v.data(), du.data(), dx.data()});
    df(x, du, dx, 0);
  }

 private:
  template <class T, class B, class F>
  void step(View<const T, 2, B> x, Carry<T, B>& carry, F& f, View<T, 2, B> u, View<T, 2, B> y,
            NonDeduced<T*> kept_p = nullptr, NonDeduced<T*> kept_v = nullptr) const {
    f(x, u, 0,
      functor::AdamRuleStep<T>{coefficients<T>(carry.layer + 1), x.data(), u.data(), carry.p.data(), carry.v.data(),
                               y.data(), kept_p, kept_v});
    ++carry.layer;
  }
  template <class T>
  functor::AdamCoefficients<T> coefficients(Index layer) const {
    const auto correction = [&](double beta) {
      return T(bias_correction ? 1 / (1 - std::pow(beta, static_cast<double>(layer))) : 1);
    };
    return {T(beta1),     T(1 - beta1),      T(beta2),
            T(1 - beta2), correction(beta1), correction(beta2),
            T(gamma),     T(1 - kappa),      {T(epsilon), epsilon_inside}};
  }
};

}  // namespace update

namespace functor {

template <class T>
struct AdamCoefficients {
  T beta1, rest1, beta2, rest2;  // rest = 1 − β
  T correction1, correction2;    // factors of the bias correction (3); 1 without it
  T gamma, keep;                 // keep = 1 − κ
  AdaptiveRoot<T> root;

  /// Returns the first moment p after a layer, from its value p0 before the layer and the branch output u.
  template <class V>
  GATEFOLD_HD V p(V p0, V u) const {
    return beta1 * p0 + rest1 * u;
  }
  template <class V>
  GATEFOLD_HD V v(V v0, V u) const {
    return beta2 * v0 + rest2 * (u * u);
  }
};
/// Computes the forward pass of the update rule update::Adam for one element: the new moments and y, equations (1) and
/// (2). u and y may be the same memory.
template <class T>
struct AdamRuleStep {
  using Element = T;
  AdamCoefficients<T> c;
  const T *x, *u;
  T *p, *v, *y;
  // Memory for the moments before the layer, which backward needs. Null pointers in inference.
  T *kept_p, *kept_v;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto ui = at.load(u + i), p0 = at.load(p + i), v0 = at.load(v + i);
    const auto p1 = c.p(p0, ui), v1 = c.v(v0, ui);
    at.store(p + i, p1);
    at.store(v + i, v1);
    at.store(y + i, c.keep * at.load(x + i) + c.gamma * (c.correction1 * p1 / c.root.value(c.correction2 * v1)));
    if (!kept_p) return;
    at.store(kept_p + i, p0);
    at.store(kept_v + i, v0);
  }
};
/// Backward pass of the update rule update::Adam, equations (1) to (3), for one element. c₁ and c₂ are the factors of
/// the bias correction (3). p₀, v₀ are the moments before the layer, p₁, v₁ the moments after it. r = r(c₂ v₁) is the
/// divisor of AdaptiveRoot, r′ its slope, and a = γ c₁ dy / r:
///
///     p̄ = dp + a,   v̄ = dv − a c₂ r′ p₁ / r,   dp ← β₁ p̄,   dv ← β₂ v̄
///     du = (1−β₁) p̄ + 2 (1−β₂) u v̄
///
/// In du, the factor of a is (1−β₁) − 2 r′ c₂ (1−β₂) u p₁ / r. Its terms with u² cancel. In the first layer, only a
/// term with ε remains, which is smaller than the rounding errors of the terms that cancel. The functor therefore
/// computes the factor by AdaptiveRoot (2) with v = c₂ v₁, an equation without these terms.
template <class T>
struct AdamRuleBackward {
  using Element = T;
  AdamCoefficients<T> c;
  const T *u, *p, *v, *dy;
  T *dp, *dv, *du, *dx;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto ui = at.load(u + i), p0 = at.load(p + i), v0 = at.load(v + i), out = at.load(dy + i);
    const auto corrected = c.correction2 * c.v(v0, ui), r = c.root.value(corrected);
    const auto a = c.gamma * c.correction1 * out / r, of_p = at.load(dp + i), of_v = at.load(dv + i);
    const auto rest = c.correction2 * (c.rest1 * (c.beta2 * v0) - c.rest2 * (ui * (c.beta1 * p0)));
    at.store(du + i, c.rest1 * of_p + 2 * c.rest2 * ui * of_v + a * c.root.passed(corrected, c.rest1, rest));
    at.store(dp + i, c.beta1 * (of_p + a));
    at.store(dv + i, c.beta2 * (of_v - a * (c.p(p0, ui) / r) * c.correction2 * c.root.slope(corrected)));
    at.store(dx + i, at.load(dx + i) + c.keep * out);
  }
};

}  // namespace functor

}  // namespace gatefold
