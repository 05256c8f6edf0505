#pragma once

#include <limits>

#include "gatefold/backend/math.hpp"
#include "gatefold/update/momentum.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), RmsPropStep, RmsPropBackward);

namespace update {

/// An update rule that applies RMSProp over the layers of a model, instead of over training steps. A layer with input x
/// and branch output u(x) returns y. u is divided by the root of p, a moving average of u² that is passed from layer to
/// layer.
///
///     p ← μ p + (1−μ) u(x)²,   y = x + γ u(x) / √(p + ε),   p = 0 before the first layer                (1)
///
/// Source: paper 001, App. E.4 (rms-SMoE), whose f is −u; Hinton 2012. The paper uses RmsProp only in the first layer,
/// First{RmsProp{}, HeavyBall{}}, because RmsProp in all layers was unstable. In the first layer p = (1−μ) u². With a
/// small ε the update is nearly γ sign(u) / √(1−μ), so the branch gets almost no gradient (see Adam).
/// @param carry  p [N, D], the average of squares
/// @throws ArgumentError unless ε > 0, 0 <= μ < 1, and ε and γ are finite
/// @cost   N·D roots and divisions, N·D carried and 2·N·D kept values
struct RmsProp {
  double mu = 0.9, gamma = 1, epsilon = 1e-8;

  template <class T, class B>
  using Carry = Momentum<RmsProp, T, B>;
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> u, p;  // [N, D] branch output u; p before the layer
  };
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    carry.begin(ctx, items, dim);
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    expect_positive("RmsProp", "epsilon", epsilon);
    expect(mu >= 0 && mu < 1, "RmsProp", "mu", "0 <= mu < 1", mu);
    expect_finite("RmsProp", "gamma", gamma);
    carry.validate("RmsProp", items, dim);
  }

  template <class T, class B, class F>
  void forward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    for (auto* t : {&saved.u, &saved.p}) t->resize(x.extent(0), x.extent(1));
    step(x, carry, f, saved.u.view(), y, saved.p.data());
  }
  template <class T, class B, class F>
  void infer(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    step(x, carry, f, y, y);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    expect_shape("RmsProp.backward", "saved.u", saved.u, {x.extent(0), x.extent(1)});
    expect_shape("RmsProp.backward", "saved.p", saved.p, {x.extent(0), x.extent(1)});
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    B::for_each(ctx, x.size(),
                functor::RmsPropBackward<T>{T(mu),
                                            T(1 - mu),
                                            T(gamma),
                                            {T(epsilon), true},
                                            saved.u.data(),
                                            saved.p.data(),
                                            dy.data(),
                                            dcarry.p.data(),
                                            du.data(),
                                            dx.data()});
    df(x, du, dx, 0);
  }

 private:
  template <class T, class B, class F>
  void step(View<const T, 2, B> x, Carry<T, B>& carry, F& f, View<T, 2, B> u, View<T, 2, B> y,
            NonDeduced<T*> kept_p = nullptr) const {
    f(x, u, 0,
      functor::RmsPropStep<T>{
          T(mu), T(1 - mu), T(gamma), {T(epsilon), true}, x.data(), u.data(), carry.p.data(), y.data(), kept_p});
  }
};

}  // namespace update

namespace functor {

/// The divisor r(v) of the update rules Adam and RmsProp, and its slope r′(v) = dr/dv, for a moving average of squares
/// v >= 0.
///
///     r(v) = √v + ε,   or √(v + ε) if `inside` is true                                                  (1)
///
/// The slope of √v at v = 0 is infinite, but the function `slope` returns 0 there. RmsProp multiplies the slope by the
/// branch output u, and Adam by its first moment. In both rules, v = 0 implies that this factor is 0, unless u² has
/// underflowed or β₂ = 0 in Adam.
template <class T>
struct AdaptiveRoot {
  T epsilon;
  bool inside;
  template <class V>
  GATEFOLD_HD V value(V v) const {
    using functor::math::sqrt;
    return inside ? sqrt(v + epsilon) : sqrt(v) + epsilon;
  }
  template <class V>
  GATEFOLD_HD V slope(V v) const {
    using functor::math::sqrt;
    using functor::math::where_positive;
    const V root = sqrt(inside ? v + epsilon : v);
    return where_positive(root, T(0.5) / root, V(0));
  }
  /// Returns (w r − 2 r′ (w v − rest)) / r for numbers w and `rest`, with r = r(v) and r′ = r′(v). This is a factor in
  /// the gradients of the rules Adam and RmsProp. Terms of this expression cancel. Equation (2) is the same factor
  /// without these terms, so that it has no cancellation error:
  ///
  ///     (w ε + rest / √v) / r,   or (w ε + rest) / r² if `inside`                                     (2)
  ///
  /// Returns 0 if v has overflowed, for any value of `rest`.
  template <class V>
  GATEFOLD_HD V passed(V v, T w, V rest) const {
    using functor::math::sqrt;
    using functor::math::where_positive;
    const V r = value(v);
    const V factor =
        inside ? (w * epsilon + rest) / (r * r) : (w * epsilon + where_positive(sqrt(v), rest / sqrt(v), V(0))) / r;
    return where_positive(V(most) - v, factor, V(0));
  }

 private:
  static constexpr T most = std::numeric_limits<T>::max();
};

/// Computes the forward pass of the update rule update::RmsProp, equation (1), for one element. u and y may be the same
/// memory.
template <class T>
struct RmsPropStep {
  using Element = T;
  T mu, rest, gamma;  // rest = 1 − μ
  AdaptiveRoot<T> root;
  const T *x, *u;
  T *p, *y;
  T* kept_p;  // memory for p before the layer; null: not saved
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto ui = at.load(u + i), p0 = at.load(p + i), p1 = mu * p0 + rest * (ui * ui);
    at.store(p + i, p1);
    at.store(y + i, at.load(x + i) + gamma * (ui / root.value(p1)));
    if (kept_p) at.store(kept_p + i, p0);
  }
};
/// Backward pass of the update rule update::RmsProp, equation (1), for one element. p₁ is p after the layer, r = r(p₁)
/// the divisor of AdaptiveRoot, r′ its slope, and a = γ dy / r:
///
///     p̄ = dp − a u r′ / r,   du = a + 2 (1−μ) u p̄,   dp ← μ p̄,   dx += dy
///
/// In du, the factor of a is 1 − 2 r′ (1−μ) u² / r. The functor computes it by AdaptiveRoot (2).
template <class T>
struct RmsPropBackward {
  using Element = T;
  T mu, rest, gamma;
  AdaptiveRoot<T> root;
  const T *u, *p, *dy;
  T *dp, *du, *dx;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto ui = at.load(u + i), of_before = mu * at.load(p + i), p1 = of_before + rest * (ui * ui);
    const auto out = at.load(dy + i), of_p = at.load(dp + i), r = root.value(p1), a = gamma * out / r;
    at.store(du + i, a * root.passed(p1, T(1), of_before) + 2 * rest * ui * of_p);
    at.store(dp + i, mu * (of_p - a * (ui / r) * root.slope(p1)));
    at.store(dx + i, at.load(dx + i) + out);
  }
};

}  // namespace functor

}  // namespace gatefold
