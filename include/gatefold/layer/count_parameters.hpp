#pragma once

#include <utility>

#include "gatefold/backend/shapes.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/layer/no_residual.hpp"

namespace gatefold {

namespace detail_::lookup {

/// Returns a part of a model as a type with the member `init(ctx, seed)`. Wraps an expert in a layer, because `init` of
/// an expert also takes a number of experts. Returns a layer, branch or loss unchanged.
template <class T, class B, class P>
auto with_init(const P& part) {
  if constexpr (!requires { part.in_dim(); } || detail_::policy::Branch<P, T, B>) {
    return part;
  } else {
    return as_layer<T, B>(part);
  }
}
/// The type of the parameters of a part of a model: a layer, branch, expert or loss.
template <class P, class T, class B>
using ParametersOf = Params<decltype(with_init<T, B>(std::declval<const P&>())), T, B>;

}  // namespace detail_::lookup

/// Returns the number of values in the parameters of layers, branches, experts or losses. It allocates no parameters,
/// so it can count a model that does not fit into memory. `count_parameters(model, loss)` counts the parameters that a
/// Trainer holds.
///
///     count = Σ over all tensors of the product of the extents                                           (1)
///
/// @throws ArgumentError if options do not fit, as init does, or if there are 2^63 values or more
/// @cost   visits each tensor once
template <class... L>
Index count_parameters(const L&... parts) {
  Shapes::Context ctx;
  return count_values(init_params<float, Shapes>(detail_::lookup::with_init<float, Shapes>(parts), ctx, Seed{})...);
}

}  // namespace gatefold
