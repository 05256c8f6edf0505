#pragma once

#include <cmath>
#include <numbers>

#include "gatefold/update/momentum.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), ComplexStep, ComplexBackward);

namespace update {

/// An update rule with heavy-ball momentum over the layers and a complex coefficient μ. A layer with input x and branch
/// output u(x) returns y, and passes the complex momentum p to the next layer. p rotates by a phase in each layer, so
/// that a contribution to p is added in some layers and subtracted in others.
///
///     p ← μ p + u(x),   y = x + γ Re p,   μ = modulus · exp(i phase),   p = 0 before the first layer    (1)
///
/// Source: paper 001, eq. (21), whose f is −u; Lorraine et al. 2021, arXiv:2102.08431. The paper does not give its μ.
/// The default modulus is the μ of the paper's heavy ball, and the default phase is π/8. Phase 0 is HeavyBall; phase π
/// is HeavyBall with negative μ.
/// @param carry  re, im [N, D], the real and imaginary parts of p
/// @throws ArgumentError unless modulus, phase and γ are finite
/// @cost  5·N·D multiply-adds, 2·N·D carried values
struct ComplexMomentum {
  double modulus = 0.7, phase = std::numbers::pi / 8, gamma = 1;

  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> re, im;  // [N, D]
    Pass pass{};
    GATEFOLD_PACK(re, im)
  };
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    for (auto* part : {&carry.re, &carry.im}) {
      part->resize(items, dim);
      fill(ctx, part->view(), 0);
    }
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    expect_finite("ComplexMomentum", "modulus", modulus);
    expect_finite("ComplexMomentum", "phase", phase);
    expect_finite("ComplexMomentum", "gamma", gamma);
    expect_shape("ComplexMomentum", "carry.re", carry.re, {items, dim});
    expect_shape("ComplexMomentum", "carry.im", carry.im, {items, dim});
  }

  template <class T, class B, class F>
  void forward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f, Out<T, 2, B> y,
               Nothing<T, B>&) const {
    f(x, y, 0,
      functor::ComplexStep<T>{T(mu_re()), T(mu_im()), T(gamma), x.data(), carry.re.data(), carry.im.data(), y.data()});
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Nothing<T, B>&, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    B::for_each(ctx, x.size(),
                functor::ComplexBackward<T>{T(mu_re()), T(mu_im()), T(gamma), dy.data(), dcarry.re.data(),
                                            dcarry.im.data(), du.data(), dx.data()});
    df(x, du, dx, 0);
  }

 private:
  double mu_re() const { return modulus * std::cos(phase); }
  double mu_im() const { return modulus * std::sin(phase); }
};

}  // namespace update

namespace functor {

/// Computes the update rule ComplexMomentum for one element: p ← μ p + u,   y = x + γ Re p,   with p = re + i im. On
/// entry, y contains the branch output u.
template <class T>
struct ComplexStep {
  using Element = T;
  T mu_re, mu_im, gamma;
  const T* x;
  T *re, *im, *y;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto a = at.load(re + i), b = at.load(im + i), now = mu_re * a - mu_im * b + at.load(y + i);
    at.store(re + i, now);
    at.store(im + i, mu_im * a + mu_re * b);
    at.store(y + i, at.load(x + i) + gamma * now);
  }
};
/// Backward pass of ComplexStep for one element. dy is the gradient of y, (dre, dim) the gradient of the complex
/// momentum, and μ̄ the conjugate of μ: du = γ dy + dre,   (dre, dim) ← μ̄ (du, dim),   dx += dy.
template <class T>
struct ComplexBackward {
  using Element = T;
  T mu_re, mu_im, gamma;
  const T* dy;
  T *dre, *dim, *du, *dx;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    const auto out = at.load(dy + i), a = gamma * out + at.load(dre + i), b = at.load(dim + i);
    at.store(du + i, a);
    at.store(dre + i, mu_re * a + mu_im * b);
    at.store(dim + i, mu_re * b - mu_im * a);
    at.store(dx + i, at.load(dx + i) + out);
  }
};

}  // namespace functor

}  // namespace gatefold
