#pragma once

#include <type_traits>

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
/// @throws ArgumentError unless shapes fit
/// @cost   one forward and out_dim backward passes; allocates
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

}  // namespace gatefold
