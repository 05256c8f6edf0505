#pragma once

#include <cmath>

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/optim/optimizer.hpp"

namespace gatefold {

namespace fn {

template <class T>
struct Square {
  const T* x;
  GATEFOLD_HD double operator()(Index i) const { return static_cast<double>(x[i]) * static_cast<double>(x[i]); }
};
template <class T>
struct ClipStep {
  double most;
  const double* squares;
  T* g;
  GATEFOLD_HD void operator()(Index i) const {
    const double norm = std::sqrt(*squares);
    if (norm > most) g[i] = static_cast<T>(static_cast<double>(g[i]) * (most / norm));
  }
};

}  // namespace fn

namespace optim {

/// Σ g² over every tensor of a pack, on the backend, in double and in a fixed order.
template <class C, class Pack>
void sum_of_squares(C& ctx, const Pack& grads, double* out) {
  using B = typename C::Backend;
  B::for_each(ctx, 1, fn::Fill<double>{0, out});
  for_each_learned(
      [&](const Name&, const auto& g) {
        using T = std::remove_cvref_t<decltype(*g.data())>;
        B::template reduce<double>(ctx, g.size(), fn::Square<T>{g.data()}, out);
      },
      grads);
}

/// An optimizer that sees gradients of bounded global norm.
///
///     g ← g · min(1, norm / ‖g‖₂),   ‖g‖₂ over all tensors together                                     (1)
///
/// Source: Pascanu et al. 2012, arXiv:1211.5063, algorithm 1. Overwrites grads.
/// @throws ArgumentError unless norm > 0
template <Optimizer OptimizerT>
struct Clipped {
  using IsOptimizer = void;
  OptimizerT optimizer;
  double norm = 1;
  double lr = optimizer.lr;

  template <class Pack>
  using State = typename OptimizerT::template State<Pack>;
  template <class C, class Pack>
  auto begin(C& ctx, const Pack& params) const {
    return optimizer.begin(ctx, params);
  }
  template <class C, class Pack, class StateT>
  void step(C& ctx, Pack& params, Pack& grads, StateT& state) const {
    expect(norm > 0, "Clipped", "norm", "more than 0", norm);
    auto mark = ctx.mark();
    auto squares = ctx.template scratch<double>(1);
    sum_of_squares(ctx, grads, squares.data());
    for_each_learned(
        [&](const Name&, auto& g) {
          using T = std::remove_cvref_t<decltype(*g.data())>;
          C::Backend::for_each(ctx, g.size(), fn::ClipStep<T>{norm, squares.data(), g.data()});
        },
        grads);
    OptimizerT scaled = optimizer;
    scaled.lr = lr;
    scaled.step(ctx, params, grads, state);
  }
};
template <class O>
Clipped(O) -> Clipped<O>;
template <class O, class N>
Clipped(O, N) -> Clipped<O>;

}  // namespace optim
}  // namespace gatefold
