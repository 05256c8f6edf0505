#pragma once

#include <utility>

#include "gatefold/optim/optimizer.hpp"

namespace gatefold {

namespace functor {

template <class T>
struct SgdStep {
  using Element = T;
  T lr, momentum, decay;
  const T* g;
  T *p, *m;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    const auto pi = at.load(p + i), mi = momentum * at.load(m + i) + (at.load(g + i) + decay * pi);
    at.store(m + i, mi);
    at.store(p + i, pi - lr * mi);
  }
};
/// SgdStep with momentum 0, which neither reads nor writes the moments.
template <class T>
struct PlainSgdStep {
  using Element = T;
  T lr, decay;
  const T* g;
  T* p;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    const auto pi = at.load(p + i);
    at.store(p + i, pi - lr * (at.load(g + i) + decay * pi));
  }
};

}  // namespace functor

namespace optim {

/// Stochastic gradient descent (SGD) with momentum and weight decay. p is a parameter with gradient g and momentum m, η
/// the learning rate, μ the option `momentum` and λ the option `decay`.
///
///     m ← μ m + g + λ p,   p ← p − η m                                                                  (1)
///
/// torch.optim.SGD uses the same equations. μ = 0 is plain gradient descent, which neither reads nor writes m. For an
/// embedding with a sparse gradient, (1) applies only to the touched rows, that is, the rows that backward wrote. The
/// other rows keep p and m.
/// @throws ArgumentError if lr, momentum or decay is negative or not finite, or if a gradient or moment does not have
///         the shape of its parameter. If it throws, nothing has been written
/// @cost memory for one moment per parameter
struct Sgd {
  using IsOptimizer = void;
  double lr = 0.1, momentum = 0, decay = 0;

  template <class Pack>
  struct State {
    Pack m;
    Index step = 0;
    GATEFOLD_PACK(m)
  };
  void validate() const {
    expect_rate("Sgd", "lr", lr);
    expect_rate("Sgd", "momentum", momentum);
    expect_rate("Sgd", "decay", decay);
  }
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    validate();
    return {zeros_like(ctx, params)};
  }
  template <class Pack>
  void expect_step(const Pack& params, const Pack& grads, const State<Pack>& state) const {
    validate();
    expect_like("Sgd.step", "grads", params, grads);
    expect_like("Sgd.step", "state.m", params, state.m);
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    step_parts(ctx, params, grads, state, OneRate{});
  }
  /// Makes an optimizer step. Calls each(ctx, name, grad, functor) for each tensor, and `each` must run the functor on
  /// all elements of the tensor, or on all touched rows if the gradient is sparse. It can do this in parts, and set the
  /// functor's learning rate `lr` for each part.
  template <class C, class Pack, class EachT>
  void step_parts(C& ctx, Pack& params, Pack& grads, State<Pack>& state, const EachT& each) const {
    const auto here = ctx.here();
    expect_step(params, grads, state);
    ++state.step;
    for_each_learned(
        [&](const Name& name, auto& p, auto& g, auto& m) {
          using T = std::remove_cvref_t<decltype(*p.data())>;
          const T* const gradient = std::as_const(g).data();
          if (momentum == 0)
            each(ctx, name, g, functor::PlainSgdStep<T>{T(lr), T(decay), gradient, p.data()});
          else
            each(ctx, name, g, functor::SgdStep<T>{T(lr), T(momentum), T(decay), gradient, p.data(), m.data()});
        },
        params, grads, state.m);
  }
};

}  // namespace optim
}  // namespace gatefold
