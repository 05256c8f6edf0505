#pragma once

#include <concepts>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/pack.hpp"

/// The family of optimizers: how parameters follow their gradients. An optimizer is an aggregate with a learning rate
/// `lr` and
///
///     template <class Pack> struct State;                          // a pack, with Index step
///     State<Pack> begin(ctx, params) const;
///     step(ctx, params, grads, state) const;                       // may overwrite grads
///
/// and the tag IsOptimizer, so that one in the place of an update rule gets a clear message. Wrappers such as Clipped
/// and Scheduled are optimizers too.
namespace gatefold::optim {

template <class O>
concept Optimizer = requires(const O optimizer) {
  typename O::IsOptimizer;
  { optimizer.lr } -> std::convertible_to<double>;
};

/// The number of steps taken, and nothing else.
template <class Pack>
struct StepCount {
  Index step = 0;
  template <class F, class... S>
  static void each(F&&, S&...) {}
};

}  // namespace gatefold::optim
