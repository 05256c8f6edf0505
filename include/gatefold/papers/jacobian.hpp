#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <span>
#include <type_traits>

#include "gatefold/core/error.hpp"
#include "gatefold/layer/layer.hpp"

namespace gatefold {

/// Returns the Jacobian matrix of a branch or layer at one input item x with output y. Each row of the matrix is
/// computed by one backward pass.
///
///     J[o,i] = ∂y[o] / ∂x[i]                                                                            (1)
///
/// The gate picks experts for x, and these picks count as constant. If x lies on the border between the regions of two
/// experts, J is therefore a one-sided derivative. A layer starts with the initial carry, the state that begin() makes.
/// Auxiliary losses are not part of y and are left out.
/// @param part   a branch (the mixture itself: J = ∂u/∂x) or a layer (with its residual stream)
/// @param x      [1, in_dim] in   one item
/// @return [out_dim, in_dim]
/// @throws ArgumentError unless x is [1, in_dim]; the errors of forward and backward of `part`
/// @cost   one forward pass and out_dim backward passes; allocates J, gradients of the parameters, and saved values
template <class L, class T, class B>
auto jacobian(typename B::Context& ctx, const L& part, const Params<L, std::remove_const_t<T>, B>& params,
              View<T, 2, B> x, const Extra<L, std::remove_const_t<T>, B>& extra = {}) {
  using U = std::remove_const_t<T>;
  GATEFOLD_REQUIRE((detail_::policy::Branch<L, U, B> || detail_::policy::Layer<L, U, B>),
                   "gatefold: jacobian needs a branch or a layer; wrap an expert: OneExpert{expert}");
  const auto here = ctx.here();
  expect_shape("jacobian", "x", x, {1, part.in_dim()});
  const Index out = part.out_dim(), in = part.in_dim();
  const auto plain = without_auxiliary(extra);
  Params<L, U, B> grads = zeros_like(ctx, params);
  Saved<L, U, B> saved;
  ExtraGrad<L, U, B> dextra{};
  Tensor<U, 2, B> y(1, out), dy(1, out), j(out, in);
  const auto backward = [&](auto&& run) {
    set_zero(ctx, j);
    for (Index o = 0; o < out; ++o) {
      set_zero(ctx, dy);
      fill(ctx, dy.view().as(out).rows(o, 1), 1);
      run(j.view().rows(o, 1));
    }
  };
  if constexpr (detail_::policy::Layer<L, U, B>) {
    Carry<L, U, B> carry;
    part.begin(ctx, params, 1, carry);
    part.forward(ctx, params, x, carry, y, saved, plain);
    backward([&](View<U, 2, B> dx) {
      set_zero(ctx, carry);
      part.backward(ctx, params, x, saved, dy, carry, dx, grads, plain, dextra);
    });
  } else {
    part.forward(ctx, params, x, y, saved, plain, functor::NoStep<U>{});
    backward([&](View<U, 2, B> dx) { part.backward(ctx, params, x, saved, dy, dx, grads, plain, dextra); });
  }
  return j;
}

namespace metric {

/// The result of `stability`: whether a network whose layers use heavy-ball momentum converges near a point at which
/// the layer's branch output u is 0. σ are the eigenvalues of −∂u/∂x there, and λ the eigenvalues of the linearised
/// iteration over layers.
struct Stability {
  bool stable = true;  // condition (2) or (3) of the function `stability` holds for every σ
  // Largest |λ| of the linearised iteration over layers: each layer multiplies the distance from the fixed point by
  // about this factor.
  double radius = 0;
  double smallest = 0;           // smallest Re σ
  double largest = 0;            // largest Re σ
  double largest_imaginary = 0;  // largest |Im σ|; Lemma 1 needs 0
};

/// Returns whether the heavy-ball iteration over layers t, x_{t+1} = x_t + γ u(x_t) + μ (x_t − x_{t−1}), is linearly
/// stable near a point at which u = 0. σ are the eigenvalues of −∂u/∂x there, and λ the eigenvalues of the linearised
/// iteration.
///
///     λ is an eigenvalue of ( 0  1 ; −μ  1 + μ − γσ ):   λ² − (1 + μ − γσ) λ + μ = 0                    (1)
///     real σ:     stable ⟺ |μ| < 1 and 0 < γσ < 2 + 2μ                                                 (2)
///     complex σ:  stable ⟺ |λ| < 1 for both λ                                                           (3)
///
/// The point is stable if (2) or (3) holds for every σ. The paper writes ∂f/∂x with f = −u. With μ = 0, the iteration
/// is the ordinary residual connection, and (2) is 0 < γσ < 2.
///
/// Source: paper 001 (MomentumSMoE), Lemma 1 and Proposition 1. (3) is the same statement without the paper's
/// assumption that σ is real.
/// @param sigma  eigenvalues of −∂u/∂x: the negated eigenvalues of ∂u/∂x from `jacobian` (papers/jacobian.hpp) and
///               `eigenvalues` (papers/eigenvalues.hpp). If empty, the result is stable
/// @throws ArgumentError unless γ > 0
/// @order  a σ that is not finite is unstable, and the radius can be NaN. If a real part is NaN, `smallest` and
///         `largest` are NaN. If an imaginary part is NaN, `largest_imaginary` is NaN
inline Stability stability(std::span<const std::complex<double>> sigma, double mu, double gamma) {
  expect(gamma > 0, "stability", "gamma", "above 0", gamma);
  Stability s;
  const auto extend = [](double& to, double v, int direction = 1) {  // keeps NaN
    if (!(direction * v <= direction * to) && to == to) to = v;
  };
  for (const std::complex<double>& v : sigma) {
    const std::complex<double> half = 0.5 * (1 + mu - gamma * v), root = std::sqrt(half * half - mu);
    const double radius = std::max(std::abs(half + root), std::abs(half - root));
    const bool fits =
        v.imag() == 0 ? std::abs(mu) < 1 && 0 < gamma * v.real() && gamma * v.real() < 2 + 2 * mu : radius < 1;
    s.stable = s.stable && fits;
    extend(s.radius, radius);
    extend(s.largest_imaginary, std::abs(v.imag()));
    if (&v == sigma.data()) s.smallest = s.largest = v.real();
    extend(s.smallest, v.real(), -1);
    extend(s.largest, v.real());
  }
  return s;
}

}  // namespace metric

}  // namespace gatefold
