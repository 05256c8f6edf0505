#pragma once

#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class Act, class T, class B), ActivateRow, ActivateRowBackward);

/// An activation function as a branch, without parameters. A Chain makes it from an activation, so you can write
/// `Chain{Linear{8, 32}, Gelu{}, Linear{32, 4}}`.
///
///     u[n] = act(x[n])                                                                                  (1)
///
/// Source: torch.nn.GELU and the other activation modules of PyTorch.
/// @param x [N, D] in, u [N, D] out
/// @throws ArgumentError if model_dim < 1 (a Chain replaces 0 by the width of the layer before) or a shape is wrong
/// @cost   N·D evaluations of the activation
template <class Act>
struct Activate {
  GATEFOLD_REQUIRE(std::is_class_v<Act>,
                   "gatefold: Activate<Activation> takes an activation, for example Activate<Gelu>; the parameters "
                   "determine the element type; see docs/how-to/extending.md#branch");
  Index model_dim = 0;

  GATEFOLD_BRANCH_CALLS;
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  Activate with_model_dim(Index width) const { return fill_model_dim(*this, "Activate", width, "layer before"); }

  template <class T, class B>
  void validate(const Nothing<T, B>&, Index, const Nothing<T, B>&) const {
    expect(model_dim >= 1, "Activate", "model_dim", "at least 1", model_dim);
  }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>& extra = {}, const Step& step = {}) const {
    validate(p, x.extent(0), extra);
    expect_forward_shapes("Activate.forward", *this, x, "u", u);
    B::for_rows(ctx, x.extent(0), functor::ActivateRow<Act, T, B>{x, u});
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>& extra, Nothing<T, B>&) const {
    validate(p, x.extent(0), extra);
    expect_backward_shapes("Activate.backward", *this, x, du, dx);
    B::for_rows(ctx, x.extent(0), functor::ActivateRowBackward<Act, T, B>{x, du, dx});
  }
};

namespace functor {

/// Calls f(at, j) for the columns j < n of a row. The accessor `at` loads and stores one value, or a SIMD register of
/// neighbouring columns. The accessor always handles one value if the activation Act takes only one value at a time.
template <class Act, class T, class Lanes, class F>
GATEFOLD_HD void each_column_for(const Lanes& lanes, Index n, const F& f) {
  if constexpr (is_scalar_only<Act>) {
    for (Index j = lanes.lane; j < n; j += lanes.size) f(OneElement<T>{}, j);
  } else {
    each_column<T>(lanes, n, f);
  }
}
/// Writes u[n] = act(x[n]) for one item n.
template <class Act, class T, class B>
struct ActivateRow {
  View<const T, 2, B> x;
  View<T, 2, B> u;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index columns = x.extent(1);
    const T* const from = x.data() + n * columns;
    T* const to = u.data() + n * columns;
    each_column_for<Act, T>(lanes, columns,
                            [&](const auto& at, Index j) { at.store(to + j, Act::value(at.load(from + j))); });
  }
};
/// Adds the gradient of x, dx[n] += du[n] ⊙ act'(x[n]), for one item n.
template <class Act, class T, class B>
struct ActivateRowBackward {
  static_assert(detail_::policy::check_slope<Act>());
  View<const T, 2, B> x, du;
  View<T, 2, B> dx;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index columns = x.extent(1);
    const T *const from = x.data() + n * columns, *const d = du.data() + n * columns;
    T* const to = dx.data() + n * columns;
    each_column_for<Act, T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(to + j, at.load(to + j) + at.load(d + j) * Act::slope(at.load(from + j)));
    });
  }
};

}  // namespace functor

}  // namespace gatefold
