#pragma once

#include <cmath>
#include <type_traits>

#include "gatefold/optim/optimizer.hpp"

namespace gatefold {

namespace functor {

template <class T>
struct Squares;
template <class T>
struct ClipStep;

/// Computes the factor that scales gradients to a norm of at most `most`: factor = min(1, most / √squares), with
/// `squares` the sum of the squares of all gradients.
struct ClipFactor {
  double most;
  const double* squares;
  double* factor;
  GATEFOLD_HD void operator()(Index) const {
    const double norm = std::sqrt(*squares);
    *factor = norm > most ? most / norm : 1;
  }
};

}  // namespace functor

namespace optim {

template <class C, class Pack>
void sum_of_squares(C& ctx, const Pack& grads, double* out);

/// Wraps an optimizer, and clips the gradients g to a maximum global norm, the option `norm`, before each step.
///
///     g ← g · min(1, norm / ‖g‖₂),   ‖g‖₂ over all tensors together                                     (1)
///
/// Source: Pascanu et al. 2012, arXiv:1211.5063, algorithm 1; torch's clip_grad_norm_ adds 1e-6 to ‖g‖.
///
/// Overwrites grads. If T is double, the square of a norm above 1e154 overflows, and the gradients are scaled to 0. A
/// Trainer treats such a step as a step with NaN gradients, because gradients of a normal run are never so large.
/// @throws ArgumentError if `norm` is not above 0, if a gradient does not have the shape of its parameter, or if the
///         inner optimizer throws it. Nothing has been written then
template <Optimizer OptimizerT>
struct Clipped {
  using IsOptimizer = void;
  static_assert(check_inside<OptimizerT>());
  OptimizerT optimizer;
  double norm = 1;

  template <class Pack>
  using State = typename OptimizerT::template State<Pack>;
  void validate() const {
    expect(norm > 0, "Clipped", "norm", "more than 0", norm);
    validate_options(optimizer);
  }
  template <class C, class Pack>
  auto begin(C& ctx, const Pack& params) const {
    validate();
    return optimizer.begin(ctx, params);
  }
  template <class Pack, class StateT>
  void expect_step(Pack& params, Pack& grads, StateT& state) const {
    validate();
    expect_like("Clipped.step", "grads", params, grads);
    optim::expect_step(optimizer, params, grads, state);
  }
  /// Returns the sum of the squares of all gradients, in scratch memory.
  template <class C, class Pack>
  Measured measure(C& ctx, const Pack& grads) const {
    double* squares = ctx.template scratch<double>(1).data();
    sum_of_squares(ctx, grads, squares);
    return {squares};
  }
  template <class C, class Pack, class StateT>
  void step(C& ctx, Pack& params, Pack& grads, StateT& state) const {
    auto mark = ctx.mark();
    step(ctx, params, grads, state, measure(ctx, grads));
  }
  template <class C, class Pack, class StateT>
  void step(C& ctx, Pack& params, Pack& grads, StateT& state, const Measured& squares) const {
    const auto here = ctx.here();
    expect_step(params, grads, state);
    auto mark = ctx.mark();
    auto factor = ctx.template scratch<double>(1);
    C::Backend::for_each(ctx, 1, functor::ClipFactor{norm, squares.total, factor.data()});
    for_each_learned(
        [&](const Name&, auto& g) {
          using T = std::remove_cvref_t<decltype(*g.data())>;
          for_each_touched(ctx, g, functor::ClipStep<T>{factor.data(), g.rows().data});
        },
        grads);
    optimizer.step(ctx, params, grads, state);
  }
};
template <class O>
Clipped(O) -> Clipped<O>;
template <class O, class N>
Clipped(O, N) -> Clipped<O>;
template <class First, class... Rest, class = std::enable_if_t<!Optimizer<First>>>
Clipped(First, Rest...) -> Clipped<NoOptimizer<First>>;

/// Adds the sum of the squares of g to *out, which is in the memory of the backend. g is a tensor or a part of a
/// tensor, divided into `parts`. Rows of a Table that no backward pass has written are skipped. The sum is computed in
/// double, in a fixed order.
template <class C, class T>
void add_squares(C& ctx, const Parts& parts, const T* g, double* out) {
  using B = typename C::Backend;
  auto mark = ctx.mark();
  double* sums = ctx.template scratch<double>(parts.count()).data();
  B::for_rows(ctx, parts.count(), functor::Squares<T>{parts, g, sums});
  B::template reduce<double>(ctx, parts.count(), functor::Term<double>{sums}, out);
}
template <class C, class T, class B>
void add_squares(C& ctx, const FlatTensor<T, B>& g, double* out) {
  add_squares(ctx, parts_of(g, summed_at_once), g.data(), out);
}
/// Writes the sum of the squares of all learned tensors of a pack (here, the gradients) to *out.
template <class C, class Pack>
void sum_of_squares(C& ctx, const Pack& grads, double* out) {
  C::Backend::for_each(ctx, 1, functor::Fill<double>{0, out});
  for_each_learned([&](const Name&, const auto& g) { add_squares(ctx, g, out); }, grads);
}

}  // namespace optim

namespace functor {

/// Computes the sum of the squares of part r of a tensor x, in double: sums[r] = Σ x².
template <class T>
struct Squares {
  Parts parts;
  const T* x;
  double* sums;
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index r) const {
    const T* from = x + parts.begin(r);
    const double sum = inner_product<double>(lanes, parts.elements(r), from, from);
    if (lanes.lane == 0) sums[r] = sum;
  }
};
/// Multiplies a gradient by the clipping factor: g ← g · factor. Does not write if the factor is 1.
template <class T>
struct ClipStep {
  using Element = T;
  const double* factor;
  T* g;
  template <class A>
  GATEFOLD_HD void operator()(const A& at, Index i) const {
    if (*factor != 1) at.store(g + i, at.load(g + i) * static_cast<T>(*factor));
  }
};

}  // namespace functor

}  // namespace gatefold
