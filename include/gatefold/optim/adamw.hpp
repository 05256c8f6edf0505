#pragma once

#include <cmath>
#include <utility>

#include "gatefold/backend/math.hpp"
#include "gatefold/optim/optimizer.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), AdamWStep);

namespace optim {

/// The optimizer Adam with decoupled weight decay. p is a parameter with gradient g and moments m and v, t the number
/// of the step, η the learning rate `lr` and λ the decay.
///
///     m ← β₁ m + (1−β₁) g,   v ← β₂ v + (1−β₂) g²
///     p ← p − η ( (m / (1−β₁ᵗ)) / (√(v / (1−β₂ᵗ)) + ε) + λ p )                                           (1)
///
/// Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2. torch.optim.AdamW uses the same equations.
///
/// With λ = 0, the default here (0.01 in PyTorch), AdamW is Adam. The decay applies to every tensor, including biases
/// and gains (InGroups can exclude them). For an embedding with a sparse gradient, (1) applies only to the touched
/// rows, that is, the rows that backward wrote; t counts all steps. In the other rows, p, m and v do not change:
/// neither weights nor moments decay. torch.optim.SparseAdam does the same for rows with a gradient that is not 0.
///
/// If g² overflows, v becomes infinite, and from then on only the decay changes the weight, as in PyTorch. With ε = 0,
/// a weight whose gradient was 0 in all steps becomes NaN, as in PyTorch.
/// @throws ArgumentError if lr, epsilon or decay is negative or not finite, if beta1 or beta2 is not in [0, 1), or if a
///         gradient or moment does not have the shape of its parameter. If it throws, nothing has been written
/// @cost memory for two moments per parameter
struct AdamW {
  using IsOptimizer = void;
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0;

  template <class Pack>
  struct State {
    Pack m, v;
    Index step = 0;
    GATEFOLD_PACK(m, v)
  };
  void validate() const {
    expect_rate("AdamW", "lr", lr);
    expect(beta1 >= 0 && beta1 < 1, "AdamW", "beta1", "0 <= beta1 < 1", beta1);
    expect(beta2 >= 0 && beta2 < 1, "AdamW", "beta2", "0 <= beta2 < 1", beta2);
    expect_rate("AdamW", "epsilon", epsilon);
    expect_rate("AdamW", "decay", decay);
  }
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    validate();
    return {zeros_like(ctx, params), zeros_like(ctx, params)};
  }
  template <class Pack>
  void expect_step(const Pack& params, const Pack& grads, const State<Pack>& state) const {
    validate();
    expect_like("AdamW.step", "grads", params, grads);
    expect_like("AdamW.step", "state.m", params, state.m);
    expect_like("AdamW.step", "state.v", params, state.v);
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    step_parts(ctx, params, grads, state, OneRate{});
  }
  /// Makes an optimizer step. Calls each(ctx, name, grad, functor) for each tensor. `each` must run the functor on all
  /// elements of the tensor, or on all touched rows if the gradient is sparse. It can do this in parts, and set the
  /// learning rate `lr` of the functor for each part.
  template <class C, class Pack, class EachT>
  void step_parts(C& ctx, Pack& params, Pack& grads, State<Pack>& state, const EachT& each) const {
    const auto here = ctx.here();
    expect_step(params, grads, state);
    const double t = static_cast<double>(++state.step);
    const auto correction = [t](double beta) { return -1 / std::expm1(t * std::log(beta)); };  // 1 / (1 − βᵗ)
    const double correction1 = correction(beta1), correction2 = correction(beta2);
    for_each_learned(
        [&](const Name& name, auto& p, auto& g, auto& m, auto& v) {
          using T = std::remove_cvref_t<decltype(*p.data())>;
          each(ctx, name, g,
               functor::AdamWStep<T>{T(lr), T(beta1), T(1 - beta1), T(beta2), T(1 - beta2), T(epsilon), T(decay),
                                     T(correction1), T(correction2), std::as_const(g).data(), p.data(), m.data(),
                                     v.data()});
        },
        params, grads, state.m, state.v);
  }
};

}  // namespace optim

namespace functor {

template <class T>
struct AdamWStep {
  using Element = T;
  // other1 and other2 are 1 − β₁ and 1 − β₂. They are computed in double, because the difference is less exact in
  // float.
  T lr, beta1, other1, beta2, other2;
  T epsilon, decay;
  T correction1, correction2;  // bias corrections 1 / (1 − βᵗ)
  const T* g;
  T *p, *m, *v;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    using functor::math::sqrt;
    const auto gi = at.load(g + i), pi = at.load(p + i);
    const auto mi = beta1 * at.load(m + i) + other1 * gi;
    const auto vi = beta2 * at.load(v + i) + other2 * (gi * gi);
    const auto direction = correction1 * mi / (sqrt(correction2 * vi) + epsilon);
    at.store(m + i, mi);
    at.store(v + i, vi);
    at.store(p + i, pi - lr * (direction + decay * pi));
  }
};

}  // namespace functor

}  // namespace gatefold
