#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/order.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), BeginAnywhere, SignStep);

namespace functor {

/// The limits of an adversarial attack: a value x can change by at most `epsilon`, and must stay between `low` and
/// `high`.
struct Reach {
  double epsilon, low, high;

  template <class T>
  GATEFOLD_HD T nearest(T x, T point) const {
    const T least = x - T(epsilon), most = x + T(epsilon);
    const T inside = point < least ? least : point > most ? most : point;
    return inside < T(low) ? T(low) : inside > T(high) ? T(high) : inside;
  }
};

}  // namespace functor

/// An adversarial attack: projected gradient descent (PGD) in the maximum norm. Changes each item x by at most ε per
/// value so that its loss grows, in a few steps along the sign of the gradient of the loss. `fgsm`, the fast gradient
/// sign method, is one step of length ε from x.
///
///     y₀ = Π(x + ε r),   r ~ U[−1, 1),   or y₀ = x without `start`                                       (1)
///     y_t = Π(y_{t−1} + α sign ∇loss(y_{t−1})),   t = 1, …, steps;   sign 0 = 0, sign NaN = NaN          (2)
///     Π: to [x − ε, x + ε], then to [low, high]                                                         (3)
///
/// Source: Madry et al. 2017, arXiv:1706.06083; fgsm: Goodfellow et al. 2014, arXiv:1412.6572.
/// @param epsilon, step  ε and α, in the same units as the items, `low` and `high`; the defaults are for bytes divided
///                       by 255
/// @throws ArgumentError unless low <= high, 0 <= epsilon < ∞, 0 < step < ∞ (step can be 0 if epsilon is 0), steps >=
///         1, and y has the shape of x
/// @cost   `steps` gradients
/// @order  element i of r is number i of the random stream
struct Pgd {
  double epsilon = 8.0 / 255, step = 2.0 / 255;
  Index steps = 10;
  double low = 0, high = 1;

  static Pgd fgsm() { return fgsm({}); }
  static Pgd fgsm(Pgd options) {
    options.step = options.epsilon, options.steps = 1;
    return options;
  }

  void validate() const {
    expect(0 <= epsilon && functor::is_finite(epsilon), "Pgd", "epsilon", "a finite number, at least 0", epsilon);
    expect((0 < step || (epsilon == 0 && step == 0)) && functor::is_finite(step), "Pgd", "step",
           "a finite number above 0 (0 only if epsilon is 0)", step);
    expect(steps >= 1, "Pgd", "steps", "at least 1", steps);
    expect(low <= high, "Pgd", "high", Joined{"at least low = ", low}, high);
  }

  /// Runs the attack on the items x and writes the changed items to y.
  /// @param gradient  gradient(y [N, D], dy [N, D]) writes ∇loss(y), for example InputGradient
  ///                  (train/input_gradient.hpp)
  /// @param start     random numbers for the starting point y₀ = x + ε r; if empty, y₀ = x
  /// @param x [N, D] in   between low and high
  /// @param y [N, D] out  must not overlap x
  template <class T, class B, class GradientT>
  void operator()(typename B::Context& ctx, GradientT&& gradient, View<T, 2, B> x, const Noise& start,
                  Out<std::remove_const_t<T>, 2, B> y) const {
    using U = std::remove_const_t<T>;
    validate();
    constexpr double most = std::numeric_limits<U>::max();
    expect(epsilon <= most && step <= most, "Pgd", "the larger of epsilon and step",
           Joined{"at most ", most, " (the largest number of the element type)"}, std::max(epsilon, step));
    expect_shape("Pgd", "y", y, {x.extent(0), x.extent(1)});
    expect_apart("Pgd", "y", y, "x", x);
    const functor::Reach reach{epsilon, low, high};
    if (start.random) {
      B::for_each(ctx, x.size(), functor::BeginAnywhere<U>{reach, *start.random, x.data(), y.data()});
    } else {
      copy<typename B::Context, U, 2, B>(ctx, x, y);
    }
    auto mark = ctx.mark();
    auto dy = ctx.template scratch<U>(x.extent(0), x.extent(1));
    for (Index t = 0; t < steps; ++t) {
      gradient(View<const U, 2, B>(y), dy);
      B::for_each(ctx, x.size(), functor::SignStep<U>{reach, step, x.data(), dy.data(), y.data()});
    }
  }
};

namespace functor {

/// Writes the random starting point of an attack: y = x + epsilon · r with r ~ U[−1, 1), clipped to the values that the
/// attack allows.
template <class T>
struct BeginAnywhere {
  Reach reach;
  Random random;
  const T* x;
  T* y;
  GATEFOLD_HD void operator()(Index i) const {
    const double r = 2 * uniform<double>(random.seed, random.step, static_cast<std::uint64_t>(i)) - 1;
    y[i] = reach.nearest(x[i], x[i] + static_cast<T>(reach.epsilon * r));
  }
};
/// Makes one step of an attack: y ← y + step · sign(dy), clipped to the values that the attack allows. dy is the
/// gradient of the loss.
template <class T>
struct SignStep {
  Reach reach;
  double step;
  const T *x, *dy;
  T* y;
  GATEFOLD_HD void operator()(Index i) const {
    const T sign = dy[i] > 0 ? T(1) : dy[i] < 0 ? T(-1) : dy[i];  // sign of 0 is 0; NaN stays NaN, to be noticed
    y[i] = reach.nearest(x[i], y[i] + static_cast<T>(step) * sign);
  }
};

}  // namespace functor

}  // namespace gatefold
